"""A trained federation: what ``fit`` returns and ``load`` reads back, ready to route and predict."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Predicts, PredictsGlobally, Routes
from archipel.runs.answers import PIECE, Poll, answered, embedded, route_all
from archipel.states.checkpoint import Checkpoint
from archipel.core.checks import kind_of
from archipel.states.table import States
from archipel.data.arrays import Values
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.core.trees import Tree, row


@dataclass(frozen=True)
class Facts:
    """What serving must know of the federation, without its data.

    Args:
        inputs: shape and normalisation.
        classes: names, or ``None`` for regression.
        outputs: K classes, or the number of a regression's targets.
        names: the clients'.
        sizes: training examples each holds.
    """

    inputs: Inputs
    classes: tuple[str, ...] | None
    outputs: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, federation: Federation) -> Facts:
        names = tuple(client.name for client in federation.clients)
        return cls(federation.inputs, federation.classes, federation.outputs, names, tuple(federation.sizes.tolist()))

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Facts:
        classes = None if facts["classes"] is None else tuple(facts["classes"])
        return cls(Inputs(**facts["inputs"]), classes, facts["outputs"], tuple(facts["names"]), tuple(facts["sizes"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Routing:
    """Where queries belong.

    Args:
        clients: ``(n,)`` int64, the most likely client of each query.
        probabilities: ``(n, m)`` posterior over clients.
        names: the clients' names.
    """

    clients: Tensor
    probabilities: Tensor
    names: tuple[str, ...]

    def ranked(self, top: int = 3) -> list[list[tuple[str, float]]]:
        """For each query its most likely clients with their probabilities, best first."""
        best = self.probabilities.topk(min(top, len(self.names)))
        return [
            [(self.names[i], p) for i, p in zip(ids, ps, strict=True)]
            for ids, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Prediction:
    """Answers to queries.

    Args:
        values: ``(n, K)`` class probabilities, or ``(n, outputs)`` values of a regression.
        labels: the most likely class's name for each query; ``None`` for regression.
        answered_by: who answered each query: a client's name, ``"global model"`` or ``"vote"``.
    """

    values: Tensor
    labels: list[str] | None
    answered_by: list[str]


@dataclass(repr=False)
class Run:
    """A trained federation.

    Args:
        algorithm: what was run.
        server: the server's state after the last round.
        clients: every client's state, as a sequence that is read when it is asked for: from memory, or from disk where
            they are there.
        facts: the federation's classes, names, sizes and preprocessing.
        history: a record a round: loss, traffic, seconds, dropped clients, and metrics where it was evaluated.
        table: the last evaluation's row for each client.
    """

    algorithm: Algorithm
    server: Tree
    clients: Sequence[Tree]
    facts: Facts
    history: list[dict[str, Any]] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items()) or "not evaluated"
        method, m = type(self.algorithm).__name__, len(self.facts.names)
        return f"Run({method}, {m} clients, {len(self.history)} rounds: {found})"

    @property
    def metrics(self) -> dict[str, float]:
        """The last round's metrics."""
        found = self.history[-1].get("metrics", {}) if self.history else {}
        return dict(found)

    @torch.no_grad()
    def route(self, x: Values) -> Routing:
        """Tells whose each query most likely is.

        Args:
            x: raw queries as the user has them; they are prepared as the training data were.

        Raises:
            TypeError: the algorithm has no router.
        """
        if not isinstance(self.algorithm, Routes):
            raise TypeError(
                f"{type(self.algorithm).__name__} doesn't route queries. Train a method that does (FedSPM), or ask one "
                "client with predict(x, client=NAME)."
            )
        queries = self.facts.inputs.prepare(x)
        posterior = torch.cat([self.algorithm.route(self.server, piece) for piece in queries.split(PIECE)]).exp()
        return Routing(posterior.argmax(-1), posterior, self.facts.names)

    @torch.no_grad()
    def predict(self, x: Values, client: str | int | None = None) -> Prediction:
        """Answers queries.

        Args:
            x: raw queries.
            client: whose personal model answers, by name or number. ``None``: the client each query is routed to;
                where the method has no router its global model; where it has neither, a vote of all clients.

        Raises:
            ValueError: no such client.
            TypeError: the algorithm fits a distribution, and has nothing to predict with.
        """
        if not isinstance(self.algorithm, Predicts | PredictsGlobally):
            raise TypeError(
                f"{type(self.algorithm).__name__} has no model that answers queries: it fits a distribution. Ask its "
                "family, as in run.algorithm.family.posterior(run.server['theta'], {'x': x})."
            )
        queries = self.facts.inputs.prepare(x)
        n = len(queries)
        if client is not None:
            index = self._index(client)
            return self._prediction(self._ask(index, queries), [self.facts.names[index]] * n)
        if isinstance(self.algorithm, Routes):
            made = embedded(self.algorithm, self.server, queries)
            routed, _ = route_all(self.algorithm, self.server, queries, made)
            answers: Tensor | None = None
            for index in routed.unique().tolist() or [0]:  # no queries: anybody gives no answers
                mine = routed == index
                found = answered(self.algorithm, self.server, self.clients[index], row(made, mine))
                answers = found.new_zeros(n, found.shape[-1]) if answers is None else answers
                answers[mine] = found
            assert answers is not None
            return self._prediction(answers, [self.facts.names[i] for i in routed.tolist()])
        if isinstance(self.algorithm, PredictsGlobally):
            algorithm = self.algorithm
            pieces = [algorithm.predict_global(self.server, piece) for piece in queries.split(PIECE)]
            return self._prediction(torch.cat(pieces), ["global model"] * n)
        made = embedded(self.algorithm, self.server, queries)
        poll = Poll(n, self.facts.outputs, self.facts.classes is None)
        for state in self.clients:
            found = answered(self.algorithm, self.server, state, made)
            poll.add(found[None])
        mean = poll.mean.to(found.dtype)
        if self.facts.classes is None:
            return Prediction(mean, None, ["vote"] * n)
        winners = [self.facts.classes[k] for k in poll.ranks.argmax(-1).tolist()]
        return Prediction(mean, winners, ["vote"] * n)

    def _index(self, client: str | int) -> int:
        names = self.facts.names
        if isinstance(client, str) and client in names:
            return names.index(client)
        with suppress(ValueError, TypeError):  # what is no number
            index = int(client) if isinstance(client, str) else operator.index(client)
            if not isinstance(client, bool) and 0 <= index < len(names):
                return index
        raise ValueError(f"There is no client {client!r}; there are {', '.join(names[:20])}, or 0 to {len(names) - 1}.")

    def _ask(self, client: int, queries: Tensor) -> Tensor:
        if not isinstance(self.algorithm, Predicts):
            assert isinstance(self.algorithm, PredictsGlobally)
            algorithm = self.algorithm
            return torch.cat([algorithm.predict_global(self.server, piece) for piece in queries.split(PIECE)])
        state = self.clients[client]
        return torch.cat([self.algorithm.predict(self.server, state, piece) for piece in queries.split(PIECE)])

    def _prediction(self, answers: Tensor, answered_by: list[str]) -> Prediction:
        if self.facts.classes is None:
            return Prediction(answers, None, answered_by)
        labels = [self.facts.classes[k] for k in answers.argmax(-1).tolist()]
        return Prediction(answers.exp(), labels, answered_by)

    def save(self, folder: str | Path, identity: dict[str, Any] | None = None) -> None:
        """Writes states, facts and history to ``folder/checkpoint``, with what tells this run from others."""
        facts = {"serving": self.facts.to_json(), "history": self.history, "table": self.table}
        facts["identity"] = identity or {}
        Path(folder).mkdir(parents=True, exist_ok=True)
        Checkpoint(len(self.history), self.server, self._states(), facts).save(Path(folder))

    def _states(self) -> States:
        """The clients' states as a table, whatever they were given as."""
        if isinstance(self.clients, States):
            return self.clients
        states = States(self.facts.sizes)
        states.load(self.clients)
        return states

    @classmethod
    def read(cls, folder: str | Path, algorithm: Algorithm) -> Run:
        """A run from its folder, with the algorithm object it was trained with.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: it was trained with another algorithm.
        """
        checkpoint = Checkpoint.load(Path(folder))
        if checkpoint is None:
            raise FileNotFoundError(
                f"There is no run in {folder}: it has no checkpoint. Train one with `archipel run`."
            )
        facts = checkpoint.facts
        trained = facts["identity"].get("algorithm", {}).get("type", type(algorithm).__name__)
        if not isinstance(algorithm, Algorithm) or type(algorithm).__name__ != trained:
            raise ValueError(
                f"{folder} was trained with {trained}; given {kind_of(algorithm)}. Give the object it was trained with."
            )
        return cls(
            algorithm,
            checkpoint.server,
            checkpoint.clients,
            Facts.from_json(facts["serving"]),
            facts["history"],
            facts["table"],
        )
