"""Criteria: how a model's outputs are scored against targets, and how they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor


class Criterion(Protocol):
    """A loss of outputs and targets, and the form in which outputs are reported."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return ``(n,)`` losses of ``(n, K)`` outputs and n targets."""

    def report(self, outputs: Tensor) -> Tensor:
        """Return what ``predict`` reports of the outputs: log-probabilities or values."""

    def mix(self, log_weights: Tensor, outputs: Tensor) -> Tensor:
        """Return the report of a mixture: ``(n, C)`` log-weights of components with ``(n, C, K)`` outputs."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, −log softmax(outputs)_y; reports log-probabilities."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="none")

    def report(self, outputs: Tensor) -> Tensor:
        return F.log_softmax(outputs, dim=-1)

    def mix(self, log_weights: Tensor, outputs: Tensor) -> Tensor:
        return torch.logsumexp(log_weights[..., None] + F.log_softmax(outputs, dim=-1), dim=1)


@dataclass(frozen=True)
class SquaredError:
    """Squared error, ½‖outputs − y‖²; reports the outputs.

    Up to a constant it is the negative log-density of a normal distribution with unit variance.
    """

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = y[:, None] if y.dim() == 1 else y
        return 0.5 * (outputs - y.to(outputs.dtype)).square().sum(-1)

    def report(self, outputs: Tensor) -> Tensor:
        return outputs

    def mix(self, log_weights: Tensor, outputs: Tensor) -> Tensor:
        return (log_weights.exp()[..., None] * outputs).sum(1)
