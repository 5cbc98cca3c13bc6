"""Lagrange multipliers of empirical likelihood under density ratio constraints: eq. (6), by its convex dual.

Equation numbers are those of Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026, see docs/methods/fedspm.md. The dual and
its extension log* are in
A. Owen: Empirical likelihood ratio confidence regions, Annals of Statistics 18, 1990, and A. Owen: Empirical
likelihood, 2001, section 3.14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.core.checks import above_zero, positive_int
from archipel.drm.newton import newton
from archipel.drm.points import as_float64

LARGEST = 600.0
"""Log-ratios above this would need weights r below 10⁻²⁶⁰."""
ROWS = 8192
"""Points of the Hessian that are summed in one product."""


@dataclass(frozen=True)
class Multipliers:
    """A solution of eq. (6), and its residual.

    Args:
        values: ``(L,)`` float64, λ. If constraints are redundant (equal ratios, or a ratio of one everywhere), this is
            one of many solutions; all have the same weights.
        weights: ``(n,)`` r, eq. (5); above 0, with sum one.
        value: Σ_j log r_j, at most −n log n.
        iterations: Newton steps.
        residual: the residual of eq. (6): the largest |Σ_j r_j g_jl| / Σ_j r_j |g_jl|, between 0 and 1.
        inside: whether 0 is inside the convex hull of the g_j, so that weights exist. If not, ``values`` and
            ``weights`` are NaN and ``value`` is −∞.
    """

    values: Tensor
    weights: Tensor = field(repr=False)
    value: float
    iterations: int
    residual: float
    inside: bool

    @classmethod
    def none(cls, n: int, L: int, iterations: int, residual: float) -> Multipliers:
        """Make the result for constraints that no weights satisfy."""
        nan = torch.full((n + L,), math.nan, dtype=torch.float64)
        return cls(nan[:L], nan[L:], -math.inf, iterations, residual, False)


def multipliers(
    log_ratios: Tensor, *, start: Tensor | None = None, tolerance: float = 1e-10, max_iterations: int = 100
) -> Multipliers:
    """Maximise Σ_j log r_j subject to Σ_j r_j = 1 and Σ_j r_j exp(a_jl) = 1 for all l (eq. 4).

    With g_jl = exp(a_jl) − 1 the weights are r_j = 1/(n (1 + λᵀg_j)) (eq. 5), where λ minimises the dual

        −Σ_j log(1 + λᵀg_j),

    which is convex. Its gradient is −n Σ_j r_j g_j, so its minimum solves eq. (6). It is found by Newton steps with
    line search. Below 1/n the logarithm is continued as a parabola (Owen's log*): the minimum stays, since r_j ≤ 1, and
    the dual is finite everywhere. If the search meets a λ with λᵀg_j ≥ 0 for all j, not all zero, then no weights above
    0 satisfy the constraints: 0 isn't inside the hull, the dual has no minimum, and ``inside`` is False.

    Args:
        log_ratios: ``(n, L)`` a_jl = γ_l + ξ_lᵀh(x_j), log dP_l/dG of population l = (i, c) at pooled point j; at most
            600.
        start: ``(L,)`` λ to start from: the last round's, or Σ_j w_jl/n. ``None``: 1/(L + 1) each.
        tolerance: on the residual.
        max_iterations: the most Newton steps.

    Returns:
        Multipliers. ``inside`` is also False if the dual still falls after ``max_iterations``, as it does for 0 on the
        boundary of the hull.

    Raises:
        ValueError: log-ratios that aren't a finite ``(n, L)`` matrix or too large, or a start of another length.

    >>> found = multipliers(torch.tensor([[2.0], [2.0], [0.5], [0.5]]).log())
    >>> found.weights  # 2 p + 0.5 (1 − p) = 1: a third of the mass on the first two
    tensor([0.1667, 0.1667, 0.3333, 0.3333], dtype=torch.float64)
    >>> multipliers(torch.tensor([[2.0], [1.5]]).log()).inside  # no average of 2 and 1.5 is 1
    False
    """
    a = checked(log_ratios)
    above_zero("multipliers", tolerance=tolerance)
    positive_int("multipliers", max_iterations=max_iterations)
    n, L = a.shape
    given = torch.full((L,), 1 / (L + 1)) if start is None else torch.as_tensor(start)
    if given.shape != (L,) or not bool(given.isfinite().all()):
        raise ValueError(f"start has the shape {tuple(given.shape)}; give a finite number for each of {L} columns.")
    top = a.amax(0).clamp(min=0)
    dual = _Dual(scaled(a, top))
    first = given.to(torch.float64) * top.exp()
    mu, here, iterations = newton(
        dual.at, dual.direction, first, lambda point: point.residual <= tolerance or point.separates, max_iterations
    )
    # If rounding ends the search early, the residual may be as small as float64 allows.
    if here.separates or here.residual > max(tolerance, 1e-8):
        return Multipliers.none(n, L, iterations, here.residual)
    weights = 1 / (n * here.z)
    return Multipliers(
        mu * (-top).exp(), weights, float(weights.log().sum()), iterations, here.residual, bool(here.z.min() > 0)
    )


def checked(log_ratios: Tensor) -> Tensor:
    """Convert log-ratios to float64; raise ValueError for invalid ones."""
    a = as_float64(log_ratios, "log_ratios").detach()
    if a.dim() != 2 or 0 in a.shape:
        raise ValueError(
            f"log_ratios has the shape {tuple(a.shape)}; give (points, populations), at least one of each."
        )
    if not bool(a.isfinite().all()):
        raise ValueError("log_ratios holds NaN or infinite values. Check whether the run has diverged.")
    if bool((a > LARGEST).any()):
        raise ValueError(
            f"log_ratios goes up to {float(a.max()):.4g}; above {LARGEST:.0f} weights can't be represented. Add "
            "balancing(log_ratios, tau) to the columns, or find out why ratios diverge."
        )
    return a


def scaled(a: Tensor, top: Tensor) -> Tensor:
    """Compute g_jl exp(−top), at most 1; ``top`` is the largest a of a column or a row, and at least 0.

    Near a = 0 there is no cancellation.
    """
    near = torch.expm1(a.clamp(max=30)) * (-top).exp()
    return torch.where(a < 30, near, (a - top).exp() - (-top).exp())


class _Place(NamedTuple):
    value: float
    gradient: Tensor
    z: Tensor
    slope: Tensor
    curvature: Tensor
    size: Tensor
    noise: float
    residual: float
    separates: bool


class _Dual:
    """−Σ_j log*(1 + μᵀg_j)."""

    def __init__(self, g: Tensor) -> None:
        self.g, self.least = g, 1 / len(g)

    def at(self, mu: Tensor) -> _Place:
        t = self.g @ mu
        value, slope, curvature = log_star(1 + t, self.least)
        gradient = -(self.g.T @ slope)
        size = sum((s.abs() @ g.abs() for s, g in zip(slope.split(ROWS), self.g.split(ROWS), strict=True)), 0 * mu)
        residual = float((gradient.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)).max())
        low, high = float(t.min()), float(t.max())
        separates = (low >= 0 and high > 0) or (high <= 0 and low < 0)
        # The rounding error of z = 1 + gμ. Its terms may be much larger than z if columns are nearly equal.
        noise = torch.finfo(mu.dtype).eps * float(slope.abs().sum() + size @ mu.abs() + value.abs().sum())
        return _Place(-float(value.sum()), gradient, 1 + t, slope, curvature, size, noise, residual, separates)

    def direction(self, here: _Place) -> Tensor:
        """Compute the Newton step, the shortest one if constraints are redundant."""
        L = self.g.shape[1]
        hessian = self.g.new_zeros(L, L)
        roots = here.curvature.sqrt()
        for g, root in zip(self.g.split(ROWS), roots.split(ROWS), strict=True):
            rows = g * root[:, None]
            hessian.addmm_(rows.T, rows)
        unit = hessian.diagonal().sqrt()
        unit = torch.where(unit > 0, unit, 1.0)
        values, vectors = torch.linalg.eigh(hessian / unit / unit[:, None])
        kept = values > L * torch.finfo(values.dtype).eps * values[-1]
        along = vectors.T @ (here.gradient / unit)
        unresolved = along[~kept].norm() > 1e-12 * (here.size / unit).norm()
        if bool(unresolved):
            # Columns differ by less than the square root of rounding, which g resolves and the Hessian doesn't.
            rows = self.g * (roots[:, None] / unit)
            target = (here.slope / roots)[:, None]
            step: Tensor = torch.linalg.lstsq(rows, target, driver="gelsd").solution[:, 0]
        else:
            step = -vectors[:, kept] @ (along[kept] / values[kept])
        return step / unit


def log_star(z: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Owen's log*: log z from ``least`` on, and below it the parabola with equal value and two derivatives.

    Returns:
        The function, its derivative and minus its second derivative, each of z's shape.

    >>> log_star(torch.tensor([1.0, 0.0]), 1.0)
    (tensor([ 0.0000, -1.5000]), tensor([1., 2.]), tensor([1., 1.]))
    """
    usual = z >= least
    safe = torch.where(usual, z, least)
    x = z / least
    value = torch.where(usual, safe.log(), math.log(least) - 1.5 + 2 * x - x.square() / 2)
    slope = torch.where(usual, 1 / safe, (2 - x) / least)
    return value, slope, safe.square().reciprocal()
