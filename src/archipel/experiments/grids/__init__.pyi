from archipel.experiments.grids.grid import Cell as Cell
from archipel.experiments.grids.grid import CellsFailed as CellsFailed
from archipel.experiments.grids.grid import run_grid as run_grid
