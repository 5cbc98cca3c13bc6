"""Alarms on drift: a CUSUM chart of scores, with a promised average run length.

E. S. Page: Continuous inspection schemes. Biometrika 41, 1954.
D. Brook, D. A. Evans: An approach to the probability distribution of CUSUM run length. Biometrika 59, 1972.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np

STATES = 200
"""States of the Markov chain; the run length's error falls with their square."""
NORMAL = NormalDist()


def average_run_length(limit: float, slack: float = 0.5, shift: float = 0.0, states: int = STATES) -> float:
    """Return the mean number of scores until S_t = max(0, S_{t−1} + z_t − k) exceeds h, for z_t ~ N(shift, 1).

    Brook and Evans: [0, h] is divided into cells, S is taken to lie at a cell's middle, and the mean run length from 0
    is the first entry of (I − P)⁻¹ 1, with P the chances to go from cell to cell.

    Args:
        limit: h.
        slack: k.
        shift: mean of the scores; 0 where nothing has changed.
        states: cells.

    >>> round(average_run_length(4.0))
    335
    """
    width = 2 * limit / (2 * states - 1)
    middle = width * np.arange(states)
    edges = middle[None, :] + width / 2 - middle[:, None] + slack - shift
    below = np.vectorize(NORMAL.cdf)(edges)
    chances = np.diff(below, axis=1, prepend=0.0)
    return float(np.linalg.solve(np.eye(states) - chances, np.ones(states))[0])


def limit_for(run_length: float, slack: float = 0.5) -> float:
    """Return the limit h whose average run length without drift is the promised one.

    Raises:
        ValueError: a run length below 10, which would alarm at noise, or above 10⁷.
    """
    if not 10 <= run_length <= 1e7:
        raise ValueError(f"the average run length is {run_length:g}; promise 10 to 10,000,000 queries.")
    low, high = 0.01, 20.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if average_run_length(middle, slack) < run_length else (low, middle)
    return high


@dataclass
class Drift:
    """An alarm on scores that grow: a false alarm comes once in `run_length` queries on average.

    A score's rank among the reference scores, as a normal quantile, is what the chart adds up. Ranks of scores that
    come from the reference's distribution are uniform whatever it is, so the promise needs no assumption on scores.

    Args:
        reference: scores of held-out queries, larger where a query is stranger.
        run_length: promised average number of queries until a false alarm.
        slack: k; a shift of 2k standard deviations is found fastest.

    >>> drift = Drift(list(range(1000)), run_length=1000)
    >>> any(drift.add(score) for score in [500.0] * 50), any(drift.add(score) for score in [990.0] * 10)
    (False, True)
    """

    reference: Sequence[float]
    run_length: float = 10_000
    slack: float = 0.5
    level: float = field(default=0.0, init=False)

    @cached_property
    def limit(self) -> float:
        """The level h at which the alarm goes off."""
        return limit_for(self.run_length, self.slack)

    def add(self, score: float) -> bool:
        """Add a query's score, and return whether the alarm goes off. The chart then starts again."""
        ranks = self._sorted
        place = np.searchsorted(ranks, score, "left") + np.searchsorted(ranks, score, "right")
        z = NORMAL.inv_cdf((place / 2 + 0.5) / (len(ranks) + 1))
        self.level = max(0.0, self.level + z - self.slack)
        if self.level <= self.limit:
            return False
        self.level = 0.0
        return True

    @cached_property
    def _sorted(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.sort(np.asarray(self.reference, np.float64))
