"""Calibration: answers with confidence p should be right in a share p of the cases.

C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger: On calibration of modern neural networks. ICML 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15
"""Bins of confidence, of equal width; Guo et al.'s number."""


def gaps(confidence: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_j w_j (right_j − confidence_j) for each bin of confidence: by how much accuracy exceeds confidence.

    Bin b holds confidences in ((b − 1)/15, b/15]. The gaps of disjoint sets of examples add up to the gaps of their
    union.

    Args:
        confidence: ``(n,)`` probability of the given answer.
        right: ``(n,)`` 1 or True if it was right.
        weights: ``(n,)`` of the examples; 0 leaves an example out.

    Returns:
        ``(15,)`` floats of the confidence's type.

    >>> gaps(torch.tensor([0.9, 0.9, 0.5]), torch.tensor([1, 1, 0]), torch.ones(3)).nonzero()[:, 0].tolist()
    [7, 13]
    """
    which = torch.clamp(torch.ceil(confidence * BINS).long() - 1, 0, BINS - 1)
    inside = which[:, None] == torch.arange(BINS, device=which.device)
    gap = weights.to(confidence.dtype) * (right.to(confidence.dtype) - confidence)
    return torch.where(inside, gap[:, None], 0.0).sum(0)


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return the expected calibration error, ECE = Σ_b (n_b/n) |accuracy_b − confidence_b|, bins as in :func:`gaps`.

    Args:
        confidence: ``(n,)`` probability of the given answer, n at least 1.
        right: ``(n,)`` 1 or True if it was right.

    >>> calibration_error(torch.tensor([0.75, 0.75, 0.75, 0.75]), torch.tensor([1, 1, 1, 0]))
    0.0
    >>> calibration_error(torch.tensor([1.0, 1.0]), torch.tensor([1, 0]))
    0.5
    """
    weights = torch.full((len(confidence),), 1 / len(confidence), dtype=torch.float64)
    return float(gaps(confidence.double(), right, weights).abs().sum())
