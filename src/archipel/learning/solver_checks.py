"""Checks of local solvers where algorithms take them: what was given, what is allowed."""

from __future__ import annotations

from archipel.core.checks import kind_of
from archipel.learning.sgd import SGD


def solver(owner: str, **values: object) -> None:
    """Raises TypeError for anything but a local solver.

    >>> solver("FedAvg", local=0.1)
    Traceback (most recent call last):
    TypeError: FedAvg's local is a solver, SGD(lr=0.01, epochs=1), say; given a float.
    """
    for name, value in values.items():
        if not isinstance(value, SGD):
            raise TypeError(f"{owner}'s {name} is a solver, SGD(lr=0.01, epochs=1), say; given {kind_of(value)}.")


def plain_steps(owner: str, local: SGD) -> None:
    """Raises ValueError for a local solver whose end doesn't give away its mean gradient, (θ − y)/(steps · η)."""
    solver(owner, local=local)
    if local.momentum or local.lr == 0 or local.tolerance is not None:
        raise ValueError(
            f"{owner} reads gradients off where local steps end, so it needs plain steps: momentum=0 and lr above 0, "
            f"without a tolerance; given momentum={local.momentum}, lr={local.lr} and tolerance={local.tolerance}."
        )
