"""The papers' tables and figures, as grids of runs."""
