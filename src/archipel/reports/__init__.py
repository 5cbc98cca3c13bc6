"""Tables and figures of runs and of grids of runs."""
