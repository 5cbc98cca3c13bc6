"""Metrics of a classification from counts of binned scores: AUC, sensitivity, Brier score and others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    confusion = counts.confusion.double()
    rows = confusion.sum(1)
    recalls = [wilson(float(confusion[k, k]), float(rows[k])) for k in range(counts.classes)]
    binary = counts.classes == 2
    asked = [1 if positive is None else positive] if binary else list(range(counts.classes))
    found = {name: [one(counts, k) for k in asked] for name, one in _ONE_AGAINST_REST.items()}
    macro = {name: parts[0] if binary else mean_of_dependent(parts) for name, parts in found.items()}
    brier = macro["brier"]
    if not binary and brier.value is not None and brier.low is not None and brier.high is not None:
        k = counts.classes  # the sum over classes, not their mean
        macro["brier"] = Estimate(k * brier.value, k * brier.low, min(2.0, k * brier.high), k * brier.error)
    macro |= {
        "accuracy": wilson(float(confusion.diagonal().sum()), counts.n),
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


def auc(positives: Tensor, negatives: Tensor) -> tuple[float, float]:
    """Return the AUC of two histograms, ties counted as half, and half the share of pairs in one bin.

    Args:
        positives: ``(B,)`` counts by rising score.
        negatives: ``(B,)`` counts by rising score.

    >>> auc(torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0]))
    (0.9444444444444444, 0.05555555555555555)
    """
    pos, neg = positives.double(), negatives.double()
    pairs = float(pos.sum() * neg.sum())
    below = neg.cumsum(0) - neg
    ties = float((pos * neg).sum())
    return (float((pos * below).sum()) + ties / 2) / pairs, ties / 2 / pairs


def _auc(counts: Counts, k: int) -> Estimate:
    negatives, positives = counts.scores[k]
    m, n = int(positives.sum()), int(negatives.sum())
    if not m or not n:
        return NOTHING
    value, error = auc(positives, negatives)
    return auc_interval(value, m, n).widened(error)


def _brier(counts: Counts, k: int) -> Estimate:
    low, high = EDGES[:-1], EDGES[1:]
    least = torch.cat([low.square(), (1 - high).square()])  # of the others, and of the class's own
    most = torch.cat([high.square(), (1 - low).square()])
    weights = counts.scores[k].double().flatten()
    n = float(weights.sum())
    if not n:
        return NOTHING
    middle = (least + most) / 2
    mean = float(weights @ middle) / n
    variance = float(weights @ (middle - mean).square()) / max(n - 1, 1)
    return mean_interval(mean, variance, int(n), 0.0, 1.0).widened(float(weights @ (most - least)) / (2 * n))


def _quadrants(counts: Counts, k: int) -> tuple[float, float, float, float]:
    """Return true positives, false negatives, false positives and true negatives of a class against the rest."""
    confusion = counts.confusion.double()
    tp = float(confusion[k, k])
    fn, fp = float(confusion[k].sum()) - tp, float(confusion[:, k].sum()) - tp
    return tp, fn, fp, float(confusion.sum()) - tp - fn - fp


def _sensitivity(counts: Counts, k: int) -> Estimate:
    tp, fn, _, _ = _quadrants(counts, k)
    return wilson(tp, tp + fn)


def _specificity(counts: Counts, k: int) -> Estimate:
    _, _, fp, tn = _quadrants(counts, k)
    return wilson(tn, tn + fp)


def _f1(counts: Counts, k: int) -> Estimate:
    tp, fn, fp, _ = _quadrants(counts, k)
    j = wilson(tp, tp + fn + fp)
    value, low, high = (None if v is None else 2 * v / (1 + v) for v in (j.value, j.low, j.high))
    return Estimate(value, low, high)


_ONE_AGAINST_REST = {
    "auc": _auc,
    "sensitivity": _sensitivity,
    "specificity": _specificity,
    "f1": _f1,
    "brier": _brier,
}
assert STEPS % CURVE == 0, "tenths must end where bins end"
