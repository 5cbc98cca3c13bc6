"""What a run answers to queries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """Answers to queries.

    Args:
        values: ``(n, K)`` class probabilities, or ``(n, outputs)`` values of a regression.
        labels: the name of each query's most likely class; ``None`` for a regression.
        answered_by: who answered each query: a client's name, ``"global model"`` or ``"vote"``.
    """

    values: Tensor
    labels: list[str] | None
    answered_by: list[str]
