"""An estimate with its interval, and the intervals' formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

CONFIDENCE = 0.95
TINY = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A value, its confidence interval, and how far the value may be off because scores were binned.

    Args:
        value: the estimate; ``None`` if the examples don't determine it, as AUC without one of the classes.
        low: lower limit of the interval; ``None``: there is none.
        high: upper limit.
        error: a bound on |value − what the unbinned scores give|. The interval is widened by it.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    error: float = 0.0

    def widened(self, error: float, low: float = 0.0, high: float = 1.0) -> Estimate:
        """Return the estimate with the bound of binning, its interval widened by it within [low, high]."""
        if self.low is None or self.high is None:
            return Estimate(self.value, error=error)
        return Estimate(self.value, max(low, self.low - error), min(high, self.high + error), error)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate in JSON's types."""
        return asdict(self)


NOTHING = Estimate(None)


def z(confidence: float = CONFIDENCE) -> float:
    """Return the normal quantile of a two-sided interval."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(hits: float, n: float, confidence: float = CONFIDENCE) -> Estimate:
    """Return a proportion with Wilson's score interval.

    The limits are the p with |p̂ − p| = z √(p(1 − p)/n). E. B. Wilson: Probable inference, the law of succession, and
    statistical inference. JASA 22, 1927.

    Args:
        hits: successes, 0 ≤ hits ≤ n.
        n: trials; without any there is no estimate.
        confidence: of the two-sided interval.

    >>> found = wilson(0, 12)
    >>> found.value, found.low, round(found.high, 3)
    (0.0, 0.0, 0.242)
    """
    if not n:
        return NOTHING
    p, q = hits / n, z(confidence) ** 2
    centre = (p + q / (2 * n)) / (1 + q / n)
    half = math.sqrt(q * p * (1 - p) / n + q * q / (4 * n * n)) / (1 + q / n)
    # At 0 and n the limits are exact; rounding must not say otherwise.
    return Estimate(p, 0.0 if hits == 0 else centre - half, 1.0 if hits == n else centre + half)


def mean_of_independent(parts: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates, with an interval that recovers their variances (MOVER).

    low = θ̂ − √Σ(θ̂_k − low_k)²/K and high = θ̂ + √Σ(high_k − θ̂_k)²/K. G. Y. Zou, A. Donner: Construction of confidence
    limits about effect measures. Statistics in Medicine 27, 2008.

    Args:
        parts: if one of them is missing, so is the mean.
    """
    values, lows, highs = _limits(parts)
    if not values:
        return NOTHING
    k, mean = len(values), math.fsum(values) / len(values)
    down = math.sqrt(math.fsum((v - low) ** 2 for v, low in zip(values, lows, strict=True))) / k
    up = math.sqrt(math.fsum((high - v) ** 2 for v, high in zip(values, highs, strict=True))) / k
    return Estimate(mean, max(0.0, mean - down), min(1.0, mean + up))


def mean_of_dependent(parts: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates from the same examples: the means of their limits and of their bounds.

    The standard error of a mean is at most the mean of the standard errors, whatever the dependence, so that the
    interval is rather too wide than too narrow.

    Args:
        parts: if one of them is missing, so is the mean.
    """
    values, lows, highs = _limits(parts)
    if not values:
        return NOTHING
    k = len(values)
    error = math.fsum(part.error for part in parts) / k
    return Estimate(math.fsum(values) / k, math.fsum(lows) / k, math.fsum(highs) / k, error)


def _limits(parts: Sequence[Estimate]) -> tuple[list[float], list[float], list[float]]:
    if any(part.value is None or part.low is None or part.high is None for part in parts):
        return [], [], []
    return ([p.value or 0.0 for p in parts], [p.low or 0.0 for p in parts], [p.high or 0.0 for p in parts])


def auc_interval(auc: float, positives: int, negatives: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return an AUC with Newcombe's score interval on Hanley and McNeil's variance.

    The limits are the θ with |AUC − θ| = z √V(θ),

        V(θ) = θ(1 − θ) (2N − 1 − 3(N − 1)/((2 − θ)(1 + θ))) / (mn),   N = (m + n)/2,

    with m positives and n negatives. Unlike intervals of DeLong's form it has a width where the AUC is 1. R. G.
    Newcombe: Confidence intervals for an effect size measure based on the Mann–Whitney statistic, part 2. Statistics in
    Medicine 25, 2006, method 5.

    >>> found = auc_interval(1.0, 5, 7)
    >>> round(found.low, 2), found.high
    (0.68, 1.0)
    """
    if not positives or not negatives:
        return NOTHING
    from scipy.optimize import brentq  # takes long to load, and training needs none of it

    m, n, quantile = positives, negatives, z(confidence)
    half = (m + n) / 2

    def deviation(theta: float) -> float:
        spread = 2 * half - 1 - 3 * (half - 1) / ((2 - theta) * (1 + theta))
        return quantile * math.sqrt(max(theta * (1 - theta) * spread / (m * n), 0.0))

    # θ = AUC solves both equations where the AUC is 0 or 1; the other root is sought.
    low = 0.0 if auc <= 0 else brentq(lambda theta: theta + deviation(theta) - auc, 0.0, min(auc, 1 - TINY))
    high = 1.0 if auc >= 1 else brentq(lambda theta: theta - deviation(theta) - auc, max(auc, TINY), 1.0)
    return Estimate(auc, float(low), float(high))


def mean_interval(
    mean: float, variance: float, n: int, least: float = 0.0, most: float = math.inf, confidence: float = CONFIDENCE
) -> Estimate:
    """Return a mean with Student's t interval, cut to the values that it can have.

    Args:
        mean: of n examples.
        variance: of one example, with the divisor n − 1.
        n: examples; of one alone there is no interval.
        least: smallest possible mean.
        most: largest possible mean.
        confidence: of the two-sided interval.
    """
    if n < 2:
        return Estimate(mean)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * math.sqrt(max(variance, 0.0) / n)
    return Estimate(mean, max(least, mean - half), min(most, mean + half))
