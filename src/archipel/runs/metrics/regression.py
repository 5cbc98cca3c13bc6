"""Metrics of a regression from sums that leave a site: MAE, RMSE and R², with intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from archipel.runs.metrics.estimate import NOTHING, Estimate, mean_interval, z

REGRESSION = ("mae", "rmse", "r2")
"""Names of the metrics, in the order of tables."""
LEAST = 5
"""A site with fewer test examples sends no sums: they would say too much of single examples."""


def regression_sums(answers: Tensor, y: Tensor, origin: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum what the metrics need, in float64. It works under ``torch.func.vmap``.

    Args:
        answers: ``(n, d)`` values.
        y: ``(n, d)`` targets.
        origin: ``(d,)`` is subtracted from targets, so that sums of powers keep their digits.
        mask: ``(n,)`` bool, the examples that count; default: all.

    Returns:
        ``(d, 10)``: Σ of 1, |e|, e², e⁴, v, v², v³, v⁴, e²v and e²v², with e = y − answer and v = y − origin.
    """
    there = torch.ones(len(y), dtype=torch.bool, device=y.device) if mask is None else mask
    there = there[:, None]
    e = torch.where(there, y.double() - answers.double(), 0.0)
    v = torch.where(there, y.double() - origin.double(), 0.0)
    one = there.double().expand_as(e)
    e2, v2 = e.square(), v.square()
    columns = [one, e.abs(), e2, e2.square(), v, v2, v2 * v, v2.square(), e2 * v, e2 * v2]
    return torch.stack([column.sum(0) for column in columns], -1)


def regression_metrics(sums: Tensor) -> dict[str, Estimate]:
    """Return MAE, RMSE and R² of one target, with 95 % confidence intervals.

    - ``mae``: Student's t, from Σ|e| and Σe².
    - ``rmse``: Student's t for the mean of e², from Σe² and Σe⁴; the root of its limits.
    - ``r2``: 1 − S, S = Σe²/Σ(y − ȳ)². By the delta method log S has the variance Σ(e_i²/ē² − (y_i − ȳ)²/s²)²/n², with
      the means ē² of e² and s² of (y − ȳ)²; it follows from the sums.

    The sums are exact, so that no bound for binning is needed. Values of R² are missing where targets are all equal.

    Args:
        sums: ``(10,)`` of :func:`regression_sums`, of a site or of several together.
    """
    n, absolute, e2, e4, v, v2, v3, v4, e2v, e2v2 = sums.tolist()
    if not n:
        return dict.fromkeys(REGRESSION, NOTHING)
    count = int(n)
    mae, mse, divisor = absolute / n, e2 / n, max(n - 1, 1)
    square = mean_interval(mse, (e4 - n * mse**2) / divisor, count)
    value, low, high = (None if x is None else math.sqrt(max(x, 0.0)) for x in (square.value, square.low, square.high))
    found = {"mae": mean_interval(mae, (e2 - n * mae**2) / divisor, count), "rmse": Estimate(value, low, high)}
    m = v / n
    spread = v2 / n - m * m
    if spread <= 1e-12 * v2 / n or count < 2:
        return found | {"r2": NOTHING}
    # Σ d², Σ d⁴ and Σ e²d² about the mean, d = v − m.
    d4 = v4 - 4 * m * v3 + 6 * m**2 * v2 - 3 * n * m**4
    e2d2 = e2v2 - 2 * m * e2v + m**2 * e2
    ratio = mse / spread
    if mse == 0:
        return found | {"r2": Estimate(1.0, 1.0, 1.0)}
    variance = max(e4 / mse**2 - 2 * e2d2 / (mse * spread) + d4 / spread**2, 0.0) / n**2
    factor = math.exp(z() * math.sqrt(variance))
    return found | {"r2": Estimate(1 - ratio, 1 - ratio * factor, 1 - ratio / factor)}
