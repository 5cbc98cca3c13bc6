"""Answers of clients' models to queries: what models share is computed once, and each client is asked for its part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import (
    Adapts,
    Algorithm,
    Clients,
    Embeds,
    NoReplyError,
    Predicts,
    PredictsGlobally,
    Routes,
    RoutesEmbedded,
    Step,
)
from archipel.core.examples import ClientData
from archipel.core.trees import PerClient, Tree, leaves, row, tree_map
from archipel.engines.setting import DEFAULT, Setting
from archipel.runs.routing import reweighted

PIECE = 512
"""Examples in a forward pass."""
TOGETHER = 1 << 26
"""Numbers that answers may hold before they are counted: 256 MiB of float32."""
PADDING = 1.25
"""Clients are asked together if their numbers of queries differ by less than this factor."""


def embed(algorithm: Algorithm, server: Tree, x: Tensor, setting: Setting = DEFAULT) -> Tree:
    """Compute once what all clients' models share of the queries; x itself if the algorithm shares nothing."""
    if not isinstance(algorithm, Embeds):
        return x
    made = [setting.call(algorithm.embed, server, piece) for piece in x.split(PIECE)]
    return tree_map(lambda *parts: torch.cat(parts), made[0], *made[1:])


def answer(algorithm: Algorithm, server: Tree, client: Tree, queries: Tree) -> Tensor:
    """Return ``(n, K)`` answers of a client's model to embedded queries."""
    return torch.cat([one_piece(algorithm, server, client, piece) for piece in pieces(queries)])


def one_piece(algorithm: Algorithm, server: Tree, client: Tree, queries: Tree) -> Tensor:
    """Return the answers of :func:`answer`, by one pass over all queries."""
    if isinstance(algorithm, Embeds):
        return algorithm.predict_embedded(server, client, queries)
    if isinstance(algorithm, Predicts):
        return algorithm.predict(server, client, queries)
    assert isinstance(algorithm, PredictsGlobally)
    return algorithm.predict_global(server, queries)


def posteriors(
    algorithm: Routes, server: Tree, x: Tensor, queries: Tree, setting: Setting = DEFAULT
) -> Iterator[Tensor]:
    """Yield ``(≤ PIECE, m)`` log-posteriors over clients.

    Args:
        algorithm: the router.
        server: the server's state.
        x: ``(n, …)`` raw queries.
        queries: the same queries, embedded.
        setting: where they are computed.
    """
    if isinstance(algorithm, RoutesEmbedded):
        yield from (setting.call(algorithm.route_embedded, server, piece) for piece in pieces(queries))
    else:
        yield from (setting.call(algorithm.route, server, piece) for piece in x.split(PIECE))


def most_likely(
    algorithm: Routes,
    server: Tree,
    x: Tensor,
    queries: Tree,
    setting: Setting = DEFAULT,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(n,)`` the most likely client of each query, and its probability.

    Arguments are those of :func:`posteriors`, and ``weight`` of :func:`reweighted`.
    """
    found = [reweighted(one, weight).max(-1) for one in posteriors(algorithm, server, x, queries, setting)]
    return torch.cat([most.indices for most in found]), torch.cat([most.values for most in found]).exp()


def pieces(queries: Tree) -> Iterator[Tree]:
    """Yield the queries in order, at most ``PIECE`` at a time; of no queries, one empty piece.

    >>> [len(piece["z"]) for piece in pieces({"z": torch.zeros(1000, 3)})]
    [512, 488]
    """
    for start in range(0, max(_length(queries), 1), PIECE):
        yield tree_map(lambda t, start=start: t[start : start + PIECE], queries)


def _length(queries: Tree) -> int:
    return len(leaves(queries)[0])


@dataclass(frozen=True)
class AnswerSteps:
    """The client steps of an evaluation, bound to the algorithm.

    A message holds the server's state and embedded ``"queries"``. With ``"slots"``, 0, 1, …, L − 1, a client answers
    the queries with the numbers from its own ``"first"`` to its ``"last"``, and repeats the last one if it has fewer
    than L. Without, it answers all queries.
    """

    algorithm: Algorithm

    def answer(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Answer by the client's model, which is adapted first if the method adapts."""
        personal = client
        if isinstance(self.algorithm, Adapts):
            personal = self.algorithm.adapt(message["server"], client, data, key)
        return client, self._answers(personal, message)

    def answer_before(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Answer by the client's model without adaptation."""
        return client, self._answers(client, message)

    def _answers(self, client: Tree, message: Tree) -> Tensor:
        queries, server = message["queries"], message["server"]
        if "slots" not in message:
            return answer(self.algorithm, server, client, queries)
        found = []
        for slots in message["slots"].split(PIECE):
            index = torch.minimum(message["first"] + slots, message["last"])
            found.append(answer(self.algorithm, server, client, row(queries, index)))
        return torch.cat(found)


@dataclass(frozen=True)
class AdaptStep:
    """The step by which clients keep their adapted models, bound to the algorithm.

    States keep their shape from enrolment on: a method whose clients keep what :meth:`Adapts.adapt` adds to a state
    gives it a first value there, under ``"adapted"``.
    """

    algorithm: Adapts

    def keep(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Adapt the client's model, and keep what this adds to its state."""
        found = self.algorithm.adapt(message["server"], client, data, key)
        return client | {"adapted": {name: found[name] for name in client["adapted"]}}, {}


def answering(algorithm: Algorithm, client: Tree) -> Tree:
    """Return the state that a client of a finished run answers with: with its adapted model if it has kept one."""
    kept: Tree = client.get("adapted", {}) if isinstance(algorithm, Adapts) else {}
    return client | kept


@dataclass(frozen=True)
class Questions:
    """The queries of an evaluation, and the clients that are asked.

    Args:
        clients: all clients.
        server: the server's state.
        queries: embedded, ``(n, …)`` tensors.
        outputs: K, the width of an answer.
        key: the evaluation's key.
    """

    clients: Clients
    server: Tree
    queries: Tree
    outputs: int
    key: Tensor

    def ask_pairs(self, step: Step, client: Tensor, query: Tensor) -> Tensor:
        """Return answers of chosen clients to chosen queries; each client is asked once.

        Args:
            step: of :class:`AnswerSteps`.
            client: ``(p,)`` who is asked.
            query: ``(p,)`` the number of the query.

        Returns:
            ``(p, K)``; NaN where a client's answers aren't finite.
        """
        order = client.argsort(stable=True)
        counts = torch.bincount(client, minlength=self.clients.population)
        answers = torch.full((len(client), self.outputs), torch.nan)
        for ids in _of_similar_counts(counts):
            asked = order[torch.isin(client[order], ids)]
            end = torch.zeros_like(counts).index_put((ids,), counts[ids].cumsum(0))
            first = torch.where(end > 0, end - counts, 0)
            message = {
                "server": self.server,
                "queries": row(self.queries, query[asked]),
                "first": PerClient(first),
                "last": PerClient(torch.clamp(end - 1, min=0)),
                "slots": torch.arange(int(counts[ids].max())),
            }
            try:
                replies = self.clients.only(ids).evaluate(step, message, self.key)
            except NoReplyError:
                continue
            place = positions(replies.ids, len(counts))[client[asked]]
            slot = torch.arange(len(asked)) - first[client[asked]]
            heard = place >= 0
            found = replies.value[place[heard], slot[heard]]
            answers = answers.to(found.dtype)
            answers[asked[heard]] = found
        return answers

    def ask_everyone(self, step: Step) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all clients' answers to all queries, for some clients at a time: their ids, and ``(k, n, K)``.

        Clients whose answers aren't finite are left out.
        """
        at_once = max(1, TOGETHER // max(1, _length(self.queries) * self.outputs))
        message = {"server": self.server, "queries": self.queries}
        for ids in torch.arange(self.clients.population).split(at_once):
            try:
                replies = self.clients.only(ids).evaluate(step, message, self.key)
            except NoReplyError:
                continue
            yield replies.ids, replies.value


class Ballot:
    """Many models' votes on the same queries, added up one by one.

    Args:
        queries: n.
        outputs: K.
        regression: whether answers are values; otherwise they are log-probabilities.
    """

    def __init__(self, queries: int, outputs: int, regression: bool) -> None:
        self.models, self.regression = 0, regression
        self._sums = torch.zeros(queries, outputs, dtype=torch.float64)
        self._votes = torch.zeros_like(self._sums)

    def add(self, answers: Tensor) -> None:
        """Add ``(k, n, K)`` answers of k models."""
        self.models += len(answers)
        for one in answers:  # one by one, so that no copy of all is made
            self._sums += one if self.regression else one.exp()
        if not self.regression:
            choices = answers.argmax(-1).T
            self._votes.scatter_add_(1, choices, torch.ones(choices.shape, dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """``(n, K)`` float64: mean probabilities, or mean values."""
        return self._sums / self.models

    @property
    def ranks(self) -> Tensor:
        """``(n, K)`` float64, largest for the class with most votes; ties go to the larger sum of probabilities."""
        # Summed probabilities are at most m, so divided by m + 1 they break ties and do nothing else.
        return self._votes + self._sums / (self.models + 1)


def vote(answers: Tensor) -> Tensor:
    """Return the majority's classes; ties go to the highest summed probability.

    Args:
        answers: ``(m, n, K)`` log-probabilities of m models.

    Returns:
        ``(n,)`` int64.

    >>> a, b, c = [0.6, 0.4, 0.0], [0.1, 0.9, 0.0], [0.3, 0.3, 0.4]
    >>> vote(torch.tensor([[a], [b], [c]]).log())
    tensor([1])
    """
    ballot = Ballot(answers.shape[1], answers.shape[2], regression=False)
    ballot.add(answers)
    return ballot.ranks.argmax(-1)


def _of_similar_counts(counts: Tensor) -> Iterator[Tensor]:
    """Yield ids of clients that have queries, those together whose counts differ by less than ``PADDING``.

    In a batch every client answers as many queries as the one with most, so similar counts waste little.
    """
    busy = counts.nonzero()[:, 0]
    size = (counts[busy].double().log() / math.log(PADDING)).floor()
    for value in size.unique():
        yield busy[size == value]


def positions(ids: Tensor, population: int) -> Tensor:
    """Return ``(m,)``: the position of each client among the ids; −1 for one that isn't there."""
    return torch.full((population,), -1).index_put((ids,), torch.arange(len(ids)))
