"""Bridge errors between FedSPM's surrogate and the DRM objective that it stands for, along a run.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 2.4 (Assumptions 4 and 5) and App. D.4.
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
from archipel.drm.exchanges import NAMES, Asked, Incomplete, Witness
from archipel.drm.gauge import Populations, balanced, multipliers, normalised
from archipel.engines.carrier import log

if TYPE_CHECKING:
    from archipel.fit import Moment

LEAST = 1e-9
"""‖∇f̃‖² must be above it for a ratio to count (App. D.4)."""
QUANTILE = 0.95


@dataclass
class BridgeErrors:
    """A callback for ``fit``: measures the surrogate f̃ and the DRM objective f, eq. (6) solved, around a round.

    With φ = (γ, ξ, ν), the state ζ^(t) after t rounds and the responsibilities w^(t) that round t + 1 trains on,

        f^(t) = −Q₂^(t)/n  and  f̃^(t) = −Q̃₂^(t)/n

    are evaluated on all n training examples at φ^(t) and at φ^(t+1), and their gradients at φ^(t). Divided by n they
    are what Theorem 1 is about, f̃ = Σ_i ρ_i f̃_i with means f̃_i over each client's examples. By Lemma 2 ∇f^(t)(φ^(t))
    = ∇_φ F(ζ^(t)), F = −pℓ/n, with the exact E-step and everybody taking part; otherwise some of w^(t) is older.

    f sees a constant added to all γ, which nothing else does; f is looked at in two places:

    - ``normalised``: φ with log Σ_j r_j, r = 1/Σ τ exp(·), added to every γ. The responsibilities, and so F's gradient,
      are those of the iterate. Eq. (6) may have no solution: 0 is outside the convex hull of exp(a) − 1, f = +∞, and
      there is a gap. Populations with less than one example, τ_l < 1, have no constraint.
    - ``balanced``: every γ_l moved to where each population has mass one. There λ = τ/n solves eq. (6), always. It is
      the smallest f for these ξ and ν, and f ≥ f̃ − log n with equality exactly there, but for what the dead contribute.

    For each measured t the round's record (in ``run.history`` and ``metrics.jsonl``) gets an entry ``"bridge"``, read
    by :func:`estimates`. Training isn't changed in one bit. Clients answer with sums over their examples, see
    :mod:`archipel.drm.exchanges`; a measurement costs two passes over all data and three with gradients.

    Args:
        every: measure at t = every, 2 · every, …; t = 0 is before any callback, and the first t after a resumption is
            left out.

    Raises:
        TypeError: on its first call, for another algorithm than FedSPM.

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
            Asked(moment.clients.everyone, Witness(moment.algorithm), ratio)
            for ratio in (before[1], moment.server["ratio"])
        ]
        try:
            moment.record["bridge"] = {"t": t} | measure(*places)
        except Incomplete as reason:
            log.warning("Bridge errors of round %d aren't measured: %s", t, reason)


def measure(before: Asked, after: Asked) -> dict[str, Any]:
    """The three objectives with the responsibilities that clients hold, before and after.

    Returns:
        By name, ``before`` and ``after``, values, and ``gradient``, ‖∇‖² before; ``None`` where eq. (6) has no
        solution.
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
    """One φ: what clients must know to give their terms of the objectives, and the objectives."""

    known: Populations
    message: dict[str, Tensor]
    solved: bool
    values: Tensor

    @classmethod
    def of(cls, ask: Asked) -> _Place:
        known = Populations.at(ask)
        common = normalised(ask, known)
        shift = balanced(ask, known, common)
        found = multipliers(ask, known, common)
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
    """The estimates of App. D.4 from a run's measurements; lists run over the measured rounds that aren't gaps.

    Args:
        t: the rounds.
        gaps: measured rounds at which f or f̃ isn't defined at one of the two iterates.
        gamma2: Γ̂₂, the 0.95 quantile of ‖∇f‖²/‖∇f̃‖² over t with ‖∇f̃‖² > 10⁻⁹; NaN where there is none.
        epsilon: ε̂^(t) = max(‖∇f‖² − Γ̂₂ ‖∇f̃‖², 0).
        delta: δ̂^(t) = max([f^(t)(φ^(t+1)) − f^(t)(φ^(t))] − [f̃^(t)(φ^(t+1)) − f̃^(t)(φ^(t))], 0).
        gradient: running mean of ‖∇f^(t)(φ^(t))‖².
        epsilon_sum: T⁻¹ Σ ε̂ over the first T of the list.
        delta_sum: T^(−1/2) Σ δ̂ over them.
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
    """Estimates bridge errors from the history of a run with :class:`BridgeErrors`.

    Args:
        history: ``run.history``.
        at: where f is looked at.

    Raises:
        ValueError: the history holds no measurement, or there is no such place.

    >>> one = {"before": 1.0, "after": 0.5, "gradient": 4.0}
    >>> other = {"before": 1.0, "after": 0.7, "gradient": 2.0}
    >>> estimates([{"bridge": {"t": 1, "surrogate": one, "normalised": other}}]).delta[0].__round__(3)
    0.2
    """
    one_of("estimates", "at", at, "normalised", "balanced")
    entries = [record["bridge"] for record in history if "bridge" in record]
    if not entries:
        raise ValueError(
            "The history holds no measured bridge errors. Give fit callbacks=[BridgeErrors()] and two rounds or more."
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
    """T^(−power) Σ of the first T."""
    sums = torch.tensor(values, dtype=torch.float64).cumsum(0)
    counts = torch.arange(1, len(values) + 1, dtype=torch.float64)
    found: list[float] = (sums / counts**power).tolist()
    return found
