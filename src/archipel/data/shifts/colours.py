"""Shifts of images that change a pixel by its own value alone: brightness, contrast, gamma, saturation, hue."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.data.shifts.image_shifts import ImageShift, to_bytes
from archipel.data.shifts.shift import Shift, check_finite

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey value (ITU-R BT.601)."""


@dataclass(frozen=True)
class Brightness(ImageShift):
    """v becomes gain · v."""

    gain: float

    def __post_init__(self) -> None:
        check_finite("gain", self.gain, above=0)

    def change(self, images: Tensor) -> Tensor:
        return _look_up(torch.arange(256, dtype=torch.float64) * self.gain, images)


@dataclass(frozen=True)
class Contrast(ImageShift):
    """v becomes 127.5 + gain · (v − 127.5), the same for all images."""

    gain: float

    def __post_init__(self) -> None:
        check_finite("gain", self.gain, above=0)

    def change(self, images: Tensor) -> Tensor:
        return _look_up(127.5 + self.gain * (torch.arange(256, dtype=torch.float64) - 127.5), images)


@dataclass(frozen=True)
class Gamma(ImageShift):
    """v becomes 255 · (v / 255)^γ: above 1, shadows get darker; below 1, lighter."""

    gamma: float

    def __post_init__(self) -> None:
        check_finite("gamma", self.gamma, above=0)

    def change(self, images: Tensor) -> Tensor:
        return _look_up(255 * (torch.arange(256, dtype=torch.float64) / 255) ** self.gamma, images)


@dataclass(frozen=True)
class Saturation(ImageShift):
    """v becomes grey + gain · (v − grey), with the pixel's grey value by `LUMA`: 0 takes all colour away.

    Args:
        gain: 0 or above.
    """

    gain: float

    def __post_init__(self) -> None:
        check_finite("gain", self.gain)
        if self.gain < 0:
            raise ValueError(f"gain is {self.gain}; it is 0 or above, and 1 leaves colours as they are.")

    def change(self, images: Tensor) -> Tensor:
        red, green, blue = _channels(images)
        grey = (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)
        return to_bytes(grey + self.gain * (images - grey))


@dataclass(frozen=True)
class Hue(ImageShift):
    """The hue turned round the colour circle; value and saturation (of HSV) stay.

    Args:
        turn: a fraction of the circle: 1/3 makes red green, −1/3 makes red blue.
    """

    turn: float

    def __post_init__(self) -> None:
        check_finite("turn", self.turn)

    def change(self, images: Tensor) -> Tensor:
        red, green, blue = _channels(images)
        value, chroma = images.amax(1).float(), (images.amax(1) - images.amin(1)).float()
        # In sixths of the circle; for a grey pixel, of chroma 0, any hue will do.
        some = chroma.clamp(min=1)
        hue = torch.where(
            value == red,
            (green - blue) / some,
            torch.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some),
        )
        turned = []
        for place in (5, 3, 1):
            k = (place + hue + 6 * self.turn) % 6
            turned.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
        return to_bytes(torch.stack(turned, 1))


def feddrm(client: int) -> list[Shift]:
    """Return the shifts of a client of FedDRM's CIFAR experiments: saturation, hue and gamma, each low or high.

    >>> feddrm(5)
    [Saturation(gain=1.5), Hue(turn=-0.1), Gamma(gamma=1.4)]

    Source: the FedDRM paper (arXiv:2509.23049) and its published code; eight clients differ, further ones repeat.
    """
    return [
        Saturation((0.5, 1.5)[client >> 2 & 1]),
        Hue((-0.1, 0.1)[client >> 1 & 1]),
        Gamma((0.6, 1.4)[client & 1]),
    ]


def _channels(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if images.shape[1] != 3:
        raise ValueError("hue and saturation are of colour images (n, 3, H, W). Apply Coloured() first.")
    red, green, blue = images.float().unbind(1)
    return red, green, blue


def _look_up(table: Tensor, images: Tensor) -> Tensor:
    return to_bytes(table)[images.int()]
