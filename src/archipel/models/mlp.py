"""A multi-layer perceptron as an encoder, for tables, short series and other examples that may be flattened."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from archipel.models.norm import output_layer


class MLP(nn.Module):
    """Flattening, then linear layers with ReLU between them; the output has no ReLU.

    Args:
        shape: of one example, which is flattened to d values.
        features: dimension of the output.
        hidden: widths of the hidden layers; without any the network is a linear map.
        standardise: pass the output through LayerNorm without parameters (mean 0, variance 1 over the features).

    Returns (forward): (n, *shape) float to (n, features).

    >>> import torch
    >>> MLP((13,), features=32)(torch.zeros(5, 13)).shape
    torch.Size([5, 32])
    """

    def __init__(
        self, shape: Sequence[int], features: int = 32, hidden: Sequence[int] = (128,), standardise: bool = True
    ) -> None:
        super().__init__()
        widths = [math.prod(shape), *hidden]
        if min(*widths, features) < 1:
            raise ValueError(
                f"an MLP's layers have a width of 1 or more; shape={shape}, hidden={hidden}, features={features}."
            )
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers, output_layer(widths[-1], features, standardise))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]
