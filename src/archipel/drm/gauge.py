"""Where on its gauge orbit an iterate of FedSPM is looked at, and the multipliers there; by sums over clients.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; equation numbers are the paper's. The surrogate, the responsibilities
and the routing don't see a constant that is added to all γ, so that training leaves it anywhere; eqs. (4) to (6) do see
it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from archipel.drm.exchanges import Asked
from archipel.drm.multipliers import LARGEST
from archipel.drm.newton import newton

ALIVE = 1.0
"""Examples that a population must have, τ_l ≥ 1, for its constraint to be there."""
TOLERANCE, ENOUGH = 1e-10, 1e-8
"""On the residual of eq. (6): what is sought, and what is taken where rounding ends the search."""
STEPS = 100


class Populations(NamedTuple):
    """What the server knows of the L populations (i, c) at one φ.

    Args:
        n: training examples.
        tau: ``(L,)`` float64 τ_l = Σ_j w_jl.
        living: ``(A,)`` int64, those with τ_l ≥ 1. The others have died: their γ is held to be where their mass is one,
            which costs the objectives nothing, so that λ_l = 0 and eq. (6) is solved for the living.
        top: ``(L,)`` largest log-ratios.
        log_sum: ``(L,)`` log Σ_j exp(a_jl).
    """

    n: int
    tau: Tensor
    living: Tensor
    top: Tensor
    log_sum: Tensor

    @classmethod
    def at(cls, ask: Asked) -> Populations:
        """Asks for them."""
        found = ask("totals")
        tau = found["tau"].flatten()
        living = (tau >= ALIVE).nonzero()[:, 0]
        top, log_sum = found["top"].double().amax(0), torch.logsumexp(found["log_sum"].double(), 0)
        return cls(int(ask.clients.sizes.sum()), tau, living, top, log_sum)

    @property
    def shares(self) -> Tensor:
        """``(L,)`` λ_l = τ_l/n of the living, made to sum to one, and 0 of the dead."""
        alive = torch.zeros_like(self.tau)
        alive[self.living] = self.tau[self.living]
        return alive / alive.sum()


def normalised(ask: Asked, known: Populations) -> Tensor:
    """What is to be added to all γ for the baseline to have mass one: log Σ_j r_j, r_j = 1/(n Σ_l λ_l exp(a_jl)).

    With λ = τ/n this is the paper's r at critical points (App. C.5); see :func:`archipel.drm.normalising`.

    Returns:
        A float64 scalar.
    """
    return torch.logsumexp(ask("mass", offset=(known.n * known.shares).log()), 0)


def balanced(ask: Asked, known: Populations, common: Tensor) -> Tensor:
    """What is to be added to each γ for every population and the baseline to have mass one, ``(L,)``.

    It minimises the surrogate in γ, with ξ and ν as they are; there eq. (6) has the solution λ = τ/n whatever they are;
    see :func:`archipel.drm.balancing`. γ of the dead gets ``common``.
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


def multipliers(ask: Asked, known: Populations, common: Tensor) -> Tensor | None:
    """λ of eq. (6) with ``common`` added to all γ, ``(L,)``; ``None``: 0 isn't inside the convex hull.

    As :func:`archipel.drm.multipliers`, which has all rows at hand.
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
