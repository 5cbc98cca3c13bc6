"""Benchmarks: a grid of runs that can be stopped and gone on with, and the papers' tables and figures made from it."""

from archipel.experiments.grids.grid import Cell, CellsFailed, run_grid

__all__ = ["Cell", "CellsFailed", "run_grid"]
