"""Beneath ``torch.func.vmap``: the stacked tensors of all clients of a batch, or the plain ones of a single client.

Inside ``vmap`` a client's tensor is a row of a stacked one, and every operation goes through a batching rule. A loss
has to; but its gradient is the plain gradient of all the losses by the stacked parameters, and a step of SGD or a
choice of rows can work on the stacks as they are, with far less to do than ``torch.func.grad`` and updates in ``vmap``.
This is the one module that looks beneath, by what torch's own higher-order operators use for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._functorch import pyfunctorch

_functorch = torch._C._functorch


@dataclass(frozen=True)
class Stack:
    """Whom this code runs for: the clients that a ``vmap`` has stacked, or one client by itself.

    Args:
        size: how many clients are stacked; ``None``: a single one, whose tensors are what they are.
        level: the number that torch gave the ``vmap``.

    >>> def middle(x):
    ...     stack = Stack.here()
    ...     return stack.row(stack.under(x) + torch.arange(stack.size)[:, None])
    >>> torch.func.vmap(middle)(torch.zeros(2, 3))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """

    size: int | None = None
    level: int = 0

    @classmethod
    def here(cls) -> Stack:
        """Of the line that calls it.

        Raises:
            NotImplementedError: inside of more than one transformation of ``torch.func``, or of another than ``vmap``.
        """
        around = _functorch.get_interpreter_stack()
        if not around:
            return cls()
        interpreter = pyfunctorch.coerce_cinterpreter(around[-1])
        if len(around) > 1 or not isinstance(interpreter, pyfunctorch.VmapInterpreter):
            raise NotImplementedError("A local run may stand inside one torch.func.vmap, and in no other torch.func.")
        return cls(interpreter.batch_size(), interpreter.level())

    @contextmanager
    def beneath(self) -> Iterator[None]:
        """Inside, operations are those on stacked tensors."""
        if self.size is None:
            yield
        else:
            with pyfunctorch.temporarily_pop_interpreter_stack():
                yield

    def under(self, tensor: Tensor) -> Tensor:
        """The stacked tensor, ``(size, …)``; one in which clients don't differ is what it is."""
        if self.size is None or not _functorch.is_batchedtensor(tensor):
            return tensor
        stacked: Tensor = _functorch.get_unwrapped(tensor)
        place = _functorch.maybe_get_bdim(tensor)
        return stacked.movedim(place, 0) if place else stacked

    def row(self, stacked: Tensor) -> Tensor:
        """What each client sees of a stacked tensor."""
        if self.size is None:
            return stacked
        seen: Tensor = _functorch._add_batch_dim(stacked, 0, self.level)
        return seen

    def own(self, tensor: Tensor) -> Tensor:
        """A copy that no other client shares, ``(size, …)``."""
        stacked = self.under(tensor)
        if self.size is not None and stacked is tensor:
            stacked = stacked.expand(self.size, *stacked.shape)
        return stacked.detach().clone()

    def along(self, numbers: Tensor, stacked: Tensor) -> Tensor:
        """A number for each client, shaped so as to broadcast against a stacked tensor."""
        return numbers if numbers.dim() == 0 else numbers.reshape(-1, *[1] * (stacked.dim() - 1))

    def length(self, tensors: list[Tensor]) -> Tensor:
        """The norm of all the stacked tensors together, for each client."""
        if self.size is None:
            return torch.stack(torch._foreach_norm(tensors)).square().sum().sqrt()
        squares = [t.reshape(self.size, -1).square().sum(1) for t in tensors]
        return torch.stack(squares).sum(0).sqrt()


def take_rows(column: Tensor, index: Tensor) -> Tensor:
    """Rows of a tensor by their numbers: ``column[index]``, ``(N, …)`` and ``(B,)`` → ``(B, …)``."""
    around = _functorch.get_interpreter_stack()
    if not around:
        return column.index_select(0, index)
    if len(around) > 1 or not _functorch.is_batchedtensor(index):
        return column[index]
    # vmap's own rules gather number by number, or keep an index for every dimension.
    stack = Stack.here()
    with stack.beneath():
        stacked, places = stack.under(column), stack.under(index)
        if stacked is not column:  # each client has a column of its own
            places = places + torch.arange(len(stacked), device=places.device)[:, None] * stacked.shape[1]
            stacked = stacked.flatten(0, 1)
        rows = stacked.index_select(0, places.reshape(-1))
        return stack.row(rows.unflatten(0, places.shape))
