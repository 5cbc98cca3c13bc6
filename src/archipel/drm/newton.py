"""Newton's method for smooth convex functions, where the last digits count.

S. Boyd, L. Vandenberghe: Convex optimization, Cambridge, 2004, section 9.5 (Algorithm 9.5 with backtracking).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

ARMIJO = 1e-4
"""The share of the decrease predicted by the slope that a step must bring."""
HALVINGS = 60
LAST_STEPS = 5
"""Steps after the decrease that is still to come has drowned in rounding: they polish the gradient."""


class Point(Protocol):
    """What a function is at one place."""

    @property
    def value(self) -> float: ...
    @property
    def gradient(self) -> Tensor: ...
    @property
    def noise(self) -> float: ...


P = TypeVar("P", bound=Point)


def newton(
    at: Callable[[Tensor], P],
    direction: Callable[[P], Tensor],
    start: Tensor,
    done: Callable[[P], bool],
    max_iterations: int,
) -> tuple[Tensor, P, int]:
    """Minimises a convex function by Newton steps with backtracking.

    Args:
        at: the function at a point ``(d,)``: value, gradient, the value's rounding error, and what ``direction`` needs.
        direction: a Newton step from there, −H⁻¹∇f, ``(d,)``.
        start: ``(d,)``.
        done: whether a place is good enough.
        max_iterations: steps at most.

    Returns:
        The last point, what the function is there, and the number of steps taken. It stops earlier than ``done`` says
        where no step along the direction lowers the value: rounding has the last word there.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> def cosh(x):  # value, gradient, and the second derivative
    ...     return SimpleNamespace(value=float(x.cosh().sum()), gradient=x.sinh(), curvature=x.cosh(), noise=1e-15)
    >>> x, _, _ = newton(
    ...     cosh,
    ...     lambda p: -p.gradient / p.curvature,
    ...     torch.full((2,), 3.0, dtype=torch.float64),
    ...     lambda p: bool(p.gradient.norm() < 1e-12),
    ...     50,
    ... )
    >>> bool(x.abs().max() < 1e-12)
    True
    """
    x, here, last = start, at(start), 0
    for iteration in range(max_iterations):
        if done(here):
            return x, here, iteration
        step = direction(here)
        slope = float(step @ here.gradient)
        last += -slope < here.noise
        if last > LAST_STEPS:
            return x, here, iteration
        length = 1.0
        for _ in range(HALVINGS):
            there = at(x + length * step)
            # Near the minimum the decrease drowns in the value's rounding error; full steps are right there.
            if there.value <= here.value + ARMIJO * length * slope + here.noise + there.noise:
                break
            length /= 2
        else:
            return x, here, iteration
        x, here = x + length * step, there
    return x, here, max_iterations
