"""What the encoders share: normalisation layers, the output layer, and the check of image shapes."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import nn

Norm = Literal["group", "batch"]


def normalisation(channels: int, norm: Norm = "group", groups: int = 8) -> nn.Module:
    """Make a GroupNorm or BatchNorm layer.

    GroupNorm has no running statistics that clients with different data would have to average, and models with it can
    be stacked. It gets gcd(groups, channels) groups, so that they divide the channels.

    Args:
        channels: number of channels.
        norm: "group" or "batch".
        groups: groups of GroupNorm, at most.

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
    """Check that an example is an image (channels, height, width) of a sufficient size.

    >>> image_shape((13,), "LeNet")
    Traceback (most recent call last):
    ValueError: LeNet takes images (channels, height, width); an example's shape is (13,). Use an MLP for other data.
    """
    if len(shape) != 3:
        raise ValueError(
            f"{who} takes images (channels, height, width); an example's shape is {tuple(shape)}. "
            "Use an MLP for other data."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ValueError(
            f"{who} needs images of {smallest}×{smallest} pixels or more; they are {height}×{width}. "
            "Resize them, or use an MLP or a ResNet."
        )
    return channels, height, width


def output_layer(before: int, features: int, standardise: bool) -> nn.Module:
    """Make an encoder's last layer: linear, and optionally standardised over its features without parameters.

    With standardised features, of a fixed size, a head's learning rate has the same effect on every encoder and client,
    heads learn faster than on raw features, which start small, and density ratios exp(ξᵀh) can't diverge through h.

    Args:
        before: width of the layer before.
        features: dimension of the output.
        standardise: whether to standardise.

    Raises:
        ValueError: a single standardised feature, which would always be 0.
    """
    if not standardise:
        return nn.Linear(before, features)
    if features < 2:
        raise ValueError(
            f"features is {features}; it must be 2 or more for standardised features. Or set standardise=False."
        )
    return nn.Sequential(nn.Linear(before, features), nn.LayerNorm(features, elementwise_affine=False))
