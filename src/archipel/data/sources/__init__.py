"""Data sets as they come, before they are divided over clients: one module a publisher, one function a data set."""

from archipel.core.lazy import export

export(__name__)
