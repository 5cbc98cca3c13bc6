"""Batching: many clients at once by ``torch.func.vmap``, for small dense models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.row_window import RowWindow
from archipel.core.torch_internals import pytree
from archipel.core.trees import (
    Compressed,
    PerClient,
    Tree,
    decoded,
    decoded_rows,
    is_compressed,
    leaves,
    nbytes,
    row,
    tree_map,
)
from archipel.data.federation import Federation
from archipel.engines.carrier import log
from archipel.engines.loop import Done, Loop
from archipel.engines.operation_counter import LARGE, OperationCounter
from archipel.engines.outcome import Inputs, Outcome, SameForm, WroteIntoInputsError, check_result, step_name
from archipel.engines.setting import DEFAULT, Setting
from archipel.engines.threads import Threads
from archipel.states.table import States, consecutive

CACHE = 16 * 2**20
"""Bytes of processor cache for a chunk's stacked parameters, gradients and states, by default."""
FEWEST, MOST = 8, 256
"""Bounds of a chunk: below, calling operations costs more than the cache saves; above, nothing is gained."""


class Batched:
    """Runs a step for a chunk of clients as one batched computation.

    Clients of different sizes are padded and masked; client states are rows of one table. Before a step runs for the
    first time, the smallest and the largest client run it both ways. If batching fails, is emulated one by one, or
    gives another result, the loop runs all further steps, and one line of the log says why.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        setting: how steps compute; its ``workers`` are threads for chunks of steps with large operations, one by
            default.
        states: where the clients' states are kept; default: in memory.
        chunk: clients a batch; default: as many as fit in the processor's cache. The size of the message and of a
            client's state decides, so that the chunk does not depend on the machine.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        setting: Setting = DEFAULT,
        states: States | None = None,
        chunk: int | None = None,
    ) -> None:
        self.algorithm, self.federation, self.setting, self.chunk = algorithm, federation, setting, chunk
        self.states = states or States(federation.sizes)
        self.workers = setting.workers or 1
        self.loop = Loop(algorithm, federation, replace(setting, workers=1), self.states)
        self._fallen_back = False
        self._probed: set[tuple[str, bool]] = set()
        self._chunks: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        self._threads = Threads(algorithm, self.workers)
        self._tables: dict[str, _Rows | None] = {}
        self._counts = federation.sizes.tolist()

    def describe(self) -> dict[str, Any]:
        if self._fallen_back:
            return self.loop.describe()
        chunk = {"chunk": self.chunk or dict(self._chunks)}
        return {"engine": "batched"} | chunk | self.setting.describe() | self.states.describe()

    def close(self) -> None:
        self._threads.close()
        self.loop.close()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        if not self.ready(step, message, key, training):
            yield from self.loop.run(step, message, ids, key, training=training)
            return
        chunks, message = self.split(step, message, ids), self.setting.to_device(decoded(message))

        def one(step: Step, chunk: Tensor) -> Done:
            return self.one(step, message, chunk, key, training)

        # Threads with small operations would only wait for the interpreter.
        large = self._largest[step_name(step)] * self._chunk(step, message) >= LARGE
        threaded = large and self.workers > 1 and len(chunks) > 1
        form = SameForm(step)
        for done in self._threads.map(one, step, chunks) if threaded else (one(step, chunk) for chunk in chunks):
            outcome = self.keep(done, training, form)
            if outcome.error is None:
                yield outcome
            else:  # one by one, to know at whom
                yield from self.loop.run(step, message, outcome.ids, key, training=training)

    def ready(self, step: Step, message: Tree, key: Tensor, training: bool) -> bool:
        """Return whether the step can be batched; try it the first time."""
        if not self._fallen_back and (step_name(step), training) not in self._probed:
            return self._probe(step, message, self._extremes(), key, training)
        return not self._fallen_back

    def split(self, step: Step, message: Tree, ids: Sequence[int]) -> Sequence[Tensor]:
        """Divide the clients into chunks."""
        chunks: Sequence[Tensor] = torch.tensor(list(ids), dtype=torch.int64).split(self._chunk(step, message))
        return chunks if ids else ()

    def one(self, step: Step, message: Tree, ids: Tensor, key: Tensor, training: bool) -> Done:
        """Run one chunk's step; nothing is kept yet."""
        try:
            states, replies = self.compute(step, message, ids, key, training)
            packed, replies = nbytes(replies) // len(ids), decoded_rows(replies)
            return states, Outcome.of(ids.tolist(), states, replies, packed)
        except WroteIntoInputsError:
            raise
        except Exception as error:
            return {}, Outcome.failed(ids.tolist(), error)

    def gather(self) -> None:
        """Concatenate all clients' data, before processes are forked that need them so."""
        if not self._fallen_back:
            for part in ("train", "validation", "test"):
                self._table(part)

    def keep(self, done: Done, training: bool, form: SameForm) -> Outcome:
        """Keep the new states of usable outcomes, whose replies have the form of the others."""
        states, outcome = done
        outcome = form.check(outcome)
        if training:
            self._commit(torch.tensor(outcome.ids), self.setting.to_cpu(states), outcome.usable)
        return outcome

    def _chunk(self, step: Step, message: Tree) -> int:
        """Return the clients in a chunk: each needs what it starts from, and as much again for its results."""
        if self.chunk is None:
            part = sum(nbytes(leaf) for leaf in leaves(message) if isinstance(leaf, Tensor)) + self.states.bytes
            self._chunks[step_name(step)] = max(FEWEST, min(MOST, CACHE // max(1, 2 * part)))
        return self.chunk or self._chunks[step_name(step)]

    def compute(self, step: Step, message: Tree, ids: Tensor, key: Tensor, training: bool) -> tuple[Tree, Tree]:
        """Return the step's own result for a chunk, stacked: new states, and replies as they were packed."""
        dims = tree_map(lambda leaf: 0 if isinstance(leaf, PerClient) else None, message)
        sent = tree_map(lambda leaf: leaf.row(ids) if isinstance(leaf, PerClient) else leaf, message)
        # States are always copies: a reply, or another entry of the new state, may be an entry of the old state.
        states, own = self.setting.to_device(self.states.read(ids)), self.setting.to_device(keys.fold(key, ids))
        sent, data = self.setting.to_device(sent), self._data(ids, training)
        inputs = Inputs(step, sent, data)
        with self.setting.inside():
            batched = torch.func.vmap(step, in_dims=(0, dims, _stacked(data), 0), randomness="error")
            result: tuple[Tree, Tree] = batched(states, sent, data, own)
        inputs.check()
        check_result(step, result)
        return result

    def _commit(self, ids: Tensor, states: Tree, kept: Tensor) -> None:
        everyone = bool(kept.all())
        self.states.write(ids if everyone else ids[kept], states if everyone else row(states, kept))

    def _clients(self) -> Sequence[int]:
        """Return the clients whose data may be read here."""
        return range(len(self._counts))

    def _extremes(self) -> Tensor:
        """Return the smallest and the largest client: padding harms the smallest most."""
        by_size = sorted(self._clients(), key=self._counts.__getitem__)
        return torch.tensor(sorted({by_size[0], by_size[-1]}))

    def _probe(self, step: Step, message: Tree, ids: Tensor, key: Tensor, training: bool) -> bool:
        """Run some clients both ways, and return whether the step can be batched."""
        message = self.setting.to_device(decoded(message))
        # The loop goes first: an error that it raises too is the step's own, and it will say at which clients.
        try:
            with OperationCounter() as counted:
                looped = [self.loop.compute(step, message, client, key, training)[1] for client in ids.tolist()]
        except WroteIntoInputsError:
            raise
        except Exception:
            return False
        self._probed.add((step_name(step), training))
        self._largest[step_name(step)] = counted.largest
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*performance drop.*")
                _, replies = self.compute(step, message, ids, key, training)
        except WroteIntoInputsError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:160] if str(error) else type(error).__name__
            return self._fall_back(step, reason)
        for position, reply in enumerate(looped):
            gap = _largest_gap(row(replies, torch.tensor([position])), tree_map(lambda t: t[None], reply))
            if not gap <= 1e-3:
                return self._fall_back(step, f"its batched reply differs from the looped one by {gap:.1g} of its size")
        return True

    def _fall_back(self, step: Step, reason: str) -> bool:
        log.warning("%s can't be batched over clients, so clients run one by one: %s", step_name(step), reason)
        self._tables, self._fallen_back = {}, True
        return False

    def _data(self, ids: Tensor, training: bool) -> ClientData:
        tables = {name: self._table(name) for name in (("train",) if training else ("train", "validation", "test"))}
        return ClientData(**{name: table.rows(ids) for name, table in tables.items() if table is not None})

    def _table(self, part: str) -> _Rows | None:
        """Return every client's columns of one part; ``None`` if no client has any."""
        if part not in self._tables:
            held, own = [getattr(client, part) for client in self.federation.clients], set(self._clients())
            longest = max((len(columns["x"]) for columns in held if columns is not None), default=0)
            columns = [columns if i in own else None for i, columns in enumerate(held)]
            self._tables[part] = _Rows.of(columns, self.setting, longest) if longest else None
        return self._tables[part]


@dataclass(frozen=True)
class _Rows:
    """One part of every client's data, concatenated.

    Args:
        columns: ``(n, …)`` each, n the examples of all clients.
        counts: ``(m,)`` number of examples of each client.
        starts: ``(m,)`` row of each client's first example.
        longest: N, to which clients are padded.
    """

    columns: dict[str, Tensor]
    counts: Tensor
    starts: Tensor
    longest: int

    @classmethod
    def of(cls, clients: Sequence[dict[str, Tensor] | None], setting: Setting, longest: int = 0) -> _Rows:
        first = next(columns for columns in clients if columns)
        nothing = {name: column[:0] for name, column in first.items()}
        parts = [columns or nothing for columns in clients]
        counts = torch.tensor([len(columns["x"]) for columns in parts])
        joined = {name: setting.to_device(torch.cat([columns[name] for columns in parts])) for name in nothing}
        return cls(joined, counts, counts.cumsum(0) - counts, longest or int(counts.max()))

    def rows(self, ids: Tensor) -> Examples:
        """Return these clients' examples, ``(k, N, …)``: a view if that is possible, else row windows."""
        which, counts = consecutive(ids), self.counts[ids]
        device = next(iter(self.columns.values())).device
        held: dict[str, Tensor | RowWindow]
        if isinstance(which, slice) and bool((self.counts == self.longest).all()):
            held = {name: column.unflatten(0, (-1, self.longest))[which] for name, column in self.columns.items()}
        else:
            first, last = self.starts[ids].to(device), (self.starts[ids] + counts - 1).to(device)
            held = {name: RowWindow(column, first, last, self.longest) for name, column in self.columns.items()}
        return Examples(held, counts.to(device), int(counts.min()))


def _stacked(data: ClientData) -> ClientData:
    """Return the dimension along which clients are stacked: the first, except in tables that all clients share."""

    def dims(node: Tensor | RowWindow) -> Any:
        return RowWindow(None, 0, 0, node.length) if isinstance(node, RowWindow) else 0  # type: ignore[arg-type]

    found: ClientData = pytree.tree_map(dims, data, is_leaf=lambda node: isinstance(node, RowWindow))
    return found


def _largest_gap(one: Tree, other: Tree) -> float:
    """Return the largest difference of two trees, relative to each leaf's largest value; NaN equals NaN alone.

    In a compressed leaf one entry in a hundred is ignored: an entry at the edge of two levels goes to one or the other
    by the rounding of the model.
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
