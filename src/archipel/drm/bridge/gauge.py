"""The gauge of FedSPM's γ, and the multipliers in a gauge, from sums over clients.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; equation numbers are the paper's, see docs/methods/fedspm.md. Adding a
constant to all γ (the gauge) changes neither the surrogate, nor responsibilities, nor routing, so training determines
no value for it. Eqs. (4) to (6) do depend on it. The functions here compute two choices of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from archipel.drm.bridge.exchanges import Exchange
from archipel.drm.multipliers import LARGEST
from archipel.drm.newton import newton

ALIVE = 1.0
"""A population has a constraint if it has at least so many examples, τ_l ≥ 1."""
TOLERANCE, ENOUGH = 1e-10, 1e-8
"""Tolerances on the residual of eq. (6): the aim, and what is accepted if rounding ends the search."""
STEPS = 100


class Populations(NamedTuple):
    """The server's knowledge of the L populations (i, c) at one φ.

    Args:
        n: the number of training examples.
        tau: ``(L,)`` float64 τ_l = Σ_j w_jl.
        living: ``(A,)`` int64, the populations with τ_l ≥ 1. The others are dead: their γ is set so that their mass is
            one, which doesn't change the objectives. Then λ_l = 0, and eq. (6) is solved for the living.
        top: ``(L,)`` largest log-ratios.
        log_sum: ``(L,)`` log Σ_j exp(a_jl).
    """

    n: int
    tau: Tensor
    living: Tensor
    top: Tensor
    log_sum: Tensor

    @classmethod
    def at(cls, ask: Exchange) -> Populations:
        """Ask all clients, and combine their replies."""
        found = ask("totals")
        tau = found["tau"].flatten()
        living = (tau >= ALIVE).nonzero()[:, 0]
        top, log_sum = found["top"].double().amax(0), torch.logsumexp(found["log_sum"].double(), 0)
        return cls(int(ask.clients.sizes.sum()), tau, living, top, log_sum)

    @property
    def shares(self) -> Tensor:
        """``(L,)`` λ_l = τ_l/n of the living, scaled to sum to one, and 0 for the dead."""
        alive = torch.zeros_like(self.tau)
        alive[self.living] = self.tau[self.living]
        return alive / alive.sum()


def normalised(ask: Exchange, known: Populations) -> Tensor:
    """Compute log Σ_j r_j, r_j = 1/(n Σ_l λ_l exp(a_jl)): added to all γ, it gives the baseline mass one.

    With λ = τ/n this is the paper's r at critical points (App. C.5); see :func:`archipel.drm.normalising`.

    Returns:
        A float64 scalar.
    """
    return torch.logsumexp(ask("mass", offset=(known.n * known.shares).log()), 0)


def balanced(ask: Exchange, known: Populations, common: Tensor) -> Tensor:
    """Compute the shift of each γ that gives every population and the baseline mass one, ``(L,)``.

    It minimises the surrogate in γ for fixed ξ and ν. There λ = τ/n solves eq. (6) for any ξ and ν; see
    :func:`archipel.drm.balancing`. Dead populations are shifted by ``common``.
    """
    living = known.living
    target = known.n * known.shares[living]

    def at(gamma: Tensor) -> _Masses:
        found = ask("masses", living=living, offset=target.log() + gamma)
        p = found["p"].sum(0)
        noise = 16 * torch.finfo(torch.float64).eps * float(found["size"].sum() + (target * gamma).abs().sum())
        curvature = torch.diag(p) - found["pp"].sum(0)
        return _Masses(float(found["value"].sum() - target @ gamma), p - target, curvature, noise)

    def direction(here: _Masses) -> Tensor:
        step: Tensor = torch.linalg.pinv(here.curvature, hermitian=True, rtol=1e-14) @ -here.gradient
        return step

    def done(here: _Masses) -> bool:
        return float((here.gradient / target).abs().max()) < 1e-11

    gamma, _, _ = newton(at, direction, -known.log_sum[living], done, STEPS)
    shift = common.expand_as(known.tau).clone()
    offset = torch.full_like(known.tau, -torch.inf)
    offset[living] = target.log() + gamma
    shift[living] = gamma + torch.logsumexp(ask("mass", offset=offset), 0)
    return shift


def federated_multipliers(ask: Exchange, known: Populations, common: Tensor) -> Tensor | None:
    """Solve eq. (6) for λ, ``(L,)``, with ``common`` added to all γ; ``None`` if 0 isn't inside the convex hull.

    Like :func:`archipel.drm.multipliers`, which needs all rows in one place.
    """
    living = known.living
    top = (known.top[living] + common).clamp(min=0)
    if float(top.max()) > LARGEST:
        return None
    least = torch.tensor(1 / known.n, dtype=torch.float64)

    def at(mu: Tensor) -> _Dual:
        found = ask("dual", living=living, shift=common, top=top, mu=mu, least=least)
        gradient, size = found["gradient"].sum(0), found["size"].sum(0)
        low, high = float(found["low"].min()), float(found["high"].max())
        return _Dual(
            float(found["value"].sum()),
            gradient,
            found["hessian"].sum(0),
            torch.finfo(torch.float64).eps * float(found["noise"].sum()),
            float((gradient.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)).max()),
            low,
            (low >= 0 and high > 0) or (high <= 0 and low < 0),
        )

    def direction(here: _Dual) -> Tensor:
        unit = here.hessian.diagonal().sqrt()
        unit = torch.where(unit > 0, unit, 1.0)
        inverse = torch.linalg.pinv(here.hessian / unit / unit[:, None], hermitian=True, rtol=len(unit) * 2.3e-16)
        step: Tensor = -(inverse @ (here.gradient / unit)) / unit
        return step

    start = known.shares[living] * top.exp()
    mu, here, _ = newton(at, direction, start, lambda p: p.residual <= TOLERANCE or p.separates, STEPS)
    if here.separates or here.residual > ENOUGH or here.low <= -1:
        return None
    found = torch.zeros_like(known.tau)
    found[living] = mu * (-top).exp()
    return found


class _Masses(NamedTuple):
    value: float
    gradient: Tensor
    curvature: Tensor
    noise: float


class _Dual(NamedTuple):
    value: float
    gradient: Tensor
    hessian: Tensor
    noise: float
    residual: float
    low: float
    separates: bool
