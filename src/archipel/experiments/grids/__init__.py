"""A grid of runs in parallel processes, which can be stopped and resumed."""

from archipel.core.lazy import export

export(__name__)
