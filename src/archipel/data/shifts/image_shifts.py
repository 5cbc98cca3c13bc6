"""Shifts of images: frozen dataclasses, each a fixed function of uint8 images (n, C, H, W).

They compose, and are rounded and clipped to 0 … 255 after each. The FedSPM paper's clients combine `Inverted`, `Cast`
and `Brightened`; FedDRM's those of `archipel.data.shifts.colours`.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from archipel.data.client import Columns
from archipel.data.federation import Federation
from archipel.data.shifts.shift import Shift, check_finite, check_word
from archipel.data.shifts.transforms import BATCH, brighten, dominate, grey_to_rgb, invert_green, invert_grey


class ImageShift(Shift):
    """A shift of images alone, applied once, a batch at a time."""

    @abstractmethod
    def change(self, images: Tensor) -> Tensor:
        """Change uint8 images (n, C, H, W)."""

    @final
    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        parts = [self.change(part) for part in torch.split(columns["x"], BATCH)]
        return columns | {"x": torch.cat(parts)}, truth

    @final
    def check(self, federation: Federation) -> None:
        if federation.inputs.kind != "image" or federation.inputs.dtype != torch.uint8:
            raise ValueError(
                f"{type(self).__name__} changes uint8 images; {federation.name!r} holds {federation.inputs.kind} data "
                f"of {federation.inputs.dtype}."
            )


@dataclass(frozen=True)
class Coloured(ImageShift):
    """Grey images as colour images of three equal channels; colour images stay."""

    def change(self, images: Tensor) -> Tensor:
        return images if images.shape[1] == 3 else grey_to_rgb(images).contiguous()


@dataclass(frozen=True)
class Inverted(ImageShift):
    """v becomes 255 − v, in all channels or in the green one."""

    channels: Literal["all", "green"] = "all"

    def __post_init__(self) -> None:
        check_word("channels", self.channels, ("all", "green"))

    def change(self, images: Tensor) -> Tensor:
        return invert_green(images) if self.channels == "green" else invert_grey(images)


@dataclass(frozen=True)
class Cast(ImageShift):
    """A red or blue cast of colour images, as `archipel.data.shifts.transforms.dominate`."""

    colour: Literal["red", "blue"]

    def __post_init__(self) -> None:
        check_word("colour", self.colour, ("red", "blue"))

    def change(self, images: Tensor) -> Tensor:
        return dominate(images, self.colour)


@dataclass(frozen=True)
class Brightened(ImageShift):
    """A ramp of light from an edge, as `archipel.data.shifts.transforms.brighten`."""

    edge: Literal["top", "bottom", "left", "right"]

    def __post_init__(self) -> None:
        check_word("edge", self.edge, ("top", "bottom", "left", "right"))

    def change(self, images: Tensor) -> Tensor:
        return brighten(images, self.edge)


@dataclass(frozen=True)
class Rotated(ImageShift):
    """Turned about the centre, counter-clockwise, bilinearly; pixels from outside the image are black.

    Args:
        degrees: the angle. Quarter turns of square images move pixels and change none.
    """

    degrees: float

    def __post_init__(self) -> None:
        check_finite("degrees", self.degrees)

    def change(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if self.degrees % 90 == 0 and (height == width or self.degrees % 180 == 0):
            return torch.rot90(images, int(self.degrees // 90) % 4, (2, 3)).contiguous()
        angle = math.radians(self.degrees)
        cos, sin = math.cos(angle), math.sin(angle)
        # Where each pixel comes from, in coordinates from −1 to 1 on both axes, y downwards.
        rows = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
        turn = torch.tensor([rows], dtype=torch.float64)  # double: rounded alike on any number of threads
        grid = functional.affine_grid(turn, [1, 1, height, width], align_corners=False)
        grid = grid.expand(len(images), -1, -1, -1)
        return to_bytes(functional.grid_sample(images.double(), grid, align_corners=False))


@dataclass(frozen=True)
class Blurred(ImageShift):
    """Convolved with a Gaussian that is cut off at 3σ; edges are repeated.

    Args:
        sigma: standard deviation in pixels, above 0.
    """

    sigma: float

    def __post_init__(self) -> None:
        check_finite("sigma", self.sigma, above=0)

    def change(self, images: Tensor) -> Tensor:
        radius = math.ceil(3 * self.sigma)
        weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / self.sigma) ** 2)
        channels = images.shape[1]
        kernel = (weights / weights.sum()).expand(channels, 1, 1, -1)
        padded = functional.pad(images.double(), (radius,) * 4, mode="replicate")
        across = functional.conv2d(padded, kernel, groups=channels)
        return to_bytes(functional.conv2d(across, kernel.transpose(2, 3), groups=channels))


def to_bytes(values: Tensor) -> Tensor:
    """Round half up, and clip."""
    return (values + 0.5).floor().clamp(0, 255).to(torch.uint8)
