"""A trained federation: the result of ``fit`` and of ``load``, ready to route, predict and be evaluated."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Predicts, PredictsGlobally, Routes
from archipel.core import keys
from archipel.core.checks import kind_of
from archipel.core.trees import Tree, row
from archipel.data.arrays import Values
from archipel.data.federation import Federation
from archipel.engines.auto import choose
from archipel.engines.handle import Handle, Ledger
from archipel.engines.setting import DEFAULT, Setting
from archipel.runs.answers import PIECE, Ballot, answer, answering, embed, most_likely
from archipel.runs.evaluate import Evaluation, evaluate
from archipel.runs.facts import Facts
from archipel.runs.identity import frozen_digest
from archipel.runs.prediction import Prediction
from archipel.runs.routing import Prior, Routing, reweighted, reweighting
from archipel.states.checkpoint import Checkpoint
from archipel.states.table import States


@dataclass(repr=False)
class Run:
    """A trained federation.

    Args:
        algorithm: what was trained.
        server: the server's state after the last round.
        clients: every client's state, as a sequence. An element is read from memory or from disk when it is used.
        facts: the federation's classes, names, sizes and preprocessing.
        history: a record for each round: loss, traffic, seconds, dropped clients, and metrics if it was evaluated.
        table: the last evaluation's row for each client.
        rounds: planned rounds of the whole run; schedules extend over them.
        seed: the run's seed.
        unadapted: the numbers of clients whose kept adapted models aren't of the last round: all of them where an
            error ended the run, and those whose adaptation failed.
    """

    algorithm: Algorithm
    server: Tree
    clients: Sequence[Tree]
    facts: Facts
    history: list[dict[str, Any]] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    rounds: int = 0
    seed: int = 0
    unadapted: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items()) or "not evaluated"
        method, m = type(self.algorithm).__name__, len(self.facts.names)
        return f"Run({method}, {m} clients, {len(self.history)} rounds: {found})"

    @property
    def metrics(self) -> dict[str, float]:
        """The last round's metrics."""
        found = self.history[-1].get("metrics", {}) if self.history else {}
        return dict(found)

    def evaluate(self, federation: Federation, setting: Setting = DEFAULT, positive: str | None = None) -> Evaluation:
        """Evaluate the last models on the test examples of a federation, without any training.

        On the federation of the training, the result is that of the last round. With other test examples of the same
        clients it says how the models do on these. The run doesn't change.

        Args:
            federation: the run's clients, in the same order, with the examples to evaluate on. Methods that adapt
                before they answer adapt to its training examples.
            setting: how the evaluation is carried out.
            positive: the positive one of two classes, for ``sites``; ``None``: the second.

        Returns:
            The metrics, a row for each client, and ``sites`` with intervals; averages have the weights n_i/n.

        Raises:
            ValueError: the federation has other clients, or examples or targets of another form.
            DivergenceError: answers that are needed aren't finite.

        >>> from archipel.algorithms.fedavg import FedAvg
        >>> from archipel.fit import fit
        >>> from archipel.learning.sgd import SGD
        >>> from archipel.learning.tasks import classification
        >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> islands = Federation.from_arrays([(part, (part[:, 0] > 0).long()) for part in x.split(20)])
        >>> run = fit(FedAvg(classification(torch.nn.Linear(3, 4), islands), SGD(steps=1)), islands, rounds=1)
        >>> run.evaluate(islands).metrics == run.metrics
        True
        """
        with self.asking(federation, setting) as (clients, key):
            return evaluate(self.algorithm, self.server, clients, federation, key, setting, True, positive)

    @contextmanager
    def asking(self, federation: Federation, setting: Setting = DEFAULT) -> Iterator[tuple[Handle, Tensor]]:
        """Yield a handle on the clients, to ask for counts of held-out data, and the key of the last evaluation."""
        self.facts.check(federation)
        last, threads = max(len(self.history) - 1, 0), torch.get_num_threads()
        torch.set_num_threads(1)  # as in training, so that sums are rounded in the same way
        carrier, _ = choose(self.algorithm, federation, setting, self._states())
        try:
            everyone = torch.arange(len(self.facts.names))
            clients = Handle(carrier, everyone, torch.tensor(self.facts.sizes), last, self.rounds, Ledger())
            yield clients, keys.fold(keys.key(self.seed), "eval", last)
        finally:
            carrier.close()
            torch.set_num_threads(threads)

    @torch.no_grad()
    def route(self, x: Values, prior: Prior | None = None) -> Routing:
        """Return the client that each query most likely belongs to.

        The posterior is proportional to π_i p_i(x), with p_i the client's density of x and π the prior. By default
        π_i = n_i/n, the client's share of the training examples (of methods with a prior of their own it is that one).
        A query that several clients may explain then goes to the large ones, and a small hospital is rarely chosen.

        Args:
            x: raw queries, as the training data were before preparation.
            prior: where queries come from: ``"uniform"``, equally often from each client, or ``(m,)`` shares of the
                clients among the queries, which need not add up to 1; ``None``: as above.

        Raises:
            TypeError: the algorithm has no router.
            ValueError: the prior isn't a share for each client.
        """
        if not isinstance(self.algorithm, Routes):
            raise TypeError(
                f"{type(self.algorithm).__name__} doesn't route queries. Train a method that does (FedSPM), or ask one "
                "client with predict(x, client=NAME)."
            )
        queries = self.facts.inputs.prepare(x)
        weight = reweighting(self.algorithm, self.server, self.facts, prior)
        found = [reweighted(self.algorithm.route(self.server, piece), weight) for piece in queries.split(PIECE)]
        posterior = torch.cat(found).exp()
        return Routing(posterior.argmax(-1), posterior, self.facts.names)

    @torch.no_grad()
    def predict(self, x: Values, client: str | int | None = None, prior: Prior | None = None) -> Prediction:
        """Answer queries.

        Args:
            x: raw queries.
            client: whose personal model answers, by name or number. ``None``: the client that each query is routed to;
                the global model if the method has no router; a vote of all clients if it has neither.
            prior: of the clients among the queries, where these are routed; see :meth:`route`.

        Raises:
            ValueError: there is no such client, it hasn't adapted, or the prior isn't a share for each client.
            TypeError: the algorithm fits a distribution, and has no model that answers.
        """
        if not isinstance(self.algorithm, Predicts | PredictsGlobally):
            raise TypeError(
                f"{type(self.algorithm).__name__} has no model that answers queries: it fits a distribution. Ask its "
                "family, as in run.algorithm.family.posterior(run.server['theta'], {'x': x})."
            )
        n = len(queries := self.facts.inputs.prepare(x))
        if client is not None:
            index = self._index(client)
            return self._prediction(self._ask(index, queries), [self.facts.names[index]] * n)
        if isinstance(self.algorithm, Routes):
            shared = embed(self.algorithm, self.server, queries)
            weight = reweighting(self.algorithm, self.server, self.facts, prior)
            routed, _ = most_likely(self.algorithm, self.server, queries, shared, weight=weight)
            answers: Tensor | None = None
            for index in routed.unique().tolist() or [0]:  # without queries any client gives no answers
                mine = routed == index
                found = answer(self.algorithm, self.server, self._answering(index), row(shared, mine))
                answers = found.new_zeros(n, found.shape[-1]) if answers is None else answers
                answers[mine] = found
            assert answers is not None
            return self._prediction(answers, [self.facts.names[i] for i in routed.tolist()])
        if isinstance(self.algorithm, PredictsGlobally):
            return self._prediction(self._ask_global(self.algorithm, queries), ["global model"] * n)
        shared = embed(self.algorithm, self.server, queries)
        ballot = Ballot(n, self.facts.outputs, self.facts.classes is None)
        for index in range(len(self.facts.names)):
            found = answer(self.algorithm, self.server, self._answering(index), shared)
            ballot.add(found[None])
        mean = ballot.mean.to(found.dtype)
        if self.facts.classes is None:
            return Prediction(mean, None, ["vote"] * n)
        winners = [self.facts.classes[k] for k in ballot.ranks.argmax(-1).tolist()]
        return Prediction(mean, winners, ["vote"] * n)

    def _index(self, client: str | int) -> int:
        names = self.facts.names
        if isinstance(client, str) and client in names:
            return names.index(client)
        with suppress(ValueError, TypeError):  # not a number
            index = int(client) if isinstance(client, str) else operator.index(client)
            if not isinstance(client, bool) and 0 <= index < len(names):
                return index
        raise ValueError(f"There is no client {client!r}; there are {', '.join(names[:20])}, or 0 to {len(names) - 1}.")

    def _ask(self, client: int, queries: Tensor) -> Tensor:
        if not isinstance(self.algorithm, Predicts):
            assert isinstance(self.algorithm, PredictsGlobally)
            return self._ask_global(self.algorithm, queries)
        state = self._answering(client)
        return torch.cat([self.algorithm.predict(self.server, state, piece) for piece in queries.split(PIECE)])

    def _answering(self, client: int) -> Tree:
        """Return the state that a client answers with; refuse one whose adapted model isn't of the last round."""
        if client in self.unadapted:
            raise ValueError(
                f"{self.facts.names[client]} has no adapted model of round {len(self.history)}: the run ended before "
                "clients adapted, or this client's adaptation failed. Resume the run with fit, or ask the global model "
                "(no client)."
            )
        return answering(self.algorithm, self.clients[client])

    def _ask_global(self, algorithm: PredictsGlobally, queries: Tensor) -> Tensor:
        return torch.cat([algorithm.predict_global(self.server, piece) for piece in queries.split(PIECE)])

    def _prediction(self, answers: Tensor, answered_by: list[str]) -> Prediction:
        if self.facts.classes is None:
            return Prediction(answers, None, answered_by)
        labels = [self.facts.classes[k] for k in answers.argmax(-1).tolist()]
        return Prediction(answers.exp(), labels, answered_by)

    def save(self, folder: str | Path, identity: dict[str, Any] | None = None) -> None:
        """Write states, facts and history to ``folder/checkpoint``.

        Args:
            folder: made if it doesn't exist.
            identity: what distinguishes this run from others, in JSON's types.
        """
        facts: dict[str, Any] = {"serving": self.facts.to_json(), "history": self.history, "table": self.table}
        facts |= {"rounds": self.rounds, "seed": self.seed, "frozen": frozen_digest(self.algorithm)}
        facts |= {"unadapted": self.unadapted, "identity": identity or {}}
        Path(folder).mkdir(parents=True, exist_ok=True)
        Checkpoint(len(self.history), self.server, self._states(), facts).save(Path(folder))

    def _states(self) -> States:
        """Return the clients' states as a table."""
        if isinstance(self.clients, States):
            return self.clients
        states = States(self.facts.sizes)
        states.load(self.clients)
        return states

    @classmethod
    def read(cls, folder: str | Path, algorithm: Algorithm) -> Run:
        """Read a run from its folder.

        Args:
            folder: of the run.
            algorithm: the object it was trained with.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: the run was trained with another algorithm, or its files are damaged.
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
        if frozen_digest(algorithm) != facts["frozen"]:
            raise ValueError(
                f"The networks of this {trained} have other frozen parameters (requires_grad=False) than those that "
                f"{folder} was trained with, and checkpoints don't contain frozen parameters. Load the weights of the "
                "training before you make the algorithm."
            )
        return cls(
            algorithm,
            checkpoint.server,
            checkpoint.clients,
            Facts.from_json(facts["serving"]),
            facts["history"],
            facts["table"],
            facts["rounds"],
            facts["seed"],
            facts.get("unadapted", []),
        )
