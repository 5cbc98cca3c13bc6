"""The clients' states: one table, in memory or on disk, and checkpoints."""
