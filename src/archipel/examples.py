"""What a step sees of its client's data: columns of examples, and minibatches drawn from them by key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from archipel import keys


@dataclass(frozen=True)
class Examples:
    """Columns with one row an example, perhaps padded so that clients of different sizes can be batched.

    Args:
        columns: by name, tensors of shape ``(N, …)``; ``"x"`` and ``"y"`` come from the federation, a step may add
            its own (responsibilities) by :meth:`adding`.
        count: int64 of shape ``()``, how many of the N rows are real; the real ones come first.
        fewest: the smallest count in the batch of clients this client is stacked with; its own when it stands alone.

    >>> data = Examples.of({"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([0, 1, 1])})
    >>> data.length, int(data.count), data["y"].tolist()
    (3, 3, [0, 1, 1])
    """

    columns: dict[str, Tensor]
    count: Tensor
    fewest: int

    @classmethod
    def of(cls, columns: dict[str, Tensor]) -> Examples:
        """All rows real."""
        length = len(next(iter(columns.values())))
        return cls(columns, torch.tensor(length), length)

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    @property
    def length(self) -> int:
        """N, the padded number of rows."""
        return len(next(iter(self.columns.values())))

    @property
    def mask(self) -> Tensor:
        """``(N,)``, true for real rows."""
        return torch.arange(self.length, device=self.count.device) < self.count

    def adding(self, **columns: Tensor) -> Examples:
        """The same examples with more columns."""
        return replace(self, columns=self.columns | columns)

    def take(self, index: Tensor) -> dict[str, Tensor]:
        """Rows of every column."""
        return {name: column[index] for name, column in self.columns.items()}

    def pieces(self, size: int) -> Iterator[dict[str, Tensor]]:
        """The rows in order, at most ``size`` at a time, padding included: for passes over all the data."""
        for start in range(0, self.length, size):
            yield {name: column[start : start + size] for name, column in self.columns.items()}


def _unflatten(children: Iterable[Any], fewest: int) -> Examples:
    columns, count = children
    return Examples(columns, count, fewest)


pytree.register_pytree_node(
    Examples,
    lambda node: ([node.columns, node.count], node.fewest),
    _unflatten,
    serialized_type_name="archipel.examples.Examples",
)


@dataclass(frozen=True)
class ClientData:
    """A client's own data. Training steps see ``train`` alone; only an evaluation is given the held-out parts."""

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
    serialized_type_name="archipel.examples.ClientData",
)


@dataclass(frozen=True)
class Draws:
    """The minibatches of a local run, drawn beforehand.

    Args:
        index: ``(S, B)`` rows to take in each of S steps.
        mask: ``(S, B)``, true where a row counts; the last batch of a pass may be short.
        active: ``(S,)``, true for the steps that this client makes; clients of one batch may make different numbers.
    """

    index: Tensor
    mask: Tensor
    active: Tensor


def draw_minibatches(
    examples: Examples, key: Tensor, batch: int | None, *, steps: int | None = None, epochs: int | None = None
) -> Draws:
    """Minibatches in shuffled passes over the data, each pass a new permutation of its own key.

    One pass has ⌈n/B⌉ batches and visits every example once; its last batch holds what is left (a client with 3
    examples and B = 10 makes batches of 3). ``steps`` go on through as many passes as they need. What is drawn depends
    on the key and on n alone, not on padding, so that looped and batched runs draw the same.

    Args:
        examples: the client's examples.
        key: int64 of shape ``()``.
        batch: B; ``None``: all the data in every step.
        steps: S, the number of steps, or else
        epochs: the number of passes.

    Returns:
        The draws; S is ``epochs`` · ⌈N/B⌉ where ``epochs`` is given.

    >>> data = Examples.of({"x": torch.zeros(5, 1)})
    >>> draws = draw_minibatches(data, keys.key(0), 2, epochs=1)
    >>> sorted(draws.index[draws.mask].tolist())
    [0, 1, 2, 3, 4]
    """
    length, count = examples.length, examples.count
    size = min(batch or length, length)
    per_pass = torch.clamp((count + size - 1) // size, min=1)
    if steps is None:
        assert epochs is not None
        steps, passes = epochs * math.ceil(length / size), epochs
        limit = epochs * per_pass
    else:
        passes = math.ceil(steps / max(1, math.ceil(examples.fewest / size)))
        limit = torch.full_like(per_pass, steps)
    if batch is None:
        # The full batch needs no shuffling, and the same rows in the same order keep sums equal to the bit.
        orders = torch.arange(length, device=count.device).expand(passes, length)
    else:
        orders = torch.stack([keys.permutation(keys.fold(key, p), length, count) for p in range(passes)])
    step = torch.arange(steps, device=count.device)
    position = (step % per_pass)[:, None] * size + torch.arange(size, device=count.device)
    mask = (position < count) & (step < limit)[:, None]
    which_pass = torch.clamp(step // per_pass, max=passes - 1)[:, None] * length
    index = orders.reshape(-1)[which_pass + torch.clamp(position, max=length - 1)]
    return Draws(torch.where(mask, index, orders[0, 0]), mask, step < limit)
