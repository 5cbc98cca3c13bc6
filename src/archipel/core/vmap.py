"""Code that runs for one client, or inside ``torch.func.vmap`` for many: access to the stacked tensors of all of them.

Inside ``vmap`` a client's tensor is a row of a stacked one, and every operation goes through a batching rule. A loss
needs this. Its gradient does not: the gradients of all clients' losses by the stacked parameters are one plain
gradient, and an SGD step or a selection of rows can work on the stacked tensors too. That takes far fewer operations
than ``torch.func.grad`` and updates inside ``vmap``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import torch_internals
from archipel.core.torch_internals import foreach_norm


def inside_vmap() -> bool:
    """Whether the caller runs inside ``torch.func.vmap``."""
    return torch_internals.peek_interpreter() is not None


@dataclass(frozen=True)
class VmapLevel:
    """The ``vmap`` around the caller, or none.

    Args:
        size: how many clients are stacked; ``None`` outside of ``vmap``, where a client's tensors are plain ones.
        level: torch's number of the ``vmap``.

    >>> def middle(x):
    ...     level = VmapLevel.current()
    ...     return level.wrap(level.unwrap(x) + torch.arange(level.size)[:, None])
    >>> torch.func.vmap(middle)(torch.zeros(2, 3))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """

    size: int | None = None
    level: int = 0

    @classmethod
    def current(cls) -> VmapLevel:
        """Return the level of the calling code.

        Raises:
            NotImplementedError: inside of several transformations of ``torch.func``, or of one other than ``vmap``.
        """
        around = torch_internals.interpreter_stack()
        if not around:
            return cls()
        interpreter = torch_internals.coerce_interpreter(around[-1])
        if len(around) > 1 or not isinstance(interpreter, torch_internals.VmapInterpreter):
            raise NotImplementedError(
                "A local run works inside one torch.func.vmap, but not inside several, nor inside another "
                "transformation of torch.func."
            )
        return cls(interpreter.batch_size(), interpreter.level())

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Suspend the ``vmap``: operations inside this context work on stacked tensors."""
        if self.size is None:
            yield
        else:
            with torch_internals.popped_interpreters():
                yield

    def unwrap(self, tensor: Tensor) -> Tensor:
        """Return the stacked tensor, ``(size, …)``; a tensor that all clients share is returned itself."""
        if self.size is None or not torch_internals.is_batched(tensor):
            return tensor
        stacked: Tensor = torch_internals.unwrapped(tensor)
        place = torch_internals.batch_dim(tensor)
        return stacked.movedim(place, 0) if place else stacked

    def wrap(self, stacked: Tensor) -> Tensor:
        """Return what each client sees of a stacked tensor."""
        if self.size is None:
            return stacked
        seen: Tensor = torch_internals.add_batch_dim(stacked, 0, self.level)
        return seen

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor for each client, ``(size, …)``, shared ones too."""
        stacked = self.unwrap(tensor)
        if self.size is not None and stacked is tensor:
            stacked = stacked.expand(self.size, *stacked.shape)
        return stacked.detach().clone()

    def broadcast(self, numbers: Tensor, stacked: Tensor) -> Tensor:
        """Reshape one number for each client so that it broadcasts against a stacked tensor."""
        return numbers if numbers.dim() == 0 else numbers.reshape(-1, *[1] * (stacked.dim() - 1))

    def norm(self, tensors: list[Tensor]) -> Tensor:
        """Return each client's Euclidean norm of all the stacked tensors together; of no tensors it is 0."""
        if not tensors:
            return torch.zeros(() if self.size is None else self.size)
        if self.size is None:
            return torch.stack(foreach_norm(tensors)).square().sum().sqrt()
        squares = [t.reshape(self.size, -1).square().sum(1) for t in tensors]
        return torch.stack(squares).sum(0).sqrt()


def take_rows(column: Tensor, index: Tensor) -> Tensor:
    """Select rows of a tensor by their numbers: ``column[index]``, ``(N, …)`` and ``(B,)`` → ``(B, …)``."""
    around = torch_internals.interpreter_stack()
    if not around:
        return column.index_select(0, index)
    if len(around) > 1 or not torch_internals.is_batched(index):
        return column[index]
    # vmap's own rules gather number by number, or keep an index for every dimension.
    level = VmapLevel.current()
    with level.outside():
        stacked, places = level.unwrap(column), level.unwrap(index)
        if stacked is not column:  # each client has a column of its own
            places = places + torch.arange(len(stacked), device=places.device)[:, None] * stacked.shape[1]
            stacked = stacked.flatten(0, 1)
        rows = stacked.index_select(0, places.reshape(-1))
        return level.wrap(rows.unflatten(0, places.shape))
