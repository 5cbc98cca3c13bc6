"""Serve what Archipel trained, without Archipel and without torch."""

__version__ = "0.1.0"
