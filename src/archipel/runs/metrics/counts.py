"""What a site sends for its metrics: how many of its test examples have scores in each bin, by class.

A site computes its model's answers to its own test examples, and only counts leave it. From the counts follow all
metrics of :mod:`archipel.runs.metrics.classification`, within bounds that the counts give themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core.trees import Tree

STEPS = 500
"""Bins of equal width between 0 and 1."""
HALVINGS = 24
"""The outermost bins are halved this often, down to 10⁻¹⁰: a sure model's scores crowd there."""
_TAIL = [1 / STEPS / 2**j for j in range(HALVINGS, 0, -1)]
EDGES = torch.tensor(
    [0.0, *_TAIL, *(k / STEPS for k in range(1, STEPS)), *(1 - t for t in reversed(_TAIL)), 1.0], dtype=torch.float64
)
"""``(B + 1,)`` limits of the bins of a probability. Bin b holds scores in [EDGES[b], EDGES[b + 1]), the last one 1."""
BINS = len(EDGES) - 1


@dataclass(frozen=True)
class Counts:
    """Counts of a site's test examples, or of several sites' together.

    Args:
        confusion: ``(K, K)`` examples of each class (row) that were given each class (column).
        scores: ``(K, 2, B)`` for each class k the histograms of its probability: [k, 1] of the examples of class k,
            [k, 0] of all others.
        lost: examples whose answer isn't finite; they are in no other count.

    >>> counts = Counts.of(count_scores(torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(), torch.tensor([0, 1])))
    >>> counts.confusion.tolist(), counts.n
    ([[1, 0], [0, 1]], 2)
    """

    confusion: Tensor
    scores: Tensor
    lost: int = 0

    @classmethod
    def of(cls, reply: Tree) -> Counts:
        """Return what :func:`count_scores` counted."""
        return cls(reply["confusion"].long(), reply["scores"].long(), int(reply["lost"]))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.confusion + other.confusion, self.scores + other.scores, self.lost + other.lost)

    @property
    def n(self) -> int:
        """The number of examples that were counted."""
        return int(self.confusion.sum())

    @property
    def classes(self) -> int:
        """K."""
        return len(self.confusion)


def count_scores(answers: Tensor, y: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Count scores in the bins of :data:`EDGES`. It works under ``torch.func.vmap``.

    Args:
        answers: ``(n, K)`` log-probabilities.
        y: ``(n,)`` int64 classes.
        mask: ``(n,)`` bool, the examples that count; default: all.

    Returns:
        ``"confusion"`` ``(K, K)``, ``"scores"`` ``(K, 2, B)`` and ``"lost"`` ``()``, all int64.
    """
    n, k = answers.shape
    there = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
    sound = answers.isfinite() | (answers == -torch.inf)  # a probability of exactly 0 is an answer
    counted = (there & sound.all(-1)).long()
    edges = EDGES.to(answers.device)
    places = torch.bucketize(answers.double().exp(), edges[1:-1], right=True)  # (n, K)
    own = (y[:, None] == torch.arange(k, device=y.device)).long()
    cells = (torch.arange(k, device=y.device) * 2 + own) * BINS + places
    scores = torch.zeros(k * 2 * BINS, dtype=torch.int64, device=y.device)
    scores = scores.scatter_add(0, cells.flatten(), counted[:, None].expand(n, k).flatten())
    confusion = torch.zeros(k * k, dtype=torch.int64, device=y.device)
    confusion = confusion.scatter_add(0, y.clamp(0, k - 1) * k + answers.argmax(-1), counted)
    return {
        "confusion": confusion.view(k, k),
        "scores": scores.view(k, 2, BINS),
        "lost": there.sum() - counted.sum(),
    }
