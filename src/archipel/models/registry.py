"""Encoders by the names that configurations use."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import nn

from archipel.models.lenet import LeNet
from archipel.models.mlp import MLP
from archipel.models.resnet import ResNet

ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "resnet8": partial(ResNet, depth=8),
    "resnet20": partial(ResNet, depth=20),
    "resnet18": partial(ResNet, depth=18),
}


def build(name: str, shape: Sequence[int], features: int = 32, **options: Any) -> nn.Module:
    """Build an encoder, a module from (n, *shape) floats to (n, features).

    Args:
        name: "mlp", "lenet", "resnet8", "resnet20" or "resnet18".
        shape: of one example, as `Inputs.shape`.
        features: dimension of the output.
        options: the encoder's own arguments, such as hidden=(64, 64) for an MLP.

    Raises:
        ValueError: an unknown name or option, or a shape that the encoder can't process.

    >>> build("lenett", (3, 28, 28))
    Traceback (most recent call last):
    ValueError: there is no model 'lenett'. Did you mean 'lenet'? There are: mlp, lenet, resnet8, resnet20, resnet18.
    """
    check_options(name, options)
    if features < 1:
        raise ValueError(f"features is {features}; the dimension of the encoder's output must be 1 or more.")
    return ENCODERS[name](shape, features, **options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse an encoder that doesn't exist, or options that it doesn't have.

    Raises:
        ValueError: the message suggests the nearest name.

    >>> check_options("mlp", ["hiden"])
    Traceback (most recent call last):
    ValueError: mlp has no option 'hiden'. Did you mean 'hidden'? It takes: hidden, standardise.
    """
    if name not in ENCODERS:
        raise ValueError(f"there is no model {name!r}.{_nearest(name, ENCODERS)} There are: {', '.join(ENCODERS)}.")
    encoder = ENCODERS[name]
    fixed = encoder.keywords if isinstance(encoder, partial) else {}
    allowed = [key for key in inspect.signature(encoder).parameters if key not in {"shape", "features", *fixed}]
    for key in options:
        if key not in allowed:
            raise ValueError(f"{name} has no option {key!r}.{_nearest(key, allowed)} It takes: {', '.join(allowed)}.")


def _nearest(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
