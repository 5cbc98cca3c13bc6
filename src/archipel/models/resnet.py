"""Residual networks with GroupNorm as encoders, in variants for small images."""

from collections.abc import Sequence

from torch import Tensor, nn

from archipel.models.norm import Norm, image_shape, normalisation, output_layer

# By depth: channels of the stages, and residual blocks in each. Depths 8 and 20 are He et al.'s 6n + 2 for CIFAR with
# n = 1 and 3; 18 is their network for ImageNet with a 3×3 first convolution, which keeps the size of small images.
STAGES: dict[int, tuple[tuple[int, ...], int]] = {
    8: ((16, 32, 64), 1),
    18: ((64, 128, 256, 512), 2),
    20: ((16, 32, 64), 3),
}


class ResNet(nn.Module):
    """A 3×3 convolution, stages of residual blocks that halve the size, averaging over pixels, and a linear layer.

    Args:
        shape: (channels, height, width).
        features: dimension of the output, which is linear.
        depth: 8, 18 or 20 layers.
        norm: "group", or "batch" for BatchNorm, whose models can't be stacked over clients.
        groups: groups of GroupNorm.
        standardise: pass the output through LayerNorm without parameters (mean 0, variance 1 over the features).

    Returns (forward): (n, *shape) float to (n, features).

    Raises:
        ValueError: the shape isn't that of an image, or the depth is unknown.

    >>> import torch
    >>> ResNet((3, 32, 32), features=64, depth=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])

    Source: He et al. (2016), Deep residual learning for image recognition, CVPR, Sec. 4.2.
    """

    def __init__(
        self,
        shape: Sequence[int],
        features: int = 32,
        depth: int = 8,
        norm: Norm = "group",
        groups: int = 8,
        standardise: bool = True,
    ) -> None:
        super().__init__()
        if depth not in STAGES:
            raise ValueError(f"depth is {depth}; a ResNet has one of {', '.join(map(str, STAGES))} layers.")
        widths, blocks = STAGES[depth]
        colours, _, _ = image_shape(shape, "ResNet")
        layers: list[nn.Module] = [_conv(colours, widths[0]), normalisation(widths[0], norm, groups), nn.ReLU()]
        before = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Residual(before, width, stride, norm, groups))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.output = output_layer(before, features, standardise)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions so that the variance stays constant over depth (He et al., 2015)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.blocks(x).mean((2, 3)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut: x ↦ ReLU(F(x) + Sx), with S a 1×1 convolution if the shape changes.

    >>> import torch
    >>> Residual(16, 32, stride=2)(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, before: int, after: int, stride: int = 1, norm: Norm = "group", groups: int = 8) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv(before, after, stride=stride),
            normalisation(after, norm, groups),
            nn.ReLU(),
            _conv(after, after),
            normalisation(after, norm, groups),
        )
        changes = stride != 1 or before != after
        self.shortcut = (
            nn.Sequential(_conv(before, after, size=1, stride=stride), normalisation(after, norm, groups))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu()  # type: ignore[no-any-return]


def _conv(before: int, after: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    # No bias: a normalisation with its own follows.
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
