"""Max-pooling before ReLU: the same values and gradients to the bit, with less work.

ReLU is monotone, so it commutes with the maximum over a window, max relu(x) = relu(max x), and after pooling it has
fewer values to process, by the square of the stride. The gradient goes to the window's first maximum in both orders; if
that is not positive, ReLU's derivative is zero. Most networks are written as convolution, ReLU, pooling. On a CPU a
small network's activations cost as much as its convolutions, so the order matters there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor, nn

from archipel.core.torch_internals import is_hooked


class PoolFirst(nn.Sequential):
    """A ``torch.nn.Sequential`` that computes ``ReLU, MaxPool2d`` as ``MaxPool2d, ReLU``.

    Its parts keep their names and positions.
    """

    def forward(self, x: Tensor) -> Tensor:
        for part in order(list(self)):
            x = part(x)
        return x


def order(parts: list[nn.Module]) -> Iterator[nn.Module]:
    """Yield the parts in the order in which they are computed.

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
    """Return a module with the same parameters, buffers, values and gradients that pools before ReLU.

    Only a ``torch.nn.Sequential`` shows which part follows which, so only its parts are exchanged. The given module
    isn't changed. If there is nothing to exchange, it is returned itself.

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
    # With dilation a window may lie in the padding alone, where the maximum is −∞, and ReLU of it is 0. Indices, where
    # they are returned, would reveal negative maxima.
    return (
        type(module) is nn.MaxPool2d
        and not module.return_indices
        and module.dilation in (1, (1, 1))
        and not is_hooked(module)
    )
