"""LeNet with GroupNorm as an encoder: two convolutions, for small images and many clients."""

from collections.abc import Sequence

from torch import Tensor, nn

from archipel.models.norm import image_shape, normalisation, output_layer

# (s − 4) / 2 twice must leave a pixel.
SMALLEST = 16


class LeNet(nn.Module):
    """Two blocks of a 5×5 convolution, 2×2 max-pooling, GroupNorm and ReLU; then a linear layer.

    Pooling precedes normalisation and activation, which then process a quarter of the pixels; a round takes about a
    quarter less time. The output has no ReLU, since a density ratio exp(γ + ξᵀh) needs features of both signs.

    Args:
        shape: (channels, height, width), 16×16 pixels or more.
        features: dimension of the output.
        channels: output channels of the two convolutions.
        groups: groups of GroupNorm; the greatest common divisor of groups and channels is used.
        standardise: pass the output through LayerNorm without parameters (mean 0, variance 1 over the features).

    Returns (forward): (n, *shape) float to (n, features).

    Raises:
        ValueError: the shape isn't that of an image, or the image is too small.

    >>> import torch
    >>> LeNet((3, 28, 28), features=32)(torch.zeros(5, 3, 28, 28)).shape
    torch.Size([5, 32])

    Source: LeCun et al. (1998), Gradient-based learning applied to document recognition, Proc. IEEE.
    """

    def __init__(
        self,
        shape: Sequence[int],
        features: int = 32,
        channels: tuple[int, int] = (16, 32),
        groups: int = 4,
        standardise: bool = True,
    ) -> None:
        super().__init__()
        colours, height, width = image_shape(shape, "LeNet", SMALLEST)
        layers: list[nn.Module] = []
        for before, after in zip((colours, channels[0]), channels, strict=True):
            layers += [nn.Conv2d(before, after, 5), nn.MaxPool2d(2), normalisation(after, groups=groups), nn.ReLU()]
            height, width = (height - 4) // 2, (width - 4) // 2
        self.convolutions = nn.Sequential(*layers)
        self.output = output_layer(channels[1] * height * width, features, standardise)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.convolutions(x).flatten(1))  # type: ignore[no-any-return]
