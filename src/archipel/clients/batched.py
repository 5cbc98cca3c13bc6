"""Batching: many clients at once by ``torch.func.vmap``, for small dense models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from archipel import keys
from archipel.algorithm import Algorithm, Step
from archipel.clients.carrier import Outcome, client_data, log
from archipel.clients.loop import Loop
from archipel.data.federation import Federation
from archipel.examples import ClientData, Examples
from archipel.trees import (
    Compressed,
    PerClient,
    PerExample,
    Tree,
    decoded,
    decoded_rows,
    is_compressed,
    leaves,
    nbytes,
    row,
    stack,
    tree_map,
)


class Batched:
    """Runs a step for a chunk of clients as one batched computation.

    Clients of different sizes are padded and masked; client states are rows of one table. The first time a step runs,
    two clients, the smallest and the largest, are done both ways: if batching fails, is emulated one by one, or
    differs, the loop takes over for good and one line says why.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        chunk: clients a batch. Stacked parameters and gradients should fit the processor's cache.
    """

    def __init__(self, algorithm: Algorithm, federation: Federation, chunk: int = 16) -> None:
        self.algorithm, self.federation, self.chunk = algorithm, federation, chunk
        self._loop = Loop(algorithm, federation)
        self._fallen_back = False
        self._probed: set[tuple[str, bool]] = set()
        self._tables: dict[str, tuple[dict[str, Tensor], Tensor] | None] = {}
        self._states: Tree = {}
        counts = [len(client.train["x"]) for client in federation.clients]
        self._counts, self._longest = counts, max(counts)

    def describe(self) -> dict[str, Any]:
        return self._loop.describe() if self._fallen_back else {"engine": "batched", "chunk": self.chunk}

    def close(self) -> None:
        self._loop.close()

    def state(self, client: int) -> Tree:
        if self._fallen_back:
            return self._loop.state(client)
        return _map_state(
            lambda t: t[client].clone(), lambda v: v[client, : self._counts[client]].clone(), self._states
        )

    def restore(self, states: Sequence[Tree]) -> None:
        self._loop.restore(states)
        if not self._fallen_back:
            self._states = stack([_map_state(lambda t: t, self._pad, state) for state in states])

    def _pad(self, values: Tensor) -> Tensor:
        padding = torch.zeros(self._longest - len(values), *values.shape[1:], dtype=values.dtype)
        return torch.cat([values, padding])

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        if not self._fallen_back and (step.__qualname__, training) not in self._probed:
            self._probe(step, message, self._extremes(), key, training)
        if self._fallen_back:
            yield from self._loop.run(step, message, ids, key, training=training)
            return
        for start in range(0, len(ids), self.chunk):
            chunk = list(ids[start : start + self.chunk])
            states, replies = self._batch(step, message, chunk, key, training)
            usable = _usable((states, decoded_rows(replies)), len(chunk))
            if training:
                self._commit(torch.tensor(chunk), states, usable)
            yield Outcome(chunk, replies, usable, nbytes(replies) // len(chunk))

    def _batch(self, step: Step, message: Tree, ids: list[int], key: Tensor, training: bool) -> tuple[Tree, Tree]:
        index, message = torch.tensor(ids), decoded(message)
        dims = tree_map(lambda leaf: 0 if isinstance(leaf, PerClient) else None, message)
        sent = tree_map(lambda leaf: leaf.row(index) if isinstance(leaf, PerClient) else leaf, message)
        # States are copied out, always: a reply, or another entry of the new state, may be an entry of the old one.
        data, states = self._data(index, training), row(self._states, index)
        with torch.no_grad():
            batched = torch.func.vmap(step, in_dims=(0, dims, 0, 0), randomness="error")
            result: tuple[Tree, Tree] = batched(states, sent, data, keys.fold(key, index))
            return result

    def _extremes(self) -> list[int]:
        """The smallest client and the largest, among all: padding harms the smallest most, whoever is in the cohort."""
        by_size = sorted(range(len(self._counts)), key=self._counts.__getitem__)
        return sorted({by_size[0], by_size[-1]})

    def _probe(self, step: Step, message: Tree, ids: list[int], key: Tensor, training: bool) -> None:
        self._probed.add((step.__qualname__, training))
        # The loop goes first: an error it raises too is the step's own, and goes up as it is.
        looped = [
            (outcome.replies, client)
            for client in ids
            for outcome in self._loop_probe(step, message, client, key, training)
        ]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*performance drop.*")
                _, replies = self._batch(step, message, ids, key, training)
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:160] if str(error) else type(error).__name__
            self._fall_back(step, reason)
            return
        for position, (reply, _) in enumerate(looped):
            gap = _largest_gap(row(replies, torch.tensor([position])), reply)
            if not gap <= 1e-3:
                self._fall_back(step, f"its batched reply differs from the looped one by {gap:.1g} of its size")
                return

    def _loop_probe(self, step: Step, message: Tree, client: int, key: Tensor, training: bool) -> list[Outcome]:
        self._loop.restore([self.state(i) if i == client else {} for i in range(len(self._counts))])
        return list(self._loop.run(step, message, [client], key, training=training))

    def _fall_back(self, step: Step, reason: str) -> None:
        log.warning("%s can't be batched over clients, so clients run one by one: %s", step.__qualname__, reason)
        self._loop.restore([self.state(client) for client in range(len(self._counts))])
        self._states, self._tables, self._fallen_back = {}, {}, True

    def _commit(self, index: Tensor, states: Tree, usable: Tensor) -> None:
        if not leaves(states):
            return
        if not leaves(self._states):
            self._states = tree_map(lambda t: t.new_zeros(len(self._counts), *t.shape[1:]), states)
        if pytree.tree_structure(states) != pytree.tree_structure(self._states):
            raise ValueError(
                "A step changed the shape of a client's state. A state keeps its keys from enrolment on: give every "
                "entry a first value in init_client."
            )
        kept = _place(index[usable])
        rows = states if bool(usable.all()) else row(states, usable)

        def write(table: Tensor, new: Tensor) -> Tensor:
            table[kept] = new
            return table

        tree_map(write, self._states, rows)

    def _data(self, index: Tensor, training: bool) -> ClientData:
        parts = {}
        for name in ("train",) if training else ("train", "validation", "test"):
            table = self._table(name)
            if table is not None:
                columns, counts = table
                place, fewest = _place(index), int(counts.min())
                parts[name] = Examples({k: column[place] for k, column in columns.items()}, counts[place], fewest)
        return ClientData(**parts)

    def _table(self, part: str) -> tuple[dict[str, Tensor], Tensor] | None:
        """Every client's columns of one part, padded to the longest; ``None`` where nobody has any."""
        if part not in self._tables:
            data = [client_data(self.federation, i, training=False) for i in range(len(self._counts))]
            present = [e for d in data if (e := getattr(d, part)) is not None]
            if not present:
                self._tables[part] = None
                return None
            nothing = Examples.of({name: column[:0] for name, column in present[0].columns.items()})
            examples = [getattr(d, part) or nothing for d in data]
            longest = max(e.length for e in examples)
            columns = {name: torch.stack([_padded(e[name], longest) for e in examples]) for name in nothing.columns}
            self._tables[part] = columns, torch.stack([e.count for e in examples])
        return self._tables[part]


def _place(index: Tensor) -> Tensor | slice:
    """The index; of consecutive rows a slice, which is read and written without a copy."""
    if len(index) and int(index[-1] - index[0]) == len(index) - 1 and bool((index.diff() == 1).all()):
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _usable(stacked: Tree, count: int) -> Tensor:
    """``(count,)``, true where no entry of a row is NaN or infinite."""
    found = [leaf.reshape(count, -1) for leaf in leaves(stacked) if leaf.is_floating_point()]
    # One entry that isn't finite makes a sum that isn't; only where a sum may have overflowed all are looked at.
    if all(bool(torch.isfinite(leaf.sum())) for leaf in found):
        return torch.ones(count, dtype=torch.bool)
    return torch.stack([torch.isfinite(leaf).all(dim=1) for leaf in found]).all(dim=0)


def _padded(column: Tensor, length: int) -> Tensor:
    # Padding repeats a real row where there is one, so that it is harmless to whatever a model computes of it.
    row = column[:1] if len(column) else column.new_zeros(1, *column.shape[1:])
    return torch.cat([column, row.expand(length - len(column), *column.shape[1:])])


def _map_state(plain: Any, per_example: Any, state: Tree) -> Tree:
    """Maps a client state with one function for plain leaves and another inside ``PerExample``."""
    return pytree.tree_map(
        lambda leaf: PerExample(per_example(leaf.values)) if isinstance(leaf, PerExample) else plain(leaf),
        state,
        is_leaf=lambda node: isinstance(node, PerExample),
    )


def _largest_gap(one: Tree, other: Tree) -> float:
    """The largest difference of two trees, in units of each leaf's largest value; NaN equals NaN and nothing else.

    Of a compressed leaf the largest but for one entry in a hundred: where an entry lies at the edge of two levels, a
    rounding of the model sends it to one or the other, as a draw might have.
    """
    pairs = zip(_whole_leaves(one), _whole_leaves(other), strict=True)
    gaps = [_gap(a, b) for a, b in pairs if not isinstance(a, Tensor) or a.numel()]
    return max(gaps, default=0.0)


def _whole_leaves(tree: Tree) -> list[Any]:
    found: list[Any] = pytree.tree_leaves(tree, is_leaf=is_compressed)
    return found


def _gap(one: Tensor | Compressed, other: Tensor | Compressed) -> float:
    a, b = (decoded_rows(leaf).double().flatten() for leaf in (one, other))
    gaps = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    gaps = gaps.nan_to_num(math.inf, math.inf).sort().values
    largest = gaps[-1 - len(gaps) // 100] if isinstance(one, Compressed) else gaps[-1]
    return float(largest / (b.abs().nan_to_num(0.0, 0.0).max() + 1e-6))
