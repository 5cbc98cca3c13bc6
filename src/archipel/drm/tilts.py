"""The tilts γ, ξ of a density ratio model by dual empirical likelihood: a multinomial logistic regression.

J. Qin, B. Zhang: A goodness-of-fit test for logistic regression models based on case-control data, Biometrika 84, 1997;
A. Keziou, S. Leoni-Aubin: On empirical likelihood for semiparametric two-sample density ratio models, JSPI 138, 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.drm.newton import newton
from archipel.drm.separation import Separation, separation


class Tilts(NamedTuple):
    """The maximum: γ and ξ, ``(L, d + 1)``; γ isn't normalised. ``separated`` if it lies at infinity."""

    values: Tensor
    separated: Separation | None


def fit_tilts(features: Tensor, memberships: Tensor, ridge: float, tolerance: float, max_iterations: int) -> Tilts:
    """Maximise the dual empirical log-likelihood Σ_jl w_jl a_jl − Σ_j log Σ_l τ_l exp(a_jl) in γ and ξ.

    Newton steps are computed by conjugate gradients on standardised features. A step costs O(n · L · d). Directions
    without curvature, such as the gauge (the same added to all populations) or repeated features, do no harm.

    Args:
        features: ``(n, d)`` float64 h(x_j).
        memberships: ``(n, L)`` float64 w; rows sum to one.
        ridge: the penalty ridge/2 · ‖ξ‖² on standardised features.
        tolerance: on the gradient, as a share of n.
        max_iterations: the most Newton steps.

    Returns:
        The tilts. If the basis separates populations, the likelihood has no maximum: then these tilts are so far on
        the way to infinity that the distributions are those of the limit to ``tolerance``, and ``separated`` says so.

    Raises:
        ValueError: features too large to be squared, or too few Newton steps.
    """
    n, L = memberships.shape
    mean, std = features.mean(0), features.std(0, correction=0)
    if not bool(std.isfinite().all()):
        raise ValueError("features are so large that their squares aren't finite. Change their units.")
    std = torch.where(std > 1e-12 * features.abs().amax(0), std, 1.0)
    h = torch.cat([torch.ones(n, 1, dtype=features.dtype), (features - mean) / std], dim=1)
    loss = _CrossEntropy(h, memberships, ridge)
    flat, here, _ = newton(
        loss.at,
        loss.direction,
        torch.zeros(L * h.shape[1], dtype=torch.float64),
        lambda place: float(place.gradient.abs().max()) <= tolerance * n,
        max_iterations,
    )
    if float(here.gradient.abs().max()) > 1e-6 * n:
        raise ValueError(
            f"the fit isn't at its maximum after {max_iterations} Newton steps. A basis that separates populations has "
            "none: give ridge=1e-3 or more, or fewer features."
        )
    separated = None if ridge else separation(h, memberships, here.posterior, float(here.gradient.abs().max()))
    tilts = flat.reshape(L, -1)
    xi = tilts[:, 1:] / std
    return Tilts(torch.cat([(tilts[:, 0] - xi @ mean)[:, None], xi], dim=1), separated)


def unit_masses(log_ratios: Tensor, tau: Tensor) -> Tensor:
    """Maximise Σ_l τ_l γ_l − Σ_j log Σ_l τ_l exp(γ_l + a_jl) in γ, ``(L,)``.

    Args:
        log_ratios: ``(n, L)`` float64 a.
        tau: ``(L,)`` float64 τ, above 0.
    """
    start = -torch.logsumexp(log_ratios, 0)  # masses one if G were uniform

    def at(gamma: Tensor) -> _Place:
        logits = tau.log() + gamma + log_ratios
        norms = torch.logsumexp(logits, dim=1)
        posterior = (logits - norms[:, None]).exp()
        noise = 16 * torch.finfo(gamma.dtype).eps * float(norms.abs().sum() + (tau * gamma).abs().sum())
        return _Place(float(norms.sum() - tau @ gamma), posterior.sum(0) - tau, posterior, noise)

    def direction(here: _Place) -> Tensor:
        p = here.posterior
        curvature = torch.diag(p.sum(0)) - p.T @ p
        step: Tensor = torch.linalg.pinv(curvature, hermitian=True, rtol=1e-14) @ -here.gradient
        return step

    return newton(at, direction, start, lambda here: float((here.gradient / tau).abs().max()) < 1e-12, 100)[0]


class _Place(NamedTuple):
    value: float
    gradient: Tensor
    posterior: Tensor
    noise: float


class _CrossEntropy:
    """−Σ_jl w_jl log P(l|x_j), with logits log τ_l + γ_l + ξ_lᵀh(x_j) and targets w."""

    def __init__(self, h: Tensor, w: Tensor, ridge: float) -> None:
        self.h, self.w, self.log_tau = h, w, w.sum(0).log()
        self.penalty = torch.full((w.shape[1], h.shape[1]), ridge, dtype=h.dtype)
        self.penalty[:, 0] = 0  # γ stays free: every population's mass is one with any ridge

    def at(self, flat: Tensor) -> _Place:
        tilts = flat.reshape(self.penalty.shape)
        log_posterior = torch.log_softmax(self.log_tau + self.h @ tilts.T, dim=1)
        posterior = log_posterior.exp()
        value = -(self.w * log_posterior).sum() + (self.penalty * tilts.square()).sum() / 2
        gradient = (posterior - self.w).T @ self.h + self.penalty * tilts
        noise = 16 * torch.finfo(flat.dtype).eps * (len(self.h) + abs(float(value)))
        return _Place(float(value), gradient.flatten(), posterior, noise)

    def direction(self, here: _Place) -> Tensor:
        p = here.posterior

        def curvature(flat: Tensor) -> Tensor:
            v = flat.reshape(self.penalty.shape)
            s = self.h @ v.T
            s = p * (s - (p * s).sum(1, keepdim=True))
            return (s.T @ self.h + self.penalty * v).flatten()

        return conjugate_gradients(curvature, -here.gradient)


def conjugate_gradients(curvature: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve H x = target, ``(d,)``, for H ≥ 0 and a target in its range, to a relative min(0.01, √‖target‖).

    >>> conjugate_gradients(lambda v: 2 * v, torch.tensor([2.0, 0.0]))
    tensor([1., 0.])
    """
    x, left = torch.zeros_like(target), target
    along, square = left, left @ left
    # The tolerance shrinks with the gradient, so that Newton's convergence stays faster than linear.
    enough = min(0.01, float(square) ** 0.25) ** 2 * float(square)
    for _ in range(10 * len(target)):
        if float(square) <= enough:
            break
        image = curvature(along)
        bend = along @ image
        if not float(bend) > 0:  # no curvature beyond rounding
            break
        step = square / bend
        x, left = x + step * along, left - step * image
        new = left @ left
        along, square = left + (new / square) * along, new
    return x
