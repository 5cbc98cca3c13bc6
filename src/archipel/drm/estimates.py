"""Means, distribution functions and quantiles of populations as weighted averages over pooled points.

J. Chen, Y. Liu: Quantile and quantile-function estimations under density ratio model, Annals of Statistics 41, 2013.
With the weights ``model.distributions`` of a fitted :class:`archipel.drm.DensityRatioModel`, every population learns
from the points of all. With ``model.empirical`` it uses its own points only, as without a model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archipel.data.arrays import Values
from archipel.drm.points import as_float64


def means(weights: Values, values: Values) -> Tensor:
    """Compute E_l f = Σ_j p_jl f(x_j).

    For f in the span of the basis h this is the population's own sample mean: there the model learns nothing from the
    other populations.

    Args:
        weights: ``(n, L)`` p; columns sum to one.
        values: ``(n,)`` or ``(n, k)`` f at the pooled points.

    Returns:
        ``(L,)`` or ``(L, k)`` float64.

    Raises:
        ValueError: NaN among the values.

    >>> means(torch.tensor([[0.5, 0.0], [0.5, 1.0]]), torch.tensor([2.0, 4.0]))
    tensor([3., 4.], dtype=torch.float64)
    """
    p, f = _pair(weights, values)
    return p.T @ f


def distribution_functions(weights: Values, values: Values, at: Values) -> Tensor:
    """Compute F_l(t) = Σ_j p_jl 1(f(x_j) ≤ t).

    Args:
        weights: ``(n, L)`` p; columns sum to one.
        values: ``(n,)`` f at the pooled points.
        at: ``(k,)`` the numbers t.

    Returns:
        ``(k, L)`` float64.

    Raises:
        ValueError: NaN among the values or the numbers t.

    >>> distribution_functions(torch.tensor([[0.5, 0.0], [0.5, 1.0]]), torch.tensor([2.0, 4.0]), torch.tensor([3.0]))
    tensor([[0.5000, 0.0000]], dtype=torch.float64)
    """
    ordered, cumulative = _steps(weights, values)
    t = as_float64(at, "at")
    if bool(t.isnan().any()):
        raise ValueError("at holds NaN; give the numbers at which to evaluate distribution functions.")
    below = torch.searchsorted(ordered, t, right=True)
    return torch.cat([cumulative.new_zeros(1, cumulative.shape[1]), cumulative])[below]


def quantiles(weights: Values, values: Values, levels: Values) -> Tensor:
    """Compute the smallest value at which F_l reaches a level, inf{t: F_l(t) ≥ u}.

    Args:
        weights: ``(n, L)`` p; columns sum to one.
        values: ``(n,)`` f at the pooled points.
        levels: ``(k,)`` u, floats above 0 and at most 1.

    Returns:
        ``(k, L)`` float64.

    Raises:
        ValueError: a level outside (0, 1].

    >>> quantiles(torch.tensor([[0.5, 0.0], [0.5, 1.0]]), torch.tensor([2.0, 4.0]), torch.tensor([0.5]))
    tensor([[2., 4.]], dtype=torch.float64)
    """
    u = as_float64(levels, "levels")
    if not bool(((u > 0) & (u <= 1)).all()):
        raise ValueError(f"levels are {u.tolist()}; they must be above 0 and at most 1.")
    ordered, cumulative = _steps(weights, values)
    # Sums of weights and levels in float32 have rounding errors. 0.05 must still select one point of twenty.
    rounding = max(
        1e-12, torch.finfo(levels.dtype).eps if isinstance(levels, Tensor) and levels.is_floating_point() else 0
    )
    reached = torch.searchsorted(cumulative.T.contiguous(), (u - rounding).expand(cumulative.shape[1], -1).contiguous())
    return ordered[reached.clamp(max=len(ordered) - 1)].T


def _steps(weights: Values, values: Values) -> tuple[Tensor, Tensor]:
    p, f = _pair(weights, values)
    if f.dim() != 1:
        raise ValueError(f"values have the shape {tuple(f.shape)}; give one number for each point, ({len(p)},).")
    ordered, index = f.sort(stable=True)
    return ordered, p[index].cumsum(0)


def _pair(weights: Values, values: Values) -> tuple[Tensor, Tensor]:
    p, f = as_float64(weights, "weights"), as_float64(values, "values")
    if p.dim() != 2 or not f.dim() or len(f) != len(p):
        raise ValueError(
            f"weights have the shape {tuple(p.shape)} and values {tuple(f.shape)}; give weights (points, "
            "populations) and a value for every pooled point."
        )
    if bool(f.isnan().any()):
        raise ValueError("values hold NaN, or are masked in places. Leave those points out of the fit.")
    return p, f
