"""Pooling before ReLU: the same values and gradients to the bit, and less to compute.

ReLU is monotone, so it commutes with the maximum of a window, max relu(x) = relu(max x), and takes a stride² fewer
values after it. The gradient goes to the window's first maximum either way; where that is not positive, ReLU's
derivative is zero. Networks are mostly written as convolution, ReLU, pooling; on a CPU, where a small network's
activations cost as much as its convolutions, it shows (the floors of W1 in ``make speed``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor, nn

from archipel.core.torch_internals import is_hooked


class PoolFirst(nn.Sequential):
    """A ``torch.nn.Sequential`` that carries out ``ReLU, MaxPool2d`` as ``MaxPool2d, ReLU``.

    Its parts keep their names and places: who indexes it finds what was written.
    """

    def forward(self, x: Tensor) -> Tensor:
        for part in order(list(self)):
            x = part(x)
        return x


def order(parts: list[nn.Module]) -> Iterator[nn.Module]:
    """The parts in the order in which they are carried out.

    >>> [type(part).__name__ for part in order([nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()])]
    ['MaxPool2d', 'ReLU', 'ReLU']
    """
    waiting: nn.Module | None = None
    for part in parts:
        if waiting is not None and not _pools(part):
            yield waiting
            waiting = None
        if waiting is None and _rectifies(part):
            waiting = part
        else:
            yield part
    if waiting is not None:
        yield waiting


def pool_first(module: nn.Module) -> nn.Module:
    """A module with the same parameters and buffers, the same values and gradients, that pools before ReLU.

    Only inside a ``torch.nn.Sequential`` can it be seen what follows what. The given module isn't changed; it is
    returned itself where there is nothing to exchange.

    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    >>> type(pool_first(network)).__name__, type(network).__name__
    ('PoolFirst', 'Sequential')
    >>> pool_first(network)[0].weight is network[0].weight
    True
    """
    if not any(_gains(part) for part in module.modules()):
        return module
    kept = [*module.parameters(), *module.buffers()]
    module = copy.deepcopy(module, {id(tensor): tensor for tensor in kept})
    for part in module.modules():
        if _gains(part):
            part.__class__ = PoolFirst
    return module


def _gains(module: nn.Module) -> bool:
    # A subclass may have a forward of its own.
    if type(module) is not nn.Sequential:
        return False
    parts = list(module)
    return any(_rectifies(one) and _pools(next) for one, next in pairwise(parts))


def _rectifies(module: nn.Module) -> bool:
    return type(module) is nn.ReLU and not is_hooked(module)


def _pools(module: nn.Module) -> bool:
    # With dilation a window may lie in the padding alone, where the maximum is −∞ and ReLU of it is not. Indices would
    # tell of negative maxima.
    return (
        type(module) is nn.MaxPool2d
        and not module.return_indices
        and module.dilation in (1, (1, 1))
        and not is_hooked(module)
    )
