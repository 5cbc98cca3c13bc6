"""Who carries the steps out: a loop, batches, or other processes, all behind one handle."""

from archipel.core.lazy import export

export(__name__)
