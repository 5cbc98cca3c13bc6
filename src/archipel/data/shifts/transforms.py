"""Transforms of the clients and components of dual heterogeneity: functions of batches of uint8 images.

A *component* transform acts on the source image first, a *client* transform on its result, so that an inverted image
still has its client's colour cast. A client's colour cast comes before its ramps: the cast lowers values below 255, so
that a ramp is visible on the white ground of an inverted image as well.

Client i has the transform i mod 8, whose three bits are colour (bit 2: red, blue), vertical (bit 1: top, bottom) and
horizontal (bit 0: left, right). More than eight clients reuse them: such clients differ by labels, not by appearance.

Source: the FedSPM paper, Sec. 3.1 and App. D.2, which names the transforms; the strengths are ours.
"""

from typing import Literal

import torch
from torch import Tensor

# Gains of a colour cast. The strong channel keeps its values, which preserves contrast; the weak one keeps half, and
# red and blue clients differ by a factor of two. A router can learn this, but not at once: with gains of 60 and 35 and
# ramps of 90, routing is perfect within twenty rounds and no longer tells methods apart.
# In percent: whole numbers round alike on every machine.
GAIN_DOMINANT = 100
GAIN_GREEN = 75
GAIN_WEAK = 50

# Added at the bright edge, falling linearly to 0 at the opposite one. A fifth of the range: seen at a glance, and even
# in the corner where two ramps meet (100) most grey values stay below the clip at 255.
RAMP_PEAK = 50

# Client transforms that can be told apart: 2 colours × 2 vertical × 2 horizontal.
CLIENT_TRANSFORMS = 8

# Images a step where floats are needed: 4096 of 3×28×28 take 39 MB.
BATCH = 4096


def grey_to_rgb(images: Tensor) -> Tensor:
    """Repeat a grey channel three times: (n, H, W) or (n, 1, H, W) to (n, 3, H, W).

    >>> grey_to_rgb(torch.zeros(2, 4, 5, dtype=torch.uint8)).shape
    torch.Size([2, 3, 4, 5])
    """
    images = images.unsqueeze(1) if images.ndim == 3 else images
    if images.ndim != 4 or images.shape[1] != 1:
        raise ValueError(f"grey images have shape (n, H, W) or (n, 1, H, W); {tuple(images.shape)} was given.")
    return images.expand(-1, 3, -1, -1)


def invert_grey(images: Tensor) -> Tensor:
    """Turn every grey value v into 255 − v; its own inverse.

    >>> invert_grey(torch.tensor([0, 55, 255], dtype=torch.uint8)).tolist()
    [255, 200, 0]
    """
    return 255 - images


def invert_green(images: Tensor) -> Tensor:
    """Turn the green value v of colour images (n, 3, H, W) into 255 − v; its own inverse.

    >>> invert_green(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten().tolist()
    [0, 255, 0]
    """
    _check_rgb(images)
    return torch.stack([images[:, 0], 255 - images[:, 1], images[:, 2]], dim=1)


def dominate(images: Tensor, colour: Literal["red", "blue"]) -> Tensor:
    """Give colour images (n, 3, H, W) a red or blue cast: one gain a channel, rounded half up.

    >>> dominate(torch.full((1, 3, 1, 1), 200, dtype=torch.uint8), "red").flatten().tolist()
    [200, 150, 100]
    """
    _check_rgb(images)
    gains = [GAIN_DOMINANT, GAIN_GREEN, GAIN_WEAK]
    gain = torch.tensor(gains if colour == "red" else gains[::-1], dtype=torch.int16).view(3, 1, 1)
    return ((images * gain + 50) // 100).to(torch.uint8)


def brighten(images: Tensor, edge: Literal["top", "bottom", "left", "right"]) -> Tensor:
    """Add a linear ramp, `RAMP_PEAK` at an edge and 0 at the opposite one, to images (n, C, H, W); clip at 255.

    >>> brighten(torch.zeros(1, 1, 1, 4, dtype=torch.uint8), "right").flatten().tolist()
    [0, 17, 33, 50]
    """
    vertical = edge in ("top", "bottom")
    last = images.shape[2 if vertical else 3] - 1
    distance = torch.arange(last + 1) if edge in ("bottom", "right") else torch.arange(last, -1, -1)
    # Whole numbers again, rounded half up; a single pixel is at the bright edge.
    ramp = ((2 * RAMP_PEAK * distance + last) // (2 * last) if last else distance + RAMP_PEAK).to(torch.int16)
    return (images + (ramp.unsqueeze(1) if vertical else ramp)).clamp_(max=255).to(torch.uint8)


def client_transform(images: Tensor, client: int) -> Tensor:
    """Apply the transform of client `client`, number `client` mod 8, to colour images (n, 3, H, W) of uint8.

    >>> client_transform(torch.zeros(1, 3, 1, 2, dtype=torch.uint8), 0).flatten().tolist()  # red, top, left
    [100, 50, 100, 50, 100, 50]
    """
    colour, vertical, horizontal = client_casts(client)
    return torch.cat(
        [brighten(brighten(dominate(part, colour), vertical), horizontal) for part in torch.split(images, BATCH)]
        or [images]
    )


def client_casts(
    client: int,
) -> tuple[Literal["red", "blue"], Literal["top", "bottom"], Literal["left", "right"]]:
    """Name the colour, the vertical and the horizontal bright edge of a client.

    >>> client_casts(5)
    ('blue', 'top', 'right')
    """
    bits = client % CLIENT_TRANSFORMS
    return (
        "blue" if bits & 4 else "red",
        "bottom" if bits & 2 else "top",
        "right" if bits & 1 else "left",
    )


def component_transform(images: Tensor, components: Tensor) -> Tensor:
    """Invert the images of odd components: grey values of (n, 1, H, W), the green channel of (n, 3, H, W).

    With more than two components, those of equal parity have the same transform and differ by their labels only.

    Args:
        images: (n, 1 or 3, H, W) uint8.
        components: (n,) component of each image.

    >>> component_transform(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1])).flatten().tolist()
    [0, 255]
    """
    odd = (components % 2 == 1).view(-1, 1, 1, 1)
    return torch.where(odd, invert_green(images) if images.shape[1] == 3 else invert_grey(images), images)


def _check_rgb(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"colour images have shape (n, 3, H, W); {tuple(images.shape)} was given.")
