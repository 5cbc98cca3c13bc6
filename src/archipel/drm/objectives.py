"""FedSPM's objectives: the profile log empirical likelihood, the DRM block of its Q-function, and the surrogate.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; equation numbers are the paper's, see docs/methods/fedspm.md. All three
are functions of the log-ratios a_jl = γ_l + ξ_lᵀh(x_j) of population l = (i, c) at the pooled points. They are
differentiable by autograd, so any network or table that computes the log-ratios gets its gradient. Multipliers count as
constants: by the envelope theorem the derivative through them is zero, since they minimise the dual.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archipel.drm.multipliers import Multipliers, multipliers, scaled
from archipel.drm.tilts import unit_masses


def surrogate(log_ratios: Tensor, responsibilities: Tensor) -> Tensor:
    """Compute Q̃₂ = Σ_jl w_jl a_jl − Σ_j log Σ_l τ_l exp(a_jl), τ_l = Σ_j w_jl: the objective that FedSPM trains on.

    Up to a constant it is −(soft-target cross-entropy) of the logits log τ_l + a_jl.

    Args:
        log_ratios: ``(n, L)``.
        responsibilities: ``(n, L)`` w, 0 for components of clients that don't hold the point; rows sum to one.

    Returns:
        A float64 scalar.

    >>> w = torch.eye(2)  # a point each; both ratios are one: Q̃₂ = 0 − 2 log 2
    >>> surrogate(torch.zeros(2, 2), w)
    tensor(-1.3863, dtype=torch.float64)
    """
    a, w = _pair(log_ratios, responsibilities)
    return (w * a).sum() - torch.logsumexp(w.sum(0).log() + a, dim=1).sum()


def q2(log_ratios: Tensor, responsibilities: Tensor, solved: Multipliers | None = None) -> Tensor:
    """Compute Q₂ = Σ_jl w_jl a_jl − Σ_j log(1 + Σ_l λ_l (exp(a_jl) − 1)), λ from eq. (6); the surrogate replaces it.

    Its gradient is ∂Q₂/∂a_jl = w_jl − n r_j λ_l exp(a_jl).

    Args:
        log_ratios: ``(n, L)``.
        responsibilities: ``(n, L)`` w.
        solved: the multipliers of these log-ratios, if they are known; ``None``: they are solved for.

    Returns:
        A float64 scalar, differentiable in ``log_ratios``.

    Raises:
        ValueError: 0 is outside the convex hull of exp(a_j) − 1: there are no weights, and Q₂ is −∞.

    >>> q2(torch.zeros(2, 2), torch.eye(2))
    tensor(0., dtype=torch.float64)
    """
    a, w = _pair(log_ratios, responsibilities)
    return (w * a).sum() - _log_z(a, _solved(a, solved)).sum()


def profile(log_ratios: Tensor, log_shares: Tensor, solved: Multipliers | None = None) -> Tensor:
    """Compute pℓ = Σ_j log r_j + Σ_j log Σ_l exp(log_shares_jl + a_jl), the profile log empirical likelihood.

    At responsibilities w of the E-step (eq. 7) its gradient in the log-ratios is that of Q₂ (Lemma 2).

    Args:
        log_ratios: ``(n, L)``.
        log_shares: ``(n, L)`` log π_ic + log P_ic(y_j|x_j), and −∞ for the components of other clients.
        solved: the multipliers of these log-ratios, if they are known; ``None``: they are solved for.

    Returns:
        A float64 scalar, differentiable in both.

    Raises:
        ValueError: 0 is outside the convex hull of exp(a_j) − 1: there are no weights, and pℓ is −∞.

    >>> profile(torch.zeros(2, 1), torch.zeros(2, 1))  # r = 1/2 each
    tensor(-1.3863, dtype=torch.float64)
    """
    a, shares = _pair(log_ratios, log_shares)
    joint = torch.logsumexp(shares + a, dim=1).sum()
    n = torch.tensor(len(a), dtype=a.dtype)
    return joint - _log_z(a, _solved(a, solved)).sum() - n * n.log()


def responsibilities(log_ratios: Tensor, log_shares: Tensor) -> Tensor:
    """Eq. (7): w_jl ∝ exp(log_shares_jl + a_jl), ``(n, L)``; rows sum to one.

    >>> responsibilities(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    a, shares = _pair(log_ratios, log_shares)
    return torch.softmax(shares + a, dim=1)


def normalising(log_ratios: Tensor, tau: Tensor) -> Tensor:
    """Compute log Σ_j r_j, r_j = 1/Σ_l τ_l exp(a_jl): added to every γ, it gives the baseline mass one.

    It doesn't change the surrogate, which depends on differences between populations only; eqs. (4) to (6) change. At a
    critical point of the surrogate, adding it gives a critical point of Q₂ with λ_l = τ_l/n (App. C.5).

    Args:
        log_ratios: ``(n, L)``.
        tau: ``(L,)`` τ_l = Σ_j w_jl; scaled to the sum n.

    Returns:
        A float64 scalar.

    >>> normalising(torch.full((4, 1), 3.0), torch.tensor([4.0]))  # e³ becomes 1
    tensor(-3., dtype=torch.float64)
    """
    a, t = _pair(log_ratios, tau)
    return torch.logsumexp(-torch.logsumexp((len(a) * t / t.sum()).log() + a, dim=1), dim=0)


def balancing(log_ratios: Tensor, tau: Tensor) -> Tensor:
    """Compute the shift of each population's γ that gives all of them, and the baseline, mass one.

    The shifted γ maximise the surrogate for fixed ξ and h. With them λ_l = τ_l/n solves eq. (6) for any ξ and h: 0 is
    inside the hull. For ratios during training it is often outside.

    Args:
        log_ratios: ``(n, L)``.
        tau: ``(L,)`` τ_l = Σ_j w_jl, above 0; scaled as for :func:`normalising`.

    Returns:
        ``(L,)`` float64.

    >>> balancing(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 1.0]))
    tensor([ 0., -1.], dtype=torch.float64)
    """
    a, t = _pair(log_ratios.detach(), tau)
    shift = unit_masses(a, len(a) * t / t.sum())
    return shift + normalising(a + shift, t)


def _pair(log_ratios: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    if log_ratios.dim() != 2 or other.shape not in (log_ratios.shape, log_ratios.shape[1:]):
        raise ValueError(
            f"log-ratios have the shape {tuple(log_ratios.shape)} and the second argument {tuple(other.shape)}; both "
            "have points in rows and populations in columns."
        )
    return log_ratios.to(torch.float64), other.to(torch.float64)


def _solved(a: Tensor, solved: Multipliers | None) -> Tensor:
    found = multipliers(a) if solved is None else solved
    if not found.inside:
        raise ValueError(
            "no weights make all ratios integrate to one: 0 is outside the convex hull of exp(a) − 1. Ratios trained "
            "on the surrogate have an arbitrary common constant: add normalising(log_ratios, tau) to them first."
        )
    return found.values


def _log_z(a: Tensor, values: Tensor) -> Tensor:
    """Compute log(1 + Σ_l λ_l (exp(a_jl) − 1)), ``(n,)``, without overflow for large ratios."""
    top = a.detach().amax(1, keepdim=True).clamp(min=0)
    return top[:, 0] + ((-top[:, 0]).exp() + scaled(a, top) @ values).log()
