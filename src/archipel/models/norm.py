"""Normalisation inside networks, and the check of image shapes they share."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import nn

Norm = Literal["group", "batch"]


def normalisation(channels: int, norm: Norm = "group", groups: int = 8) -> nn.Module:
    """Make a GroupNorm or BatchNorm layer.

    GroupNorm keeps no statistics, so that clients with different data have none to average, and models can be stacked.
    It has gcd(groups, channels) groups: as many as asked for, where they divide the channels.

    Args:
        channels: number of channels.
        norm: "group" or "batch".
        groups: the groups asked for.

    >>> normalisation(12, groups=8).num_groups
    4

    Source: Wu and He (2018), Group normalization, ECCV; for federated learning, Hsieh et al. (2020), ICML.
    """
    if norm == "group":
        if groups < 1:
            raise ValueError(f"groups is {groups}; a GroupNorm has 1 group or more.")
        return nn.GroupNorm(math.gcd(groups, channels), channels)
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    raise ValueError(f"norm is {norm!r}; it is 'group' or 'batch'.")


def image_shape(shape: Sequence[int], who: str, smallest: int = 1) -> tuple[int, int, int]:
    """Check that an example is an image (channels, height, width), large enough for who asks.

    >>> image_shape((13,), "LeNet")
    Traceback (most recent call last):
    ValueError: LeNet reads images (channels, height, width); an example's shape is (13,). Take an MLP for other data.
    """
    if len(shape) != 3:
        raise ValueError(
            f"{who} reads images (channels, height, width); an example's shape is {tuple(shape)}. "
            "Take an MLP for other data."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ValueError(
            f"{who} needs images of {smallest}×{smallest} pixels or more; they are {height}×{width}. "
            "Resize them, or take an MLP or a ResNet."
        )
    return channels, height, width


def output_layer(before: int, features: int, standardise: bool) -> nn.Module:
    """The encoder's last layer: linear, and by choice standardised over its features, without parameters.

    Features of a fixed size make a head's learning rate mean the same on every encoder and client: heads learn faster
    than on raw features, which start small, and density ratios exp(ξᵀh) can't run away through h.

    Raises:
        ValueError: one standardised feature, which would be 0 always.
    """
    if not standardise:
        return nn.Linear(before, features)
    if features < 2:
        raise ValueError(f"features is {features}; standardised features are 2 or more, or give standardise=False.")
    return nn.Sequential(nn.Linear(before, features), nn.LayerNorm(features, elementwise_affine=False))
