"""A pool of worker processes that share memory with the run."""
