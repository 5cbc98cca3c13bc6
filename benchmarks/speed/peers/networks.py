"""The networks of all contenders that use torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def encoder(work: Mapping[str, Any]) -> nn.Module:
    """Return all layers except the last.

    Args:
        work: ``"shape"`` of an example, and ``"network"``: ``"linear"``, ``"mlp"`` with ``"hidden"`` units, or
            ``"cnn"``: convolutions of 32 and 64 channels, 3×3 with padding 1, each followed by ReLU and 2×2 pooling,
            and 128 units.
    """
    channels, height, width = work["shape"]
    values = channels * height * width
    if work["network"] == "linear":
        return nn.Flatten()
    if work["network"] == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(values, work["hidden"]), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
    )


class Whole(nn.Module):
    """Encoder and head.

    Convolutions have their weights and inputs channels-last, which was measured to take three quarters of the time.
    """

    def __init__(self, work: Mapping[str, Any]) -> None:
        super().__init__()
        self.encoder = encoder(work)
        with torch.no_grad():
            features = self.encoder(torch.zeros(1, *work["shape"])).shape[1]
        self.head = nn.Linear(features, work["classes"])
        self.last = work["network"] == "cnn"
        if self.last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        if self.last:
            x = x.contiguous(memory_format=torch.channels_last)
            if x.shape[1] == 1:  # of one channel the formats lie alike, and only strides tell them apart
                x = x.as_strided(x.shape, (x.shape[2] * x.shape[3], 1, x.shape[3], 1))
        return self.head(self.encoder(x))


def started(work: Mapping[str, Any]) -> Whole:
    """Return the network with the weights that all contenders start from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Whole(work)


def distance(model: nn.Module, start: nn.Module) -> float:
    """Return ‖θ − θ_0‖."""
    with torch.no_grad():
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        return float(sum(((a - b) ** 2).sum() for a, b in pairs)) ** 0.5
