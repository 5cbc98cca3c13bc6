"""Bridge errors between FedSPM's surrogate and the DRM objective that it replaces, along a run.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 2.4 (Assumptions 4 and 5) and App. D.4. See docs/methods/fedspm.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from archipel.algorithms.fedspm import FedSPM
from archipel.core.checks import kind_of, one_of, positive_int
from archipel.core.trees import Tree, dot, tree_map
from archipel.drm.bridge.exchanges import NAMES, ClientSums, Exchange, Incomplete
from archipel.drm.bridge.gauge import Populations, balanced, federated_multipliers, normalised
from archipel.engines.carrier import log

if TYPE_CHECKING:
    from archipel.runs.callbacks import Moment

LEAST = 1e-9
"""A ratio counts if ‖∇f̃‖² is above this (App. D.4)."""
QUANTILE = 0.95


@dataclass
class BridgeErrors:
    """A callback for ``fit`` that measures the surrogate f̃ and the DRM objective f before and after a round.

    Let φ = (γ, ξ, ν), let ζ^(t) be the state after t rounds, and w^(t) the responsibilities that round t + 1 trains on.

        f^(t) = −Q₂^(t)/n  and  f̃^(t) = −Q̃₂^(t)/n

    are evaluated on all n training examples at φ^(t) and φ^(t+1), and their gradients at φ^(t). Eq. (6) is solved for
    f. Theorem 1 is about objectives divided by n: f̃ = Σ_i ρ_i f̃_i with means f̃_i over each client's examples. By
    Lemma 2, ∇f^(t)(φ^(t)) = ∇_φ F(ζ^(t)) with F = −pℓ/n, if the E-step is exact and all clients take part; otherwise
    some of w^(t) is older.

    Of all these, f alone depends on a constant added to all γ. It is evaluated at two choices of γ:

    - ``normalised``: log Σ_j r_j, r = 1/Σ τ exp(·), is added to every γ. The responsibilities, and so F's gradient,
      are those of the iterate. Eq. (6) may have no solution: then 0 is outside the convex hull of exp(a) − 1, f = +∞,
      and the round is a gap. Populations with less than one example, τ_l < 1, have no constraint.
    - ``balanced``: every γ_l is shifted so that each population has mass one. There λ = τ/n always solves eq. (6). f is
      the smallest for these ξ and ν. Always f ≥ f̃ − log n, with equality exactly there, except for dead populations.

    For each measured t the round's record (in ``run.history`` and ``metrics.jsonl``) gets an entry ``"bridge"``, which
    :func:`estimates` reads. Measuring doesn't change the training in any bit. Clients reply with sums over their
    examples, see :mod:`archipel.drm.bridge.exchanges`. A measurement costs two passes over all data and three with
    gradients.

    Args:
        every: measure at t = every, 2 · every, …. t = 0 comes before the first callback and isn't measured, nor is the
            first t after a resumption.

    Raises:
        TypeError: on its first call, for any algorithm but FedSPM.

    >>> BridgeErrors(every=0)
    Traceback (most recent call last):
    ValueError: BridgeErrors's every must be a whole number of at least 1; given 0.
    """

    every: int = 1
    _before: tuple[int, Tree] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        positive_int("BridgeErrors", every=self.every)

    @torch.no_grad()
    def __call__(self, moment: Moment) -> None:
        if not isinstance(moment.algorithm, FedSPM):
            raise TypeError(f"BridgeErrors measures runs of FedSPM; given {kind_of(moment.algorithm)}.")
        before, self._before = self._before, (moment.round, moment.server["ratio"])
        t = moment.round - 1
        if before is None or before[0] != t or t % self.every:
            return
        places = [
            Exchange(moment.clients.everyone, ClientSums(moment.algorithm), ratio)
            for ratio in (before[1], moment.server["ratio"])
        ]
        try:
            moment.record["bridge"] = {"t": t} | measure(*places)
        except Incomplete as reason:
            log.warning("The bridge errors of round %d weren't measured: %s", t, reason)


def measure(before: Exchange, after: Exchange) -> dict[str, Any]:
    """Measure the three objectives before and after a round, with the responsibilities that clients hold.

    Returns:
        For each objective its values ``before`` and ``after``, and ``gradient``, ‖∇‖² before; ``None`` if eq. (6) has
        no solution.
    """
    first, second = _Place.of(before), _Place.of(after)
    gradients = tree_map(lambda t: t.sum(0) / first.known.n, before("gradients", **first.message))
    found: dict[str, Any] = {}
    for k, name in enumerate(NAMES):
        entry: dict[str, float | None] = {
            "before": float(first.values[k]),
            "after": float(second.values[k]),
            "gradient": float(dot(gradients[name], gradients[name])),
        }
        if name == "normalised":
            if not first.solved:
                entry |= {"before": None, "gradient": None}
            if not second.solved:
                entry |= {"after": None}
        found[name] = entry
    return found


@dataclass(frozen=True)
class _Place:
    """The objectives at one φ, and the message from which clients compute their terms of them."""

    known: Populations
    message: dict[str, Tensor]
    solved: bool
    values: Tensor

    @classmethod
    def of(cls, ask: Exchange) -> _Place:
        known = Populations.at(ask)
        common = normalised(ask, known)
        shift = balanced(ask, known, common)
        found = federated_multipliers(ask, known, common)
        message = {
            "log_tau": known.tau.clamp(min=1e-30).log(),
            "shift": common,
            "lambda": torch.zeros_like(known.tau) if found is None else found,
            "balance": known.shares.log() + shift,
        }
        terms = ask("values", **message).sum(0)
        constants = torch.stack([torch.zeros_like(common), common * known.tau.sum(), known.tau @ shift])
        return cls(known, message, found is not None, (terms - constants) / known.n)


@dataclass(frozen=True)
class Estimates:
    """The estimates of App. D.4 from a run's measurements. Lists have an entry for each measured round but gaps.

    Args:
        t: the rounds.
        gaps: measured rounds at which f or f̃ isn't defined at one of the two iterates.
        gamma2: Γ̂₂, the 0.95 quantile of ‖∇f‖²/‖∇f̃‖² over t with ‖∇f̃‖² > 10⁻⁹; NaN if there is no such t.
        epsilon: ε̂^(t) = max(‖∇f‖² − Γ̂₂ ‖∇f̃‖², 0).
        delta: δ̂^(t) = max([f^(t)(φ^(t+1)) − f^(t)(φ^(t))] − [f̃^(t)(φ^(t+1)) − f̃^(t)(φ^(t))], 0).
        gradient: running mean of ‖∇f^(t)(φ^(t))‖².
        epsilon_sum: T⁻¹ Σ ε̂ over the first T entries.
        delta_sum: T^(−1/2) Σ δ̂ over the first T entries.
    """

    t: list[int]
    gaps: list[int]
    gamma2: float
    epsilon: list[float]
    delta: list[float]
    gradient: list[float]
    epsilon_sum: list[float]
    delta_sum: list[float]


def estimates(history: Sequence[dict[str, Any]], at: Literal["normalised", "balanced"] = "normalised") -> Estimates:
    """Estimate bridge errors from the history of a run with :class:`BridgeErrors`.

    Args:
        history: ``run.history``.
        at: the choice of γ at which f is evaluated.

    Raises:
        ValueError: a history without measurements, or another ``at``.

    >>> one = {"before": 1.0, "after": 0.5, "gradient": 4.0}
    >>> other = {"before": 1.0, "after": 0.7, "gradient": 2.0}
    >>> estimates([{"bridge": {"t": 1, "surrogate": one, "normalised": other}}]).delta[0].__round__(3)
    0.2
    """
    one_of("estimates", "at", at, "normalised", "balanced")
    entries = [record["bridge"] for record in history if "bridge" in record]
    if not entries:
        raise ValueError(
            "The history holds no bridge errors. Run fit with callbacks=[BridgeErrors()] for at least two rounds."
        )
    whole_ones = [entry for entry in entries if None not in entry[at].values()]
    gaps = [entry["t"] for entry in entries if None in entry[at].values()]
    f, surrogate = ([entry[name] for entry in whole_ones] for name in (at, "surrogate"))
    pairs = [(a["gradient"], b["gradient"]) for a, b in zip(f, surrogate, strict=True)]
    ratios = torch.tensor([a / b for a, b in pairs if b > LEAST], dtype=torch.float64)
    gamma2 = float(ratios.quantile(QUANTILE)) if len(ratios) else math.nan
    epsilon = [max(a - gamma2 * b, 0.0) for a, b in pairs]
    delta = [
        max((a["after"] - a["before"]) - (b["after"] - b["before"]), 0.0) for a, b in zip(f, surrogate, strict=True)
    ]
    return Estimates(
        [entry["t"] for entry in whole_ones],
        gaps,
        gamma2,
        epsilon,
        delta,
        _cumulated([a for a, _ in pairs], 1.0),
        _cumulated(epsilon, 1.0),
        _cumulated(delta, 0.5),
    )


def _cumulated(values: Sequence[float], power: float) -> list[float]:
    """Return T^(−power) Σ over the first T values."""
    sums = torch.tensor(values, dtype=torch.float64).cumsum(0)
    counts = torch.arange(1, len(values) + 1, dtype=torch.float64)
    found: list[float] = (sums / counts**power).tolist()
    return found
