"""Data: sources, how they're divided over clients, how clients are made to differ, and federations."""

from archipel.core.lazy import export

export(__name__)
