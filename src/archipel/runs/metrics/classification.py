"""Metrics of a classification from counts of binned scores: AUC, sensitivity, Brier score and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from archipel.runs.metrics.counts import EDGES, STEPS, Counts
from archipel.runs.metrics.estimate import (
    NOTHING,
    Estimate,
    auc_interval,
    mean_interval,
    mean_of_dependent,
    mean_of_independent,
    wilson,
)

CLASSIFICATION = ("accuracy", "balanced_accuracy", "auc", "sensitivity", "specificity", "f1", "brier")
"""Names of the metrics, in the order of tables."""
CURVE = 10
"""Points of a reliability curve."""


def classification_metrics(counts: Counts, positive: int | None = None) -> dict[str, Estimate]:
    """Return the metrics of :data:`CLASSIFICATION`, with 95 % confidence intervals.

    Examples count as independent. Of two classes, sensitivity, specificity, F1, AUC and the Brier score are those of
    the positive class. Of more classes they are computed for each class against the rest and averaged with equal
    weights (macro); there the Brier score is Σ_k (p_k − 1[y = k])², from 0 to 2.

    - ``accuracy``, ``sensitivity``, ``specificity``: Wilson's interval.
    - ``balanced_accuracy``: the mean of the classes' recalls, which are independent: MOVER over Wilson's limits.
    - ``f1``: F1 = 2J/(1 + J), J = TP/(TP + FP + FN) a share of the examples that aren't true negatives: Wilson's limits
      of J, mapped.
    - ``auc``: Newcombe's interval (:func:`archipel.runs.metrics.estimate.auc_interval`). Scores in one bin count as
      ties; the unbinned AUC differs by at most half the share of pairs in one bin.
    - ``brier``: Student's t. Each score lies between the limits of its bin, which bounds the error.
    - macro: :func:`archipel.runs.metrics.estimate.mean_of_dependent`.

    Args:
        counts: of a site, or of several together.
        positive: the positive one of two classes; ``None``: the second.
    """
    confusion = counts.confusion.tolist()
    rows = [sum(row) for row in confusion]
    recalls = [wilson(confusion[k][k], n) for k, n in enumerate(rows)]
    binary = counts.classes == 2
    asked = [1 if positive is None else positive] if binary else list(range(counts.classes))
    answered = [sum(column) for column in zip(*confusion, strict=True)]
    quadrants = [_quadrants(confusion[k][k], rows[k], answered[k], counts.n) for k in asked]
    found = {
        "auc": _aucs(counts, asked),
        "brier": _briers(counts, asked),
        "sensitivity": [one.sensitivity for one in quadrants],
        "specificity": [one.specificity for one in quadrants],
        "f1": [one.f1 for one in quadrants],
    }
    macro = {name: parts[0] if binary else mean_of_dependent(parts) for name, parts in found.items()}
    brier = macro["brier"]
    if not binary and brier.value is not None and brier.low is not None and brier.high is not None:
        k = counts.classes  # the sum over classes, not their mean
        macro["brier"] = Estimate(k * brier.value, k * brier.low, min(2.0, k * brier.high), k * brier.error)
    macro |= {
        "accuracy": wilson(sum(confusion[k][k] for k in range(counts.classes)), counts.n),
        "balanced_accuracy": mean_of_independent(recalls),
    }
    return {name: macro[name] for name in CLASSIFICATION}


def reliability(counts: Counts, positive: int | None = None) -> list[dict[str, Any]]:
    """Return the reliability curve: in tenths of the predicted probability, the share that came true.

    Of more than two classes, the probabilities of all classes are counted together, each against the rest.

    Args:
        counts: of a site, or of several together.
        positive: the positive one of two classes; ``None``: the second.

    Returns:
        For each tenth with examples: ``n``, the mean ``predicted`` probability (to within the bins' width, at most
        1/1000), and the ``observed`` share with the limits ``low`` and ``high`` of Wilson's interval.
    """
    if counts.classes == 2:
        no, yes = counts.scores[1 if positive is None else positive].double()
    else:
        no, yes = counts.scores.sum(0).double()
    middle = (EDGES[:-1] + EDGES[1:]) / 2
    points = []
    for k in range(CURVE):
        inside = (middle * CURVE).floor().clamp(max=CURVE - 1) == k
        hits, n = float(yes[inside].sum()), float((yes + no)[inside].sum())
        if n:
            predicted = float(((yes + no) * middle)[inside].sum()) / n
            share = wilson(hits, n)
            points.append(
                {"n": int(n), "predicted": predicted, "observed": share.value, "low": share.low, "high": share.high}
            )
    return points


def _aucs(counts: Counts, classes: Sequence[int]) -> list[Estimate]:
    scores = counts.scores[list(classes)].double()
    negatives, positives = scores[:, 0], scores[:, 1]
    below = negatives.cumsum(1) - negatives
    ties = (positives * negatives).sum(1)
    wins, m, n = ((positives * below).sum(1) + ties / 2).tolist(), positives.sum(1).tolist(), negatives.sum(1).tolist()
    found = []
    for won, tied, p, q in zip(wins, (ties / 2).tolist(), m, n, strict=True):
        none = not p or not q
        found.append(NOTHING if none else auc_interval(won / (p * q), int(p), int(q)).widened(tied / (p * q)))
    return found


def _briers(counts: Counts, classes: Sequence[int]) -> list[Estimate]:
    if not counts.n:
        return [NOTHING] * len(classes)
    n, weights = counts.n, counts.scores[list(classes)].double().flatten(1)
    means, errors = (weights @ LOSS / n).tolist(), (weights @ SLACK / n).tolist()
    squares = (weights @ LOSS.square() / n).tolist()
    return [
        mean_interval(mean, (square - mean**2) * n / max(n - 1, 1), n, 0.0, 1.0).widened(error)
        for mean, square, error in zip(means, squares, errors, strict=True)
    ]


@dataclass(frozen=True)
class _Quadrants:
    """True and false positives and negatives of a class against the rest."""

    tp: float
    fn: float
    fp: float
    tn: float

    @property
    def sensitivity(self) -> Estimate:
        return wilson(self.tp, self.tp + self.fn)

    @property
    def specificity(self) -> Estimate:
        return wilson(self.tn, self.tn + self.fp)

    @property
    def f1(self) -> Estimate:
        j = wilson(self.tp, self.tp + self.fn + self.fp)
        value, low, high = (None if v is None else 2 * v / (1 + v) for v in (j.value, j.low, j.high))
        return Estimate(value, low, high)


def _quadrants(right: int, there: int, answered: int, everyone: int) -> _Quadrants:
    return _Quadrants(right, there - right, answered - right, everyone - there - answered + right)


_LOW, _HIGH = EDGES[:-1], EDGES[1:]
_LEAST = torch.cat([_LOW.square(), (1 - _HIGH).square()])
_MOST = torch.cat([_HIGH.square(), (1 - _LOW).square()])
LOSS, SLACK = (_LEAST + _MOST) / 2, (_MOST - _LEAST) / 2
"""``(2B,)`` squared error of a score in each bin, of examples of other classes and of the class, and its bound."""
assert STEPS % CURVE == 0, "tenths must end where bins end"
