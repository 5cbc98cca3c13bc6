"""Models: small encoders, modules from (n, *shape) floats to (n, features)."""

from archipel.models.lenet import LeNet
from archipel.models.mlp import MLP
from archipel.models.registry import ENCODERS, build
from archipel.models.resnet import ResNet

__all__ = ["ENCODERS", "MLP", "LeNet", "ResNet", "build"]
