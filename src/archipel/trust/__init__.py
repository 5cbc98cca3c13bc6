"""Protection of a run: fault plans, bounds on replies, robust rules, privacy, and what a method reveals."""

from archipel.core.lazy import export

export(__name__)
