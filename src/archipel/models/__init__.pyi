from archipel.models.lenet import LeNet as LeNet
from archipel.models.mlp import MLP as MLP
from archipel.models.registry import ENCODERS as ENCODERS
from archipel.models.registry import build as build
from archipel.models.resnet import ResNet as ResNet
