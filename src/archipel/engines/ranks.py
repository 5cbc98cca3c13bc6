"""Ranks: one run on several processes or machines, by ``torch.distributed``.

Every rank runs the same program: the server's part of the algorithm is replicated, and each rank runs the steps of its
own clients. Sums travel as branches of the tree of shards (:mod:`archipel.engines.shards`), so that any number of ranks
computes the same bits. Single replies travel only where the server asks for them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from archipel.algorithm import Step
from archipel.core.trees import Sum, Tree, flatten, leaves
from archipel.data.federation import Federation
from archipel.engines.carrier import Carrier, log
from archipel.engines.group import gathered, told
from archipel.engines.outcome import Outcome, WroteIntoInputsError
from archipel.engines.shards import Branch, merged, owners, shard_ranges
from archipel.states.table import States

PIECE = 1 << 24
"""Bytes of client states in a message."""


class Ranks:
    """Runs the steps of a rank's own clients by another carrier, and exchanges what the server needs.

    Args:
        federation: all clients. Training examples of other ranks' clients are never read.
        states: where the states of this rank's clients are kept.
        inner: carries out the steps; :func:`archipel.engines.auto.choose` makes it.

    Raises:
        ValueError: more ranks than there are shares of the data.
    """

    def __init__(self, federation: Federation, states: States, inner: Carrier) -> None:
        self.number, self.rank = dist.get_world_size(), dist.get_rank()
        self.inner, self.states = inner, states
        self.first, self.end = shard_ranges(federation.sizes, self.number)[self.rank]
        self._owner = owners(federation.sizes, self.number)
        self._busy, self._began = 0.0, time.perf_counter()

    def describe(self) -> dict[str, Any]:
        return self.inner.describe() | {"engine": "distributed", "within": self.inner.describe()["engine"]}

    def close(self) -> None:
        self.inner.close()

    def report(self) -> None:
        """Log the share of the time that each rank has worked."""
        busy = gathered(self._busy / max(time.perf_counter() - self._began, 1e-9))
        log.info("ranks at work: %s of the time; the rest is waiting.", ", ".join(f"{share:.0%}" for share in busy))

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        """Run the step, and yield the outcomes of all ranks, in client order."""
        found: list[Outcome] = []
        fault = None
        try:
            found.extend(self._own(step, message, ids, key, training))
        except WroteIntoInputsError as error:
            fault = str(error)
        for outcomes in self._exchanged(found, fault):
            yield from outcomes

    def run_apart(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor) -> Iterator[Outcome]:
        """Run a training step; yield this rank's outcomes, then those of the others without their replies."""
        known, fault = [], None
        try:
            for outcome in self._own(step, message, ids, key, True):
                known.append(replace(outcome, replies={}, elsewhere=True))
                if outcome.error is None:
                    yield outcome
        except WroteIntoInputsError as error:
            fault = str(error)
        for at, outcomes in enumerate(self._exchanged(known, fault)):
            yield from (one for one in outcomes if at != self.rank or one.error is not None)

    def joined(self, branches: Sequence[Branch]) -> Sum:
        """Return the sum of the branches of all ranks.

        Raises:
            TypeError: the replies at different ranks have different forms.
        """
        own = [(branch.level, branch.index, branch.sum.weight, branch.sum.like) for branch in branches]
        known = gathered(own)
        likes = [like for entries in known for *_, like in entries]
        if not likes:
            return Sum()
        if any(_form(like) != _form(likes[0]) for like in likes):
            raise TypeError("Clients of different ranks reply in different forms. All clients must reply alike.")
        width = sum(leaf.shape[1:].numel() for leaf in leaves(likes[0]))
        sent = torch.zeros(max(map(len, known)), width, dtype=torch.float64)
        for row, branch in zip(sent, branches, strict=False):
            row.copy_(branch.sum.packed())
        received = [torch.empty_like(sent) for _ in range(self.number)]
        dist.all_gather(received, sent)
        return merged(
            [
                Branch(level, index, Sum.unpacked(likes[0], values, weight))
                for entries, rows in zip(known, received, strict=True)
                for (level, index, weight, _), values in zip(entries, rows, strict=False)
            ]
        )

    def agreed(self, wish: bool) -> bool:
        """Whether any rank wishes so."""
        return any(gathered(wish))

    def compare(self, identity: dict[str, Any]) -> None:
        """Raise a ValueError, at every rank, if they are about to run different things."""
        everywhere = gathered(identity)
        odd = [name for name in identity if any(there.get(name) != everywhere[0].get(name) for there in everywhere)]
        if odd:
            raise ValueError(
                f"The ranks have another {' and '.join(odd)}. Start all of them with the same configuration, data and "
                "versions."
            )

    def bring_home(self) -> None:
        """Copy all clients' states to the first rank, which writes the checkpoints."""
        for other in range(1, self.number):
            for ids in self._pieces(other):
                if self.rank == other:
                    dist.send_object_list([self.states.read(ids)], dst=0)
                elif self.rank == 0:
                    self._receive(ids, other)

    def spread(self) -> None:
        """Give every rank its clients' states, which the first rank has read from a checkpoint."""
        for other in range(1, self.number):
            width = told(self.states.bytes)
            for ids in self._pieces(other, width):
                if self.rank == 0:
                    dist.send_object_list([self.states.read(ids)], dst=other)
                elif self.rank == other:
                    self._receive(ids, 0)

    def _receive(self, ids: Tensor, source: int) -> None:
        box: list[Any] = [None]
        dist.recv_object_list(box, src=source)
        self.states.write(ids, box[0])

    def _pieces(self, other: int, width: int | None = None) -> Sequence[Tensor]:
        width = self.states.bytes if width is None else width
        ids = torch.from_numpy(np.flatnonzero(self._owner == other))
        return ids.split(max(1, PIECE // width)) if width else ()

    def _own(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, training: bool) -> Iterator[Outcome]:
        began, mine = time.perf_counter(), [client for client in ids if self._owner[client] == self.rank]
        for outcome in self.inner.run(step, message, mine, key, training=training):
            self._busy += time.perf_counter() - began
            yield outcome
            began = time.perf_counter()
        self._busy += time.perf_counter() - began

    def _exchanged(self, outcomes: list[Outcome], fault: str | None) -> list[list[Outcome]]:
        """Return every rank's outcomes; raise the fault of the first rank that has one."""
        everywhere = gathered(([_sendable(outcome) for outcome in outcomes], fault))
        for _, there in everywhere:
            if there is not None:
                raise WroteIntoInputsError(there)
        return [found for found, _ in everywhere]


def _form(like: Tree) -> dict[str, Any]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in flatten(like).items()}


def _sendable(outcome: Outcome) -> Outcome:
    """Return the outcome with an exception that can be pickled."""
    if outcome.error is None:
        return outcome
    try:
        pickle.loads(pickle.dumps(outcome.error))
    except Exception:
        return replace(outcome, error=RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}"))
    return outcome
