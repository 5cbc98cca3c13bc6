"""The handle on clients that an algorithm's ``round`` receives as ``clients``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.algorithm import NoReplyError, Replies, Step, Weights
from archipel.core.checks import clean
from archipel.core.torch_internals import version
from archipel.core.trees import PerClient, Sum, Tree, flatten, leaves, nbytes, row, tree_map
from archipel.engines.carrier import Carrier
from archipel.engines.outcome import Outcome, step_name
from archipel.engines.ranks import Ranks
from archipel.engines.shards import ShardedSum, merged, shards_of

OnError = Literal["stop", "drop"]


@dataclass
class Ledger:
    """What was sent in a round, and who was dropped.

    A client keeps what it was sent until the round ends: a tensor that is broadcast again in the same round, by another
    step or to more clients, is counted only for clients that do not have it yet. FedSPM's M-step starts from the
    parameters that its E-step has sent, so that only the table of totals is counted.

    Args:
        uplink: bytes from clients to the server.
        downlink: bytes from the server to clients.
        dropped: the reason for each dropped client, by id.
        held: the tensors that were broadcast, by identity and version, each with the clients that have it. The tensor
            itself is kept so that its identity is not given to another one in the same round.
        largest: the largest absolute value in a usable reply, and the client that sent it.
    """

    uplink: int = 0
    downlink: int = 0
    dropped: dict[int, str] = field(default_factory=dict)
    held: dict[tuple[int, int], tuple[Tensor, set[int]]] = field(default_factory=dict, repr=False)
    largest: tuple[float, int] = (0.0, -1)

    def receive(self, outcome: Outcome) -> None:
        """Count replies, and note who is dropped and who sent the largest value."""
        self.uplink += outcome.reply_bytes * len(outcome.ids)
        values = outcome.largest.tolist()
        for client, usable, value in zip(outcome.ids, outcome.usable.tolist(), values, strict=True):
            if not usable:
                self.dropped[client] = (
                    f"error: {_last_line(outcome.error)}" if outcome.error else "NaN or infinite values"
                )
            elif value > self.largest[0]:
                self.largest = value, client

    def send(self, message: Tree, clients: Sequence[int]) -> None:
        """Count a message to these clients: the rows of each, and the broadcast tensors that are new to them."""
        for leaf in leaves(message):
            if isinstance(leaf, PerClient):
                self.downlink += len(clients) * sum(nbytes(table[0]) for table in leaves(leaf.table))
            elif not isinstance(leaf, Tensor):
                raise TypeError(f"A message is a tree of tensors; it holds {leaf!r}. Send torch.tensor({leaf!r}).")
            else:
                _, holders = self.held.setdefault((id(leaf), version(leaf)), (leaf, set()))
                self.downlink += nbytes(leaf) * len(set(clients) - holders)
                holders.update(clients)


@dataclass(frozen=True)
class Handle:
    """:class:`archipel.algorithm.Clients` over a carrier.

    Args:
        carrier: runs the steps.
        ids: ``(k,)`` the clients that take part.
        sizes: ``(m,)`` training examples held.
        round: from 0.
        rounds: of the whole run.
        ledger: records traffic and drops.
        answers: ``(round, client) → bool``, whether a client's reply arrives; for simulating failures.
        edges: the clients of each group, ``(m_e,)`` in rising order; empty if there are no groups.
        enrolled: the clients of ``everyone``, in rising order; ``None``: all.
        names: the clients', for messages.
        on_error: whether an exception of a client's step stops the run, or drops the client from the round.
        shards: ``(m,)`` the shard of each client, which orders sums; ``None``: found by the sizes.
    """

    carrier: Carrier
    ids: Tensor
    sizes: Tensor
    round: int
    rounds: int
    ledger: Ledger
    answers: Callable[[int, int], bool] | None = None
    edges: tuple[Tensor, ...] = ()
    enrolled: Tensor | None = None
    names: Sequence[str] = ()
    on_error: OnError = "stop"
    shards: NDArray[np.int64] | None = None

    @property
    def population(self) -> int:
        return len(self.sizes)

    @property
    def stateful(self) -> bool:
        return not self.carrier.states.empty

    @property
    def everyone(self) -> Handle:
        return replace(self, ids=torch.arange(self.population) if self.enrolled is None else self.enrolled)

    @property
    def groups(self) -> tuple[Handle, ...]:
        def of(edge: Tensor) -> Handle:
            return replace(self, ids=self.ids[torch.isin(self.ids, edge)], edges=(), enrolled=edge)

        return tuple(of(edge) for edge in self.edges)

    def only(self, ids: Tensor) -> Handle:
        return replace(self, ids=torch.as_tensor(ids, dtype=torch.int64).sort().values)

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self._collected(self._run(step, message, key))

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        outcomes = self.carrier.run(step, message, self.ids.tolist(), key, training=False)
        return self._collected(outcome for outcome in outcomes if self._sound(step, outcome))

    def apply(self, step: Step, message: Tree, key: Tensor) -> None:
        for _ in self._run(step, message, key, apart=True):
            pass

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return _home(self._summed(step, message, key, weights).total())

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return _home(self._summed(step, message, key, weights, mean=True).mean())

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        total = self._summed(step, message, key, weights, mean=True)
        return _home(total.mean()), total.weight / float(self._weights(self.everyone.ids, weights).sum())

    def _summed(self, step: Step, message: Tree, key: Tensor, weights: Weights, mean: bool = False) -> Sum:
        shards = shards_of(self.sizes) if self.shards is None else self.shards
        ranks = self.carrier if isinstance(self.carrier, Ranks) else None
        summed = ShardedSum(shards) if ranks is None else ShardedSum(shards, ranks.first, ranks.end)
        for outcome in self._run(step, message, key, apart=True):
            ids, replies = _usable(outcome)
            if ids and not outcome.elsewhere:
                if summed.empty:
                    _check_numbers(step, replies, mean)
                summed.add(ids, replies, self._weights(ids, weights).tolist())
        total = merged(summed.branches()) if ranks is None else ranks.joined(summed.branches())
        if total.weight == 0:
            raise NoReplyError(self._nobody())
        return total

    def _collected(self, outcomes: Iterator[Outcome]) -> Replies:
        ids: list[int] = []
        values = []
        for outcome in outcomes:
            who, replies = _usable(outcome)
            if who:
                ids.extend(who)
                values.append(replies)
        if not ids:
            raise NoReplyError(self._nobody())
        stacked = _home(tree_map(lambda *v: torch.cat(v), values[0], *values[1:]))
        counts = torch.from_numpy(self._weights(ids, "examples")).double()
        return Replies(torch.tensor(ids), counts, stacked)

    def _weights(self, ids: Sequence[int] | Tensor, weights: Weights) -> NDArray[np.int64]:
        if weights not in ("examples", "uniform"):
            raise ValueError(f"weights must be 'examples' or 'uniform'; given {weights!r}.")
        # By NumPy: the loop asks for one client at a time, which takes torch several times as long.
        places = np.asarray(ids)
        return np.ones_like(places) if weights == "uniform" else self.sizes.numpy()[places]

    def _run(self, step: Step, message: Tree, key: Tensor, apart: bool = False) -> Iterator[Outcome]:
        """Run a training step and yield sound outcomes; ``apart``: those of other ranks without their replies."""
        present = []
        for client in self.ids.tolist():
            if self.answers is None or self.answers(self.round, client):
                present.append(client)
            else:
                self.ledger.dropped[client] = "no answer"
        self.ledger.send(message, self.ids.tolist())
        if apart and isinstance(self.carrier, Ranks):
            outcomes = self.carrier.run_apart(step, message, present, key)
        else:
            outcomes = self.carrier.run(step, message, present, key, training=True)
        for outcome in outcomes:
            self.ledger.receive(outcome)
            if self._sound(step, outcome):
                yield outcome

    def _sound(self, step: Step, outcome: Outcome) -> bool:
        """Whether the step ran; if not, and failing clients are not to be dropped, raise what it raised."""
        if outcome.error is None:
            return True
        if self.on_error == "drop":
            return False
        names = clean(", ".join(self.names[i] if self.names else f"client {i}" for i in outcome.ids))
        outcome.error.add_note(f"{step_name(step)} failed at {names} in round {self.round + 1}.")
        raise outcome.error

    def _nobody(self) -> str:
        if not len(self.ids):
            return f"Nobody was drawn for round {self.round + 1}."
        reasons = sorted({self.ledger.dropped.get(i, "no answer") for i in self.ids.tolist()})
        return f"No reply could be used in round {self.round + 1}: {len(self.ids)} asked; {', '.join(reasons)}."


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


def _usable(outcome: Outcome) -> tuple[Sequence[int], Tree]:
    """Return the ids and the replies of clients whose replies can be used."""
    kept = outcome.usable.tolist()
    if all(kept) or outcome.elsewhere:
        return outcome.ids, outcome.replies
    return list(compress(outcome.ids, kept)), row(outcome.replies, outcome.usable)


def _check_numbers(step: Step, replies: Tree, mean: bool) -> None:
    """Raise a TypeError for truth values in a sum, and for anything but floating-point numbers in a mean.

    Whole numbers among a module's buffers, such as BatchNorm's count of minibatches, are averaged and rounded.
    """
    for name, leaf in flatten(replies).items():
        if "buffers" in name.split("/") or step.__name__ == "statistics":  # the step that replies with buffers alone
            continue
        if leaf.dtype == torch.bool or (mean and not (leaf.is_floating_point() or leaf.is_complex())):
            kind = str(leaf.dtype).removeprefix("torch.")
            raise TypeError(
                f"{step_name(step)} replies with {kind} values{f' at {name}' if name else ''}; a "
                f"{'mean' if mean else 'sum'} over clients needs {'floating-point' if mean else ''} numbers. Convert "
                "them in the step, with .float()."
            )


def _home(tree: Tree) -> Tree:
    """Return the tree in the machine's memory, where the server works."""
    return tree_map(Tensor.cpu, tree)
