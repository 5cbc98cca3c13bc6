"""Random augmentation, drawn anew for every minibatch by key: functions ``(x, key) → x`` for `SGD(augment=…)`.

They work on images as they are stored, before normalisation, and inside torch.func.vmap. Each example draws by its
place in the batch, so that a batch that is padded draws the same for its real examples.

>>> from archipel.learning.sgd import SGD
>>> from archipel.core import keys
>>> augment = Augment((Crop(padding=4), Flip()))
>>> augment(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), keys.key(0)).shape
torch.Size([8, 3, 32, 32])
>>> solver = SGD(lr=0.1, steps=10, augment=augment)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from archipel.core import keys

Augmentation = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Crop:
    """Pad with black on all sides, then cut a window of the original size at a random place.

    Args:
        padding: images move by up to that many pixels, 1 or more; 4 is customary for 32×32.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise ValueError(f"padding is {self.padding}; images move by up to that many pixels, so it is 1 or more.")

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Crop images (B, C, H, W)."""
        count, channels, height, width = x.shape
        padded = functional.pad(x, (self.padding,) * 4)
        starts = [keys.integers(keys.fold(key, axis), 2 * self.padding + 1, count) for axis in ("down", "across")]
        rows, columns = (
            start[:, None] + torch.arange(side, device=x.device)
            for start, side in zip(starts, (height, width), strict=True)
        )
        rows = rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3])
        columns = columns[:, None, None, :].expand(-1, channels, height, -1)
        return padded.gather(2, rows).gather(3, columns)


@dataclass(frozen=True)
class Flip:
    """Mirror images left to right.

    Args:
        rate: with this probability.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; it is a probability, from 0 to 1.")

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Mirror some of the images (B, C, H, W)."""
        chosen = keys.uniform(keys.fold(key, "flip"), x.shape[0]) < self.rate
        return torch.where(chosen[:, None, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Augment:
    """Several augmentations, one after the other.

    Args:
        steps: functions of images (B, C, H, W) and a key.
    """

    steps: tuple[Augmentation, ...]

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Apply all, each with a key of its own."""
        for number, step in enumerate(self.steps):
            x = step(x, keys.fold(key, number))
        return x
