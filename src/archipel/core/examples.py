"""What a step sees of its client's data: columns of examples, and minibatches drawn from them by key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from archipel.core import keys
from archipel.core.row_window import Window
from archipel.core.vmap import take_rows


@dataclass(frozen=True)
class Examples:
    """Columns with one row an example, perhaps padded so that clients of different sizes can be batched.

    Args:
        held: columns by name, tensors of shape ``(N, …)`` or windows of that length; ``"x"`` and ``"y"`` come from the
            federation, a step may add its own (responsibilities) by :meth:`adding`.
        count: int64 of shape ``()``, how many of the N rows are real; the real ones come first.
        fewest: the smallest count in the batch of clients this client is stacked with; its own when it stands alone.

    >>> data = Examples.of({"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([0, 1, 1])})
    >>> data.length, int(data.count), data["y"].tolist()
    (3, 3, [0, 1, 1])
    """

    held: Mapping[str, Tensor | Window]
    count: Tensor
    fewest: int

    @classmethod
    def of(cls, columns: dict[str, Tensor]) -> Examples:
        """All rows real."""
        length = len(next(iter(columns.values())))
        return cls(columns, torch.full((), length), length)

    def __getitem__(self, name: str) -> Tensor:
        column = self.held[name]
        return column[:] if isinstance(column, Window) else column

    @property
    def columns(self) -> dict[str, Tensor]:
        """All rows of every column."""
        return {name: self[name] for name in self.held}

    @property
    def length(self) -> int:
        """N, the padded number of rows."""
        return len(next(iter(self.held.values())))

    @property
    def mask(self) -> Tensor:
        """``(N,)``, true for real rows."""
        return torch.arange(self.length, device=self.count.device) < self.count

    def adding(self, **columns: Tensor) -> Examples:
        """The same examples with more columns."""
        return replace(self, held={**self.held, **columns})

    def take(self, index: Tensor) -> dict[str, Tensor]:
        """Rows of every column."""
        return {
            name: column.take(index) if isinstance(column, Window) else take_rows(column, index)
            for name, column in self.held.items()
        }

    def pieces(self, size: int) -> Iterator[dict[str, Tensor]]:
        """The rows in order, at most ``size`` at a time, padding included: for passes over all the data."""
        for start in range(0, self.length, size):
            yield {name: column[start : start + size] for name, column in self.held.items()}


def _unflatten(children: Iterable[Any], fewest: int) -> Examples:
    held, count = children
    return Examples(held, count, fewest)


pytree.register_pytree_node(
    Examples,
    lambda node: ([node.held, node.count], node.fewest),
    _unflatten,
    serialized_type_name="archipel.core.examples.Examples",
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
    serialized_type_name="archipel.core.examples.ClientData",
)


@dataclass(frozen=True)
class Draws:
    """The minibatches of a local run, drawn beforehand.

    Args:
        order: ``(P · N,)``, for each of P passes the rows in the order in which it visits them; ``None``: as they lie.
        length: N, the padded number of rows.
        count: n, how many rows are real; a plain number where it is the same for all clients of a batch.
        fewest: the smallest n in the batch.
        size: B, rows a step.
        steps: S; the largest number of steps that a client of the batch makes.
        passes: P where clients make as many steps as P passes have; ``None`` where everyone makes S.
    """

    order: Tensor | None
    length: int
    count: Tensor | int
    fewest: int
    size: int
    steps: int
    passes: int | None

    @property
    def index(self) -> Tensor:
        """``(S, B)`` rows to take in each step."""
        return self._layout[0]

    @property
    def mask(self) -> Tensor:
        """``(S, B)``, true where a row counts; the last batch of a pass may be short."""
        return self._layout[1]

    @property
    def active(self) -> Tensor:
        """``(S,)``, true for the steps that this client makes; clients of one batch may make different numbers."""
        return self._layout[2]

    @cached_property
    def common(self) -> int:
        """How many of the steps every client of the batch makes."""
        fewest = self.count if isinstance(self.count, int) else self.fewest
        return self.steps if self.passes is None else self.passes * _batches(fewest, self.size)

    @cached_property
    def rows(self) -> list[int | None]:
        """For each step how many rows of it count, the first ones, where that is a plain number; the mask says it else.

        Where it always is one, all clients of the batch make the same steps, and there are no others here.
        """
        if isinstance(self.count, int):
            in_pass = _batches(self.count, self.size)
            return [min(self.size, self.count - s % in_pass * self.size) for s in range(self.common)]
        return [self.size if (s + 1) * self.size <= self.fewest else None for s in range(self.steps)]

    def __getitem__(self, step: int) -> Tensor:
        """The rows to take in a step: those that count, or ``(B,)`` with others among them where the mask decides."""
        rows = self.rows[step]
        if rows is None or self.order is None:
            return self.index[step, :rows]
        return self._pieces[step]

    @cached_property
    def _pieces(self) -> list[Tensor]:
        """What full steps take, and those of clients of one size: cut from the order all at once."""
        assert self.order is not None
        count = self.count if isinstance(self.count, int) else self.fewest  # those of more begin with as many
        passes = [one[:count].split(self.size) for one in self.order.split(self.length)]
        return [piece for one in passes for piece in one]

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor]:
        device = None if self.order is None else self.order.device
        count = torch.as_tensor(self.count, device=device)
        step, column = (torch.arange(n, device=count.device) for n in (self.steps, self.size))
        if self.order is None:
            real = column < count
            return (column * real).expand(self.steps, -1), real.expand(self.steps, -1), step < self.steps
        in_pass = torch.clamp((count + self.size - 1) // self.size, min=1)
        active = step < (self.steps if self.passes is None else self.passes * in_pass)
        position = (step % in_pass)[:, None] * self.size + column
        mask = (position < count) & active[:, None]
        place = ((step // in_pass)[:, None] * self.length + position) * mask
        return self.order[place], mask, active


def _batches(count: int, size: int) -> int:
    return max(1, math.ceil(count / size))


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
    >>> draws.rows
    [2, 2, 1]
    """
    length, fewest = examples.length, examples.fewest
    size = min(batch or length, length)
    passes = epochs or math.ceil((steps or 0) / _batches(fewest, size))
    # Outside of vmap, and where the clients of a batch are equally long, a plain number says what each client does.
    plain = fewest == length or not keys.batched()
    count = examples.count if not plain else length if fewest == length else int(examples.count)
    order = None
    if batch is not None:
        each = keys.fold(key, torch.arange(passes, device=key.device) if passes > 1 else 0)
        order = keys.permutation(each, length, count).reshape(-1).to(examples.count.device)
    # The full batch needs no shuffling: the same rows in the same order keep sums equal to the bit.
    return Draws(order, length, count, fewest, size, steps or passes * _batches(length, size), epochs)
