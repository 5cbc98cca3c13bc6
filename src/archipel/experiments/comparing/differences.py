"""Paired differences of methods over seeds, with intervals for splits that overlap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences.

    Args:
        mean: over seeds.
        low: lower limit of the 95 % interval; ``None`` for one seed.
        high: upper limit.
        seeds: pairs.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def difference(one: Sequence[float], other: Sequence[float], ratio: float) -> Difference:
    """Return the mean of one − other with the corrected resampled t interval.

    Each seed divides the same examples anew, so that training sets overlap and differences of seeds are dependent. With
    J seeds and a ratio r of test to training examples, d̄ ± t_{J−1} √((1/J + r) s²). The uncorrected 1/J would be far
    too sure. C. Nadeau, Y. Bengio: Inference for the generalization error. Machine Learning 52, 2003, section 3.

    Args:
        one: a metric of the first method, by seed.
        other: of the second, on the same splits.
        ratio: test examples divided by training examples; 0 for independent data in each seed.

    Returns:
        The mean difference; without an interval if there is one seed.

    >>> difference([0.75, 0.5, 1.0], [0.5, 0.25, 0.75], 0.5)
    Difference(mean=0.25, low=0.25, high=0.25, seeds=3)
    """
    pairs = [a - b for a, b in zip(one, other, strict=True)]
    mean, count = math.fsum(pairs) / len(pairs), len(pairs)
    if count < 2:
        return Difference(mean, None, None, count)
    half = float(t.ppf(0.5 + CONFIDENCE / 2, count - 1)) * statistics.stdev(pairs) * math.sqrt(1 / count + ratio)
    return Difference(mean, mean - half, mean + half, count)
