"""What clients learn and how: networks, criteria, tasks, local solvers."""
