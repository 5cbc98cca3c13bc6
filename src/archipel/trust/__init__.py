"""Protection of a run: what a method reveals."""

from archipel.core.lazy import export

export(__name__)
