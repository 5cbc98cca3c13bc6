"""Images of another size."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Resizing = Literal["stretch", "crop"]

# Images a step, which needs floats: 4096 of 3×28×28 take 39 MB.
BATCH = 4096


def resize(images: Tensor, height: int, width: int, how: Resizing = "stretch") -> Tensor:
    """Resize images (n, C, H, W), uint8 or float, bilinearly, smoothed where they shrink; uint8 is rounded.

    Args:
        images: (n, C, H, W).
        height: of the result.
        width: of the result.
        how: "stretch" changes proportions where they differ; "crop" keeps them: the images are scaled until they
            cover the size, and cut at the centre.

    >>> resize(torch.tensor([[[[0, 100]]]], dtype=torch.uint8), 1, 4).flatten().tolist()
    [0, 25, 75, 100]
    >>> resize(torch.tensor([[[[0, 50, 100]]]], dtype=torch.uint8), 1, 1, "crop").flatten().tolist()
    [50]
    """
    if height < 1 or width < 1:
        raise ValueError(f"the size asked for is {height}×{width}; both sides are at least 1 pixel.")
    if tuple(images.shape[2:]) == (height, width):
        return images
    if how == "crop":
        scale = max(height / images.shape[2], width / images.shape[3])
        covering = max(height, round(images.shape[2] * scale)), max(width, round(images.shape[3] * scale))
        images = resize(images, *covering)
        top, left = (covering[0] - height) // 2, (covering[1] - width) // 2
        return images[:, :, top : top + height, left : left + width].contiguous()

    def one(part: Tensor) -> Tensor:
        sized = functional.interpolate(part.float(), (height, width), mode="bilinear", antialias=True)
        return sized if images.is_floating_point() else sized.round_().clamp_(0, 255).to(images.dtype)

    parts = [one(part) for part in torch.split(images, BATCH)] if len(images) else []
    return torch.cat(parts) if parts else images.new_zeros(0, images.shape[1], height, width)
