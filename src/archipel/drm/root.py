"""Multipliers by the method of FedSPM's App. D.4: a root finder on eq. (6), and least squares if it fails.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026. It is here for comparison; :func:`archipel.drm.multipliers` uses that
the problem is convex.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from archipel.core.checks import above_zero
from archipel.drm.multipliers import Multipliers, checked, scaled

Array = NDArray[np.float64]


def multipliers_by_root(log_ratios: Tensor, *, start: Tensor | None = None, tolerance: float = 1e-10) -> Multipliers:
    """Solve eq. (6), n⁻¹ Σ_j g_jl / (1 + λᵀg_j) = 0 for all l, without its dual.

    The first method is Powell's hybrid method with the Jacobian −n⁻¹ Σ_j g_j g_jᵀ / (1 + λᵀg_j)². If it finds no root,
    a trust-region least-squares search continues from its last point.

    Args:
        log_ratios: ``(n, L)``, as for :func:`archipel.drm.multipliers`.
        start: ``(L,)`` λ to start from; ``None``: 1/(L + 1) each.
        tolerance: on the residual.

    Returns:
        Multipliers; ``iterations`` counts evaluations of the system. ``inside`` says whether a root with positive
        weights was found. Unlike with the dual, False doesn't prove that there is none.

    Raises:
        ValueError: as for :func:`archipel.drm.multipliers`.

    >>> multipliers_by_root(torch.tensor([[2.0], [2.0], [0.5], [0.5]]).log()).weights
    tensor([0.1667, 0.1667, 0.3333, 0.3333], dtype=torch.float64)
    """
    a = checked(log_ratios)
    above_zero("multipliers_by_root", tolerance=tolerance)
    n, L = a.shape
    top = a.amax(0).clamp(min=0)
    g: Array = scaled(a, top).numpy()
    given = torch.full((L,), 1 / (L + 1)) if start is None else torch.as_tensor(start)
    if given.shape != (L,):
        raise ValueError(f"start has the shape {tuple(given.shape)}; give a number for each of {L} columns.")
    first: Array = (given.to(torch.float64) * top.exp()).numpy()

    def system(mu: Array) -> Array:
        return np.asarray(g.T @ (1 / (1 + g @ mu)) / n)

    def jacobian(mu: Array) -> Array:
        rows = g / (1 + g @ mu)[:, None]
        return np.asarray(-rows.T @ rows / n)

    def residual(mu: Array) -> float:
        z = 1 + g @ mu
        if not z.min() > 0:
            return 1.0
        left, size = np.abs(g.T @ (1 / z)), np.abs(g).T @ (1 / z)
        return float(np.max(left / np.maximum(size, np.finfo(np.float64).tiny)))

    with np.errstate(all="ignore"):  # it may leave the region of positive weights
        found = optimize.root(system, first, jac=jacobian, method="hybr", tol=tolerance)
        mu, count = np.asarray(found.x), int(found.nfev)
        if residual(mu) > tolerance and np.isfinite(system(mu)).all():
            last = optimize.least_squares(
                system, mu, jac=jacobian, method="trf", xtol=None, ftol=None, gtol=1e-15, max_nfev=200
            )
            mu, count = np.asarray(last.x), count + int(last.nfev)
        left = residual(mu)
    if left > max(tolerance, 1e-8):
        return Multipliers.none(n, L, count, left)
    weights = torch.from_numpy(1 / (n * (1 + g @ mu)))
    values = torch.from_numpy(mu) * (-top).exp()
    return Multipliers(values, weights, float(weights.log().sum()), count, left, True)
