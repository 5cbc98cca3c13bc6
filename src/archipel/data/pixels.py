"""Images as tensors, resized as queries are."""

import torch
from torch import Tensor

from archipel_serve import pixels
from archipel_serve.pixels import Resizing


def resize(images: Tensor, height: int, width: int, how: Resizing = "stretch") -> Tensor:
    """Resize images (n, C, H, W), uint8 or float, by :func:`archipel_serve.pixels.resize`.

    >>> resize(torch.tensor([[[[0, 100]]]], dtype=torch.uint8), 1, 4).flatten().tolist()
    [0, 25, 75, 100]
    """
    if images.shape[2:] == (height, width):
        return images
    return torch.from_numpy(pixels.resize(images.numpy(), height, width, how))
