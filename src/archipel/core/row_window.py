"""A client's rows within a table of all clients' rows, for engines that stack clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.core.torch_internals import pytree
from archipel.core.vmap import take_rows


@dataclass(frozen=True)
class RowWindow:
    """One client's column, left in the table until rows of it are asked for.

    A client that takes a few minibatches of its many examples has only these copied, once.

    Args:
        table: ``(n, …)``, the rows of all clients end to end.
        first: int64 of shape ``()``, where the client's begin.
        last: int64 of shape ``()``, where they end; a client without any has ``first - 1``, whatever stands there.
        length: N, as how long the column is seen: the longest client's, so that all look alike.

    >>> RowWindow(torch.arange(6), torch.tensor(2), torch.tensor(3), length=3).take(torch.tensor([0, 1, 2]))
    tensor([2, 3, 3])
    """

    table: Tensor
    first: Tensor
    last: Tensor
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: slice) -> Tensor:
        """These rows in their order, as a tensor has them."""
        return self.take(torch.arange(self.length, device=self.first.device)[rows])

    def take(self, index: Tensor) -> Tensor:
        """Rows by their numbers within the window, ``(B,)`` → ``(B, …)``; padding repeats the client's last row."""
        return take_rows(self.table, torch.minimum(self.first + index, self.last).clamp(min=0))


def _unflatten(children: Iterable[Any], length: int) -> RowWindow:
    table, first, last = children
    return RowWindow(table, first, last, length)


pytree.register_pytree_node(
    RowWindow,
    lambda node: ([node.table, node.first, node.last], node.length),
    _unflatten,
    serialized_type_name="archipel.core.row_window.RowWindow",
)
