"""M normals in d dimensions: densities, moments under responsibilities, and the normals that have given moments.

Normals are ``{"mean": (M, d), "covariance": (M, d, d)}``. All is float64, whatever comes in: second moments about 0
lose digits in float32 as soon as a mean is large beside its deviation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.trees import Tree

LEAST = 1e-6
"""The least part of the examples that moves a normal; one that has less keeps its mean and covariance."""


def log_normal(e: Tensor, normals: Tree) -> Tensor:
    """Log N(e; μ_a, Σ_a), ``(n, M)``, by Σ_a = L_a L_aᵀ.

    >>> standard = {"mean": torch.zeros(1, 2), "covariance": torch.eye(2)[None]}
    >>> log_normal(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), standard) + math.log(2 * math.pi)
    tensor([[ 0.],
            [-1.]], dtype=torch.float64)
    """
    mean, covariance = normals["mean"].double(), normals["covariance"].double()
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device).expand_as(factor)
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
    z = torch.einsum("ade,nae->nad", whitening, e.double()[:, None] - mean)
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * mean.shape[1] * math.log(2 * math.pi)
    log_density: Tensor = -0.5 * z.square().sum(2) - log_volume
    return log_density


def moments_of(e: Tensor, gamma: Tensor, count: Tensor) -> Tree:
    """N_a = Σ_j γ_j(a), s_a = Σ_j γ_j(a) e_j and S_a = Σ_j γ_j(a) e_j e_jᵀ, divided by ``count``.

    Args:
        e: ``(n, d)``.
        gamma: ``(n, M)``, 0 for padding.
        count: what to divide by, of shape ``()``: the mean over clients, weighted by it, is then the pooled one.
    """
    e, gamma = e.double(), gamma.double()
    return {
        "weight": gamma.sum(0) / count,
        "sum": torch.einsum("na,nd->ad", gamma, e) / count,
        "square": torch.einsum("na,nd,ne->ade", gamma, e, e) / count,
    }


def refitted(normals: Tree, moments: Tree, ridge: float) -> Tree:
    """Return the normals with these moments, μ = s/N and Σ = S/N − μμᵀ; those without examples stay as they were.

    Args:
        normals: the ones before.
        moments: those of :func:`moments_of`, or their mean over clients.
        ridge: is added to Σ's diagonal, in units of the mean variance of all examples together.

    >>> e = torch.tensor([[0.0], [2.0], [7.0]])
    >>> gamma = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    >>> old = {"mean": torch.full((2, 1), 9.0).double(), "covariance": torch.full((2, 1, 1), 5.0).double()}
    >>> new = refitted(old, moments_of(e, gamma, torch.tensor(3)), ridge=1e-9)
    >>> new["mean"].flatten().tolist(), [round(v, 6) for v in new["covariance"].flatten().tolist()]
    ([1.0, 9.0], [1.0, 5.0])
    """
    alive = moments["weight"] > LEAST
    mean, covariance = _normal(moments, torch.clamp(moments["weight"], min=LEAST))
    identity = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
    covariance = covariance + ridge * _mean_variance(moments) * identity
    return {
        "mean": torch.where(alive[:, None], mean, normals["mean"]),
        "covariance": torch.where(alive[:, None, None], covariance, normals["covariance"]),
    }


def drawn(pooled: Tree, count: int, ridge: float, key: Tensor) -> Tree:
    """Draw normals to start from: of the pooled moments' covariance, around means drawn from their normal.

    Args:
        pooled: moments with γ = 1, M = 1.
        count: how many normals to make.
        ridge: as in :func:`refitted`.
        key: int64 of shape ``()``.
    """
    nothing = {"mean": pooled["sum"], "covariance": pooled["square"]}
    start = refitted(nothing, pooled, ridge)
    mean, covariance = start["mean"], start["covariance"]
    noise = keys.normal(key, count, mean.shape[1], dtype=mean.dtype)
    return {
        "mean": mean + noise @ torch.linalg.cholesky(covariance[0]).mT,
        "covariance": covariance.expand(count, -1, -1).clone(),
    }


def divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """Return KL[N(mean, variance) ‖ N(other)], ½ Σ [ln(Σ₂/Σ₁) + (Σ₁ + (μ₁ − μ₂)²)/Σ₂ − 1], over the last dimension."""
    ratio = variance / other_variance
    return 0.5 * (ratio - 1 - ratio.log() + (mean - other_mean).square() / other_variance).sum(-1)


def _normal(moments: Tree, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances, ``(M, d)`` and ``(M, d, d)``."""
    mean = moments["sum"] / weight[:, None]
    return mean, moments["square"] / weight[:, None, None] - mean[:, :, None] * mean[:, None, :]


def _mean_variance(moments: Tree) -> Tensor:
    """Average over coordinates of all examples' variance.

    Above 0, and above the rounding of S/N − μμᵀ, even if every input has the same embedding.
    """
    pooled = {name: t.sum(0, keepdim=True) for name, t in moments.items()}
    _, covariance = _normal(pooled, pooled["weight"])
    square = (pooled["square"] / pooled["weight"][:, None, None]).diagonal(dim1=1, dim2=2).mean()
    return torch.clamp(torch.maximum(covariance.diagonal(dim1=1, dim2=2).mean(), 1e-6 * square), min=1e-12)
