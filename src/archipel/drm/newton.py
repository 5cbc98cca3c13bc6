"""Newton's method for smooth convex functions, accurate to rounding.

S. Boyd, L. Vandenberghe: Convex optimization, Cambridge, 2004, section 9.5 (Algorithm 9.5 with backtracking).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

ARMIJO = 1e-4
"""A step must bring this share of the decrease that the slope predicts."""
HALVINGS = 60
LAST_STEPS = 5
"""Further steps once the predicted decrease is below rounding: they reduce the gradient."""


class Point(Protocol):
    """A function's value and derivatives at one point."""

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
    """Minimise a convex function by Newton steps with backtracking.

    Args:
        at: evaluates the function at a point ``(d,)``: value, gradient, the value's rounding error, and whatever
            ``direction`` needs.
        direction: returns the Newton step −H⁻¹∇f, ``(d,)``.
        start: ``(d,)``.
        done: whether a point is good enough.
        max_iterations: the most steps.

    Returns:
        The last point, the function there, and the number of steps. The search also stops where no step along the
        direction lowers the value, because of rounding.

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
            # Near the minimum the decrease is below the value's rounding error; full steps are right there.
            if there.value <= here.value + ARMIJO * length * slope + here.noise + there.noise:
                break
            length /= 2
        else:
            return x, here, iteration
        x, here = x + length * step, there
    return x, here, max_iterations
