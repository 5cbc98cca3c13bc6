"""Who answers which queries of an evaluation: what models share is run once, and each client is asked for its part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Adapts, Algorithm, Clients, Embeds, NoReplyError, Predicts, PredictsGlobally, Routes, RoutesEmbedded, Step
from archipel.engines.setting import Setting
from archipel.core.examples import ClientData
from archipel.core.trees import PerClient, Tree, leaves, row, tree_map

HERE = Setting()
PIECE = 512
"""Examples a forward pass."""
TOGETHER = 1 << 26
"""Numbers that answers hold before they are counted: 256 MiB of float32."""
PADDING = 1.25
"""Clients are asked together whose numbers of queries differ by less than this factor."""


def embedded(algorithm: Algorithm, server: Tree, x: Tensor, setting: Setting = HERE) -> Tree:
    """What all clients' models make of queries alike, computed once; x itself where the algorithm says nothing."""
    if not isinstance(algorithm, Embeds):
        return x
    made = [setting.call(algorithm.embed, server, piece) for piece in x.split(PIECE)]
    return tree_map(lambda *parts: torch.cat(parts), made[0], *made[1:])


def answered(algorithm: Algorithm, server: Tree, client: Tree, queries: Tree) -> Tensor:
    """``(n, K)`` answers of a client's model to embedded queries."""

    def answer(piece: Tree) -> Tensor:
        if isinstance(algorithm, Embeds):
            return algorithm.predict_embedded(server, client, piece)
        if isinstance(algorithm, Predicts):
            return algorithm.predict(server, client, piece)
        assert isinstance(algorithm, PredictsGlobally)
        return algorithm.predict_global(server, piece)

    return torch.cat([answer(piece) for piece in pieces(queries)])


def posteriors(algorithm: Routes, server: Tree, x: Tensor, queries: Tree, setting: Setting = HERE) -> Iterator[Tensor]:
    """``(≤ PIECE, m)`` log-posteriors over clients, of raw queries and the same embedded."""
    if isinstance(algorithm, RoutesEmbedded):
        yield from (setting.call(algorithm.route_embedded, server, piece) for piece in pieces(queries))
    else:
        yield from (setting.call(algorithm.route, server, piece) for piece in x.split(PIECE))


def route_all(
    algorithm: Routes, server: Tree, x: Tensor, queries: Tree, setting: Setting = HERE
) -> tuple[Tensor, Tensor]:
    """``(n,)`` the most likely client of each query, and its probability."""
    found = [posterior.max(-1) for posterior in posteriors(algorithm, server, x, queries, setting)]
    return torch.cat([most.indices for most in found]), torch.cat([most.values for most in found]).exp()


def pieces(queries: Tree) -> Iterator[Tree]:
    """The queries in order, at most ``PIECE`` at a time; of none, one piece of none.

    >>> [len(piece["z"]) for piece in pieces({"z": torch.zeros(1000, 3)})]
    [512, 488]
    """
    for start in range(0, max(length(queries), 1), PIECE):
        yield tree_map(lambda t, start=start: t[start : start + PIECE], queries)


def length(queries: Tree) -> int:
    return len(leaves(queries)[0])


@dataclass(frozen=True)
class Examiner:
    """The evaluation's client steps: an object that holds the algorithm, so that it can travel where steps do.

    A message holds the server's state and embedded ``"queries"``. Where it has ``"slots"``, 0, 1, …, L − 1, a client is
    asked for those from its own ``"first"`` to its ``"last"``, which it answers again where it has fewer than L;
    otherwise for all.
    """

    algorithm: Algorithm

    def answer(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Answers by the client's model, which is adapted first where the method adapts."""
        personal = client
        if isinstance(self.algorithm, Adapts):
            personal = self.algorithm.adapt(message["server"], client, data, key)
        return client, self._answers(personal, message)

    def answer_before(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The same without adaptation."""
        return client, self._answers(client, message)

    def _answers(self, client: Tree, message: Tree) -> Tensor:
        queries, server = message["queries"], message["server"]
        if "slots" not in message:
            return answered(self.algorithm, server, client, queries)
        found = []
        for slots in message["slots"].split(PIECE):
            index = torch.minimum(message["first"] + slots, message["last"])
            found.append(answered(self.algorithm, server, client, row(queries, index)))
        return torch.cat(found)


@dataclass(frozen=True)
class Asking:
    """The queries of an evaluation, and the clients that are asked.

    Args:
        clients: all of them.
        server: the server's state.
        queries: embedded, ``(n, …)`` tensors.
        outputs: K, the width of an answer.
        key: the evaluation's.
    """

    clients: Clients
    server: Tree
    queries: Tree
    outputs: int
    key: Tensor

    def of_some(self, step: Step, client: Tensor, query: Tensor) -> Tensor:
        """Answers of chosen clients to chosen queries, every client being asked once.

        Args:
            step: an examiner's.
            client: ``(p,)`` who is asked.
            query: ``(p,)`` the row of the query.

        Returns:
            ``(p, K)``; NaN where a client's answers aren't finite.
        """
        order = client.argsort(stable=True)
        counts = torch.bincount(client, minlength=self.clients.population)
        answers = torch.full((len(client), self.outputs), torch.nan)
        for ids in _alike(counts):
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
            place = places(replies.ids, len(counts))[client[asked]]
            slot = torch.arange(len(asked)) - first[client[asked]]
            heard = place >= 0
            found = replies.value[place[heard], slot[heard]]
            answers = answers.to(found.dtype)
            answers[asked[heard]] = found
        return answers

    def of_all(self, step: Step) -> Iterator[tuple[Tensor, Tensor]]:
        """Everybody's answers to all queries, some clients at a time: their ids, and ``(k, n, K)``.

        Clients whose answers aren't finite are left out.
        """
        at_once = max(1, TOGETHER // max(1, length(self.queries) * self.outputs))
        message = {"server": self.server, "queries": self.queries}
        for ids in torch.arange(self.clients.population).split(at_once):
            try:
                replies = self.clients.only(ids).evaluate(step, message, self.key)
            except NoReplyError:
                continue
            yield replies.ids, replies.value


class Poll:
    """Many models' answers to the same queries, added up as they come in.

    Args:
        queries: n.
        outputs: K.
        regression: whether answers are values; otherwise they are log-probabilities.
    """

    def __init__(self, queries: int, outputs: int, regression: bool) -> None:
        self.models, self.regression = 0, regression
        self._sums = torch.zeros(queries, outputs, dtype=torch.float64)
        self._ballots = torch.zeros_like(self._sums)

    def add(self, answers: Tensor) -> None:
        """Adds ``(k, n, K)`` answers of k models."""
        self.models += len(answers)
        for one in answers:  # by ones, so that no copy of all is made
            self._sums += one if self.regression else one.exp()
        if not self.regression:
            choices = answers.argmax(-1).T
            self._ballots.scatter_add_(1, choices, torch.ones(choices.shape, dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """``(n, K)`` float64: mean probabilities, or mean values."""
        return self._sums / self.models

    @property
    def ranks(self) -> Tensor:
        """``(n, K)`` float64, largest where most models vote, and of equals where probabilities add up to most."""
        # Summed probabilities are at most m, so that divided by m + 1 they can break ties and nothing else.
        return self._ballots + self._sums / (self.models + 1)


def vote(answers: Tensor) -> Tensor:
    """The majority's classes; ties go to the highest summed probability.

    Args:
        answers: ``(m, n, K)`` log-probabilities of m models.

    Returns:
        ``(n,)`` int64.

    >>> a, b, c = [0.6, 0.4, 0.0], [0.1, 0.9, 0.0], [0.3, 0.3, 0.4]
    >>> vote(torch.tensor([[a], [b], [c]]).log())
    tensor([1])
    """
    poll = Poll(answers.shape[1], answers.shape[2], regression=False)
    poll.add(answers)
    return poll.ranks.argmax(-1)


def _alike(counts: Tensor) -> Iterator[Tensor]:
    """Ids of clients with queries, those together whose counts differ by less than ``PADDING``.

    Every client of a batch answers as many queries as the busiest of them, so that their counts should be alike.
    """
    busy = counts.nonzero()[:, 0]
    size = (counts[busy].double().log() / math.log(PADDING)).floor()
    for value in size.unique():
        yield busy[size == value]


def places(ids: Tensor, population: int) -> Tensor:
    """``(m,)``: where each client stands among the ids; −1 where it doesn't."""
    return torch.full((population,), -1).index_put((ids,), torch.arange(len(ids)))
