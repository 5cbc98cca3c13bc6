"""What a client step sees of its client's data: columns of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.row_window import RowWindow
from archipel.core.torch_internals import pytree
from archipel.core.vmap import take_rows


@dataclass(frozen=True)
class Examples:
    """Columns with one row for each example, padded if clients of different sizes are batched.

    Args:
        stored: columns by name, tensors of shape ``(N, …)`` or row windows of that length. ``"x"`` and ``"y"`` come
            from the federation; a step may add its own (responsibilities) with :meth:`adding`.
        count: int64 of shape ``()``, how many of the N rows are real. The real rows come first.
        min_count: the smallest count in the batch of clients; the client's own count if it runs alone.

    >>> data = Examples.of({"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([0, 1, 1])})
    >>> data.length, int(data.count), data["y"].tolist()
    (3, 3, [0, 1, 1])
    """

    stored: Mapping[str, Tensor | RowWindow]
    count: Tensor
    min_count: int

    @classmethod
    def of(cls, columns: dict[str, Tensor]) -> Examples:
        """Return examples all of whose rows are real."""
        length = len(next(iter(columns.values())))
        return cls(columns, torch.full((), length), length)

    def __getitem__(self, name: str) -> Tensor:
        column = self.stored[name]
        return column[:] if isinstance(column, RowWindow) else column

    @property
    def columns(self) -> dict[str, Tensor]:
        """All rows of every column."""
        return {name: self[name] for name in self.stored}

    @property
    def length(self) -> int:
        """N, the padded number of rows."""
        return len(next(iter(self.stored.values())))

    @property
    def mask(self) -> Tensor:
        """``(N,)`` bool, true for real rows."""
        return torch.arange(self.length, device=self.count.device) < self.count

    def adding(self, **columns: Tensor) -> Examples:
        """Return the same examples with more columns."""
        return replace(self, stored={**self.stored, **columns})

    def take(self, index: Tensor) -> dict[str, Tensor]:
        """Return the rows with these numbers, of every column."""
        return {
            name: column.take(index) if isinstance(column, RowWindow) else take_rows(column, index)
            for name, column in self.stored.items()
        }

    def draw(self, size: int | None, key: Tensor, replacement: bool = False) -> tuple[dict[str, Tensor], Tensor]:
        """Draw a minibatch: its columns, and which of its rows count.

        Args:
            size: how many examples; without replacement all of them where there are fewer. ``None``: all examples.
            key: int64 of shape ``()``.
            replacement: draw with replacement.
        """
        if size is None:
            return self.columns, self.mask
        if replacement:  # as many as asked for, from however few there are
            u = keys.uniform(key, size, dtype=torch.float64)
            return self.take((u * self.count).to(torch.int64)), torch.ones_like(u, dtype=torch.bool)
        size = min(size, self.length)
        rows = keys.permutation(key, self.length, self.count)[:size]
        return self.take(rows), torch.arange(size, device=key.device) < self.count

    def pieces(self, size: int) -> Iterator[dict[str, Tensor]]:
        """Yield all rows in order, padding included, at most ``size`` at a time."""
        for start in range(0, self.length, size):
            yield {name: column[start : start + size] for name, column in self.stored.items()}

    def in_pieces(self, function: Callable[[dict[str, Tensor]], Tensor], size: int = 512) -> Tensor:
        """Concatenate what a function returns of all rows, padding included, ``size`` rows at a time."""
        return torch.cat([function(batch) for batch in self.pieces(size)])


def _unflatten(children: Iterable[Any], min_count: int) -> Examples:
    stored, count = children
    return Examples(stored, count, min_count)


pytree.register_pytree_node(
    Examples,
    lambda node: ([node.stored, node.count], node.min_count),
    _unflatten,
    serialized_type_name="archipel.core.examples.Examples",
)


@dataclass(frozen=True)
class ClientData:
    """A client's own data.

    Training steps see ``train`` alone; only an evaluation receives the held-out parts.

    Args:
        train: examples for training.
        validation: held-out examples for choices; ``None`` in training or where there are none.
        test: held-out examples for evaluation; ``None`` in training or where there are none.
    """

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None


def _flatten_parts(data: ClientData) -> tuple[list[Examples], tuple[str, ...]]:
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    present = {name: part for name, part in parts.items() if part is not None}
    return list(present.values()), tuple(present)


pytree.register_pytree_node(
    ClientData,
    _flatten_parts,
    lambda children, names: ClientData(**dict(zip(names, children, strict=True))),
    serialized_type_name="archipel.core.examples.ClientData",
)
