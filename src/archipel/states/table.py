"""Client states as one table, in memory or on disk: memory depends on the clients at work, not on the population."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from archipel.core.trees import Tree, flatten, unflatten
from archipel.states.storage import (
    Column,
    FileColumn,
    MemoryColumn,
    Rows,
    Shapes,
    Store,
    consecutive,
    copy,
    in_memory,
    nbytes,
)

__all__ = ["EMPTY", "States", "consecutive", "is_empty_dict", "is_per_example"]

EMPTY: tuple[tuple[int, ...], torch.dtype] = ((), torch.float32)
"""Shape and type that an empty dict's name has."""


class States(Sequence[Tree]):
    """Every client's state, as a sequence of trees; each item is a copy.

    A client without a written state has the empty state ``{}``. The first state that is written fixes the entries and
    their shapes for all clients. A :class:`PerExample` leaf has a row for each training example, client after client.

    Args:
        counts: training examples of each client: the rows of its :class:`PerExample` leaves.
        store: allocates the columns; default: in memory.

    Attributes:
        written: ``(m,)`` bool, which clients have a state.
        writes: how often states were written.
        shapes: of a client's leaves (of one example's, for :class:`PerExample`), by their names in ``flatten``;
            ``None`` until a state is written.
        columns: the leaves of all clients, by the same names.

    >>> states = States([2, 3])
    >>> states.write(torch.tensor([0, 1]), {"model": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    >>> states[1]
    {'model': tensor([3., 4.])}
    """

    def __init__(self, counts: Sequence[int] | Tensor, store: Store | None = None) -> None:
        self.counts = torch.as_tensor(counts, dtype=torch.int64)
        self.store = store or in_memory
        self._starts = self.counts.cumsum(0) - self.counts
        self._longest = int(self.counts.max())
        self.columns: dict[str, Column] = {}
        self.shapes: Shapes | None = None
        self.written = torch.zeros(len(self.counts), dtype=torch.bool)
        self.writes = 0

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, client: int) -> Tree: ...

    @overload
    def __getitem__(self, client: slice) -> list[Tree]: ...

    def __getitem__(self, client: int | slice) -> Tree:
        if isinstance(client, slice):
            return [self[i] for i in range(*client.indices(len(self)))]
        client, m = operator.index(client), len(self)
        if not -m <= client < m:
            raise IndexError(f"There are {m} clients, 0 to {m - 1}; asked for {client}.")
        client %= m
        if self.shapes is None or not bool(self.written[client]):
            return {}
        own = slice(client, client + 1)
        start = int(self._starts[client])
        examples = slice(start, start + int(self.counts[client]))
        return self._tree(lambda name, column: column.read(examples) if is_per_example(name) else column.read(own)[0])

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles have their columns in memory: an open file stays with its process.
        columns = {
            name: MemoryColumn(self.columns[name].read(slice(0, s[0]))) for name, (s, _) in self.column_shapes.items()
        }
        return self.__dict__ | {"columns": columns, "store": in_memory}

    @property
    def empty(self) -> bool:
        """Whether no client keeps anything."""
        return not self.columns

    @property
    def column_shapes(self) -> Shapes:
        """Shapes of the columns."""
        return self._with_rows(len(self), int(self.counts.sum()))

    @property
    def bytes(self) -> int:
        """Bytes of one client's state, with per-example leaves as long as the longest."""
        return nbytes(self._with_rows(1, self._longest))

    def describe(self) -> dict[str, str]:
        """Return where the states are, for the resolved configuration."""
        filed = any(isinstance(column, FileColumn) for column in self.columns.values())
        return {"states": "on disk"} if filed else {}

    def read(self, clients: Tensor) -> Tree:
        """Return states stacked along a first dimension; per-example leaves are padded with zeros to the longest.

        Raises:
            ValueError: some of these clients have a state and some have none.
            IndexError: there is no such client.
        """
        rows = self._rows(clients)
        written = self.written[rows]
        if self.shapes is None or not bool(written.any()):
            return {}
        if not bool(written.all()):
            raise ValueError(
                "Some of these clients have a state and some have none. A state keeps its keys from enrolment on: give "
                "every entry a first value in init_client."
            )

        def stacked(name: str, column: Column) -> Tensor:
            return self._padded(column.read(self._examples(rows)), rows) if is_per_example(name) else column.read(rows)

        return self._tree(stacked)

    def write(self, clients: Tensor, states: Tree) -> None:
        """Write stacked states, one row for each client; per-example leaves may be padded at their ends.

        Raises:
            ValueError: entries or shapes differ from those of the first state.
            IndexError: there is no such client.
        """
        if len(clients):
            self._write(self._rows(clients), len(clients), flatten(states))

    def put(self, client: int, state: Tree) -> None:
        """Write one client's state; per-example leaves have as many rows as it has examples."""
        if not 0 <= client < len(self):
            raise IndexError(f"There are {len(self)} clients, 0 to {len(self) - 1}; asked for {client}.")
        named = flatten(state)
        for name, values in named.items():
            if is_per_example(name) and values.shape[:1] != ((count := int(self.counts[client])),):
                raise ValueError(_rows_amiss(name, len(values) if values.dim() else 0, count))
        self._write(slice(client, client + 1), 1, {name: values[None] for name, values in named.items()})

    def load(self, states: Sequence[Tree]) -> None:
        """Replace every client's state, in pieces."""
        if len(states) != len(self):
            raise ValueError(f"There are {len(self)} clients, and {len(states)} states were given.")
        if states is self:
            return
        self.columns, self.shapes = {}, None
        self.written.zero_()
        if not isinstance(states, States):
            for client, state in enumerate(states):
                if flatten(state):
                    self.put(client, state)
            return
        if any(map(is_per_example, states.shapes or {})) and not torch.equal(states.counts, self.counts):
            raise ValueError("These states are of clients with other numbers of training examples.")
        if states.shapes is not None:
            self._agree(states.shapes)
            for name, (shape, dtype) in self.column_shapes.items():
                copy(states.columns[name], self.columns[name], shape, dtype)
        self.written.copy_(states.written)

    def _write(self, rows: Rows, number: int, named: dict[str, Tensor]) -> None:
        if not named and not self.shapes:
            return  # steps may run before enrolment, when no client has a state
        shapes: Shapes = {}
        for name, values in named.items():
            if is_empty_dict(name):
                shapes[name] = EMPTY
                continue
            if not values.dim() or len(values) != number:
                raise ValueError(
                    f"{_shown(name)} has shape {tuple(values.shape)}; it must have a row for each of {number} clients."
                )
            if is_per_example(name):
                longest, length = int(self.counts[rows].max()), values.shape[1] if values.dim() > 1 else 0
                if length < longest:
                    raise ValueError(_rows_amiss(name, length, longest))
            shapes[name] = (tuple(values.shape[1 + is_per_example(name) :]), values.dtype)
        self._agree(shapes)
        for name, column in self.columns.items():
            if is_per_example(name):
                column.write(self._examples(rows), self._flat(named[name], rows))
            else:
                column.write(rows, named[name])
        self.written[rows] = True
        self.writes += 1

    def _agree(self, shapes: Shapes) -> None:
        if self.shapes is None:
            self.shapes = shapes
            try:
                self.columns = self.store(self.column_shapes)
            except BaseException:
                self.shapes = None
                raise
        elif shapes != self.shapes:
            odd = sorted(_shown(name) for name, _ in set(shapes.items()) ^ set(self.shapes.items()))
            raise ValueError(
                f"A step changed the shape of a client's state, at {', '.join(dict.fromkeys(odd))}. A state keeps its "
                "keys from enrolment on: give every entry a first value in init_client, of the shape that it keeps."
            )

    def _with_rows(self, clients: int, examples: int) -> Shapes:
        rows, named = {False: clients, True: examples}, (self.shapes or {}).items()
        return {n: ((rows[is_per_example(n)], *shape), dtype) for n, (shape, dtype) in named if not is_empty_dict(n)}

    def _tree(self, read: Callable[[str, Column], Tensor]) -> Tree:
        assert self.shapes is not None
        return unflatten({n: torch.empty(0) if is_empty_dict(n) else read(n, self.columns[n]) for n in self.shapes})

    def _rows(self, clients: Tensor) -> Rows:
        if len(clients) and not 0 <= int(clients.min()) <= int(clients.max()) < len(self):
            raise IndexError(f"There are {len(self)} clients, 0 to {len(self) - 1}; asked for {clients.tolist()}.")
        return consecutive(clients)

    def _examples(self, rows: Rows) -> Rows:
        """Return the rows of these clients' examples."""
        starts, counts = self._starts[rows], self.counts[rows]
        if isinstance(rows, slice):
            return slice(int(starts[0]), int(starts[-1] + counts[-1]))
        before = counts.cumsum(0) - counts
        return torch.repeat_interleave(starts - before, counts) + torch.arange(int(counts.sum()))

    def _padded(self, flat: Tensor, rows: Rows) -> Tensor:
        counts = self.counts[rows]
        if bool((counts == self._longest).all()):
            return flat.reshape(len(counts), self._longest, *flat.shape[1:])
        padded = flat.new_zeros(len(counts), self._longest, *flat.shape[1:])
        padded[torch.arange(self._longest) < counts[:, None]] = flat
        return padded

    def _flat(self, padded: Tensor, rows: Rows) -> Tensor:
        counts = self.counts[rows]
        if bool((counts == padded.shape[1]).all()):
            return padded.flatten(0, 1)
        return padded[torch.arange(padded.shape[1]) < counts[:, None]]


def is_empty_dict(name: str) -> bool:
    """Whether the name is of an empty dict, which has no values."""
    return name.endswith("/")


def is_per_example(name: str) -> bool:
    """Whether the name is of a leaf with a row for each example."""
    return name.endswith("!")


def _shown(name: str) -> str:
    return name.rstrip("/!") or "the root"


def _rows_amiss(name: str, found: int, expected: int) -> str:
    return (
        f"{_shown(name)} has {found} rows at a client of {expected} training examples. A PerExample leaf of a client's "
        "state has one for each."
    )
