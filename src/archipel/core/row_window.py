"""A client's rows in a table of all clients' rows, for engines that stack clients."""

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
    """One client's column, which stays in the table until rows of it are needed.

    If a client takes a few minibatches of many examples, only these rows are copied.

    Args:
        table: ``(n, …)``, the rows of all clients, client by client.
        first: int64 of shape ``()``, the client's first row.
        last: int64 of shape ``()``, the client's last row; ``first - 1`` if it has none.
        length: N, the apparent length of the column: the longest client's, so that all have the same shape.

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
        """Return these rows in order."""
        return self.take(torch.arange(self.length, device=self.first.device)[rows])

    def take(self, index: Tensor) -> Tensor:
        """Return rows by their numbers in the window, ``(B,)`` → ``(B, …)``; padding repeats the client's last row."""
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
