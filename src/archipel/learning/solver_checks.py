"""Checks of local solvers by what a method needs of them."""

from __future__ import annotations

from archipel.learning.sgd import SGD


def plain_steps(owner: str, local: SGD) -> None:
    """Raise ValueError for a local solver whose end doesn't give away its mean gradient, (θ − y)/(steps · η)."""
    if local.momentum or local.lr == 0 or local.tolerance is not None:
        raise ValueError(
            f"{owner} reads gradients off where local steps end, so it needs plain steps: momentum=0 and lr above 0, "
            f"without a tolerance; given momentum={local.momentum}, lr={local.lr} and tolerance={local.tolerance}."
        )


def starts_afresh(owner: str, local: SGD) -> None:
    """Raise ValueError for a local solver that keeps its momentum, in a method whose local problems change."""
    if local.keep_momentum:
        raise ValueError(f"{owner} starts every local problem afresh: set keep_momentum=False in its local solver.")


def one_run(owner: str, solver: SGD) -> None:
    """Raise ValueError for a solver that reaches beyond one run.

    >>> one_run("FedAvgFT's tuning", SGD(epochs=1, schedule="cosine"))
    Traceback (most recent call last):
    ValueError: FedAvgFT's tuning is one run outside of all rounds: give it schedule='constant' and keep_momentum=False.
    """
    if solver.schedule != "constant" or solver.keep_momentum:
        raise ValueError(
            f"{owner} is one run outside of all rounds: give it schedule='constant' and keep_momentum=False."
        )
