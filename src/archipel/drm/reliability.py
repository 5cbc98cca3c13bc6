"""Reliability of posteriors over clients: of queries routed with 80 % confidence, 80 % should be that client's.

A. H. Murphy, R. L. Winkler: Reliability of subjective probability forecasts of precipitation and temperature, Applied
Statistics 26, 1977.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.runs.calibration import BINS
from archipel_serve.arrays import unmasked


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram's numbers: queries in bins of the probability of the most likely client.

    Args:
        confidence: ``(b,)`` mean probability of the most likely client in the bins that hold queries.
        accuracy: ``(b,)`` the share of queries for which that client was right.
        count: ``(b,)`` int64 queries.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> float:
        """The expected calibration error Σ_b (count_b/n) |accuracy_b − confidence_b|."""
        return self._mean((self.accuracy - self.confidence).abs())

    @property
    def chance(self) -> float:
        """An upper bound of the expected error for a correct posterior.

        Then a bin's accuracy is a mean of coin tosses: E|accuracy − confidence| ≤ √(confidence (1 − confidence)/count).
        """
        return self._mean((self.confidence * (1 - self.confidence) / self.count).clamp(min=0).sqrt())

    def _mean(self, values: Tensor) -> float:
        return float((self.count * values).sum() / self.count.sum())


def reliability(posterior: Tensor | NDArray[Any], origin: Tensor | NDArray[Any]) -> Reliability:
    """Compare a router's confidence with its accuracy, in 15 bins of equal width.

    Args:
        posterior: ``(n, m)`` probabilities over clients.
        origin: ``(n,)`` the client that each query comes from.

    Raises:
        ValueError: no queries, not one origin for each, masked values, or rows that aren't probabilities.

    >>> sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
    >>> found = reliability(sure, torch.tensor([0, 1, 1]))
    >>> found.accuracy.tolist(), found.count.tolist()
    ([1.0, 0.5], [1, 2])
    """
    posterior, origin = _tensor(posterior, "posterior"), _tensor(origin, "origin")
    if posterior.dim() != 2 or len(posterior) == 0 or origin.shape != posterior.shape[:1]:
        raise ValueError(
            f"posterior has the shape {tuple(posterior.shape)} and origin {tuple(origin.shape)}; give "
            "(queries, clients) and (queries,), with at least one query."
        )
    if origin.is_floating_point() or origin.is_complex():
        raise ValueError("origin must hold the number of each query's client: whole numbers, of which none is masked.")
    rounding = torch.finfo(posterior.dtype).eps if posterior.is_floating_point() else 0.0
    posterior = posterior.to(torch.float64)
    rows = posterior.sum(1)
    if bool((posterior < 0).any()) or not torch.allclose(rows, torch.ones_like(rows), atol=1e-4 + rounding):
        raise ValueError(
            "posterior must hold probabilities: 0 or above, with rows that sum to 1. A model's route(x) gives "
            "logarithms: pass route(x).exp()."
        )
    sure, client = posterior.max(dim=1)
    right = (client == origin).double()
    place = ((sure * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    count = torch.bincount(place, minlength=BINS)
    held = count > 0
    confidence, accuracy = (torch.bincount(place, values, BINS)[held] / count[held] for values in (sure, right))
    return Reliability(confidence, accuracy, count[held])


def _tensor(values: Tensor | NDArray[Any], name: str) -> Tensor:
    return torch.as_tensor(unmasked(values, name) if isinstance(values, np.ma.MaskedArray) else values)
