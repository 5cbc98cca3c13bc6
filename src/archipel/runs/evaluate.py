"""The evaluation of a federation: for its own clients, for queries from outside, and as a router."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import (
    Adapts,
    Algorithm,
    Clients,
    DivergenceError,
    Personalises,
    Predicts,
    PredictsGlobally,
    Routes,
)
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.engines.setting import DEFAULT, Setting
from archipel.runs.answers import PIECE, AnswerSteps, Ballot, Questions, embed, most_likely, positions
from archipel.runs.calibration import calibration_error, gaps
from archipel.runs.metrics.assessment import Assessment, assess

log = logging.getLogger("archipel")
VOTES = 10**8
"""Most answers that a vote of all clients on all queries may need: 3,000 clients with 33,000 queries."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    For a classification ``metrics`` holds these fractions:

    - ``system_accuracy``: accuracy on the pooled test examples of all clients, without knowledge of their clients. A
      method that routes sends each example to one client, whose personal model answers (eqs. 10 and 11 of FedSPM).
      Otherwise all personal models vote, and ties go to the class with the highest summed probability. A vote that
      needs more than 10⁸ answers isn't held; the log says so, and the metric is missing.
    - ``average_accuracy``: accuracy of each client's personal model on its own test examples, averaged with the weights
      n_i/n (training examples). If the method adapts, it is measured after adaptation, and
      ``average_before_accuracy`` before.
    - ``routing_accuracy``: how often the most likely client is the client that a pooled test example came from.
    - ``global_accuracy``: accuracy of the global model on the pooled test examples, if the method has one.
    - ``worst_accuracy``: the lowest of the clients' own accuracies; ``worst_decile_accuracy``: the plain mean of the
      lowest tenth of them, m/10 rounded up.
    - ``ece``: expected calibration error of the personal models on their own test examples. An example of client i has
      the weight w_ij = (n_i/n)/t_i, with t_i the client's number of test examples. Examples of all clients share the
      bins of confidence (:func:`archipel.runs.calibration.gaps`), and ECE = Σ_b |Σ_ij∈b w_ij (right_ij −
      confidence_ij)|.
    - ``routing_ece``: expected calibration error of the router on the pooled test examples, all with the same weight.
      The answer is the most likely client, its confidence is that client's posterior probability, and it is right if
      the example came from that client.

    Clients without test examples don't count in averages and minima. For a regression the names end in ``rmse``, the
    mean of the personal models' values replaces the vote, ``worst_rmse`` is the largest, and there are no worst tenth
    and no calibration.

    Args:
        metrics: by name.
        clients: a row for each client: name, sizes, its own accuracy (or rmse) and, for routers, the share of its test
            examples that were sent to it (``routed``).
        sites: metrics with intervals for each site and pooled, from counts (:func:`archipel.runs.metrics.assess`); only
            if they were asked for, as :meth:`archipel.Run.evaluate` does.
    """

    metrics: dict[str, float]
    clients: list[dict[str, Any]]
    sites: Assessment | None = None


@dataclass(frozen=True)
class TestSet:
    """The pooled test examples of all clients, client by client.

    Args:
        x: ``(n, …)`` raw inputs.
        y: ``(n, …)`` targets.
        origin: ``(n,)`` int64, the client of each example.
        counts: ``(m,)`` int64, each client's number of examples.
        regression: whether targets are numbers.
    """

    x: Tensor
    y: Tensor
    origin: Tensor
    counts: Tensor
    regression: bool

    @classmethod
    def of(cls, federation: Federation) -> TestSet:
        """Pool the test examples of a federation."""
        tests = [client.test for client in federation.clients]
        counts = torch.tensor([len(test["y"]) for test in tests])
        origin = torch.arange(len(tests)).repeat_interleave(counts)
        x, y = (torch.cat([test[column] for test in tests]) for column in ("x", "y"))
        return cls(x, y, origin, counts, federation.classes is None)

    def scores(self, answers: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return ``(n,)`` float64: 1 for a right class and 0 for a wrong one, or the squared error."""
        y = self.y[rows]
        if self.regression:
            return (answers - (y[:, None] if y.dim() == 1 else y)).square().mean(-1).double()
        return (answers.argmax(-1) == y).double()

    def not_finite(self, answers: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return ``(n,)`` bool: where an answer, or its squared error, isn't finite."""
        return ~(answers.isfinite().all(-1) & self.scores(answers, rows).isfinite())

    def owners(self, rows: Tensor) -> Tensor:
        """Return ``(m,)`` bool: the clients of the rows, ``(n,)`` bool."""
        return torch.zeros(len(self.counts), dtype=torch.bool).index_fill(0, self.origin[rows], True)

    def means(self, values: Tensor) -> Tensor:
        """Return ``(m,)``: each client's mean of the values, ``(n,)``, of its examples; NaN if it has none."""
        return torch.zeros(len(self.counts), dtype=torch.float64).index_add(0, self.origin, values) / self.counts


@torch.no_grad()
def evaluate(
    algorithm: Algorithm,
    server: Tree,
    clients: Clients,
    federation: Federation,
    key: Tensor,
    setting: Setting = DEFAULT,
    sites: bool = False,
    positive: str | None = None,
) -> Evaluation:
    """Evaluate all enrolled clients, without any effect on states or on random numbers of training.

    All test examples are pooled, and what models share of them is computed once (:class:`archipel.Embeds`). A client
    whose answers aren't finite is left out of the metrics and named in the log.

    Args:
        algorithm: what was trained.
        server: the server's state.
        clients: a handle on the clients.
        federation: the federation whose test examples are the queries.
        key: decides what methods draw when they adapt.
        setting: where the server's part is computed.
        sites: also ask each site for counts, and compute metrics with intervals from them.
        positive: for these, the positive one of two classes; ``None``: the second.

    Returns:
        The evaluation. Its metrics are empty if the algorithm doesn't predict or the federation has no test examples.

    Raises:
        DivergenceError: no client's answers are finite, or those of a client that queries are routed to aren't.
    """
    everyone, pool = clients.everyone, TestSet.of(federation)
    names, sizes = [client.name for client in federation.clients], everyone.sizes.tolist()
    table = [
        {"client": name, "train": n, "test": count}
        for name, n, count in zip(names, sizes, pool.counts.tolist(), strict=True)
    ]
    if not len(pool.y) or not isinstance(algorithm, Predicts | PredictsGlobally):
        return Evaluation({}, table)
    unit = "rmse" if pool.regression else "accuracy"
    there = setting.to_device(server)
    questions = Questions(everyone, server, embed(algorithm, there, pool.x, setting), federation.outputs, key)
    steps = AnswerSteps(algorithm)
    tested = pool.counts > 0
    lost = torch.zeros_like(tested)
    metrics: dict[str, float] = {}

    def put(name: str, mean: Tensor) -> None:
        metrics[f"{name}_{unit}"] = float(mean) ** 0.5 if pool.regression else float(mean)

    def diverged(who: Tensor) -> DivergenceError:
        return DivergenceError(_overflown(who, everyone.round, names))

    if isinstance(algorithm, PredictsGlobally):
        own = torch.cat([setting.call(algorithm.predict_global, there, x) for x in pool.x.split(PIECE)])
        put("global", pool.scores(own).mean())
    if isinstance(algorithm, Routes):
        to, certainty = most_likely(algorithm, there, pool.x, questions.queries, setting)
        own, system = _own_and_routed(questions, steps, pool, to)
        if bool((mute := pool.not_finite(system)).any()):
            raise diverged(to[mute].unique())
        put("system", pool.scores(system).mean())
        right = to == pool.origin
        metrics["routing_accuracy"] = float(right.double().mean())
        metrics["routing_ece"] = calibration_error(certainty, right)
        for entry, share in zip(table, pool.means(right.double()).tolist(), strict=True):
            entry["routed"] = share if entry["test"] else None
    elif _personal(algorithm, server, everyone):
        if len(pool.y) * len(names) > VOTES:
            log.info(
                "%d clients don't vote on %d test examples, since that needs %.1g answers: there is no system_%s.",
                len(names),
                len(pool.y),
                len(names) * len(pool.y),
                unit,
            )
            own = questions.ask_pairs(steps.answer, pool.origin, torch.arange(len(pool.y)))
        else:
            own, ballot, heard = _own_and_voted(questions, steps, pool)
            if not bool(heard.any()):
                raise diverged(everyone.ids)
            lost |= ~heard
            put("system", pool.scores(ballot.mean if pool.regression else ballot.ranks).mean())
    else:
        metrics[f"system_{unit}"] = metrics[f"global_{unit}"]  # all votes are the global model's
    lost |= pool.owners(pool.not_finite(own))
    if isinstance(algorithm, Adapts):
        before = questions.ask_pairs(steps.answer_before, pool.origin, torch.arange(len(pool.y)))
        lost |= pool.owners(pool.not_finite(before))
    kept = tested & ~lost
    if not bool(kept.any()):
        raise diverged(tested.nonzero()[:, 0])
    if bool(lost.any()):
        log.warning("%s They are left out of the metrics.", _overflown(lost.nonzero()[:, 0], everyone.round, names))
    weights = torch.where(kept, everyone.sizes.double(), 0.0)
    weights = weights / weights.sum()
    scores = pool.means(pool.scores(own))
    put("average", weights[kept] @ scores[kept])
    if isinstance(algorithm, Adapts):
        put("average_before", weights[kept] @ pool.means(pool.scores(before))[kept])
    ordered = scores[kept].sort(descending=pool.regression).values  # the worst first
    put("worst", ordered[0])
    if not pool.regression:
        put("worst_decile", ordered[: math.ceil(len(ordered) / 10)].mean())
        rows = kept[pool.origin]
        confidence = own[rows].max(-1).values.exp().double()
        metrics["ece"] = float(
            gaps(confidence, pool.scores(own)[rows], (weights / pool.counts)[pool.origin[rows]]).abs().sum()
        )
    for i, score in zip(kept.nonzero()[:, 0].tolist(), scores[kept].tolist(), strict=True):
        table[i][unit] = score**0.5 if pool.regression else score
    counted = assess(algorithm, server, clients, federation, key, positive=positive) if sites else None
    return Evaluation(metrics, table, counted)


def _personal(algorithm: Algorithm, server: Tree, clients: Clients) -> bool:
    """Whether clients have models of their own; otherwise all use the global model."""
    if not isinstance(algorithm, PredictsGlobally) or isinstance(algorithm, Adapts):
        return True
    if isinstance(algorithm, Personalises):
        return algorithm.personalises(server)
    return isinstance(algorithm, Predicts) and clients.stateful


def _own_and_routed(questions: Questions, steps: AnswerSteps, pool: TestSet, to: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(n, K)`` answers of each query's own client, and of the client it was sent to; NaN if not finite."""
    away = (to != pool.origin).nonzero()[:, 0]
    client, query = torch.cat([pool.origin, to[away]]), torch.cat([torch.arange(len(to)), away])
    own, others = questions.ask_pairs(steps.answer, client, query).tensor_split([len(to)])
    return own, own.index_put((away,), others)


def _own_and_voted(questions: Questions, steps: AnswerSteps, pool: TestSet) -> tuple[Tensor, Ballot, Tensor]:
    """Return ``(n, K)`` answers of each query's own client, NaN if not finite; all votes; ``(m,)`` who voted."""
    own = torch.full((len(pool.y), questions.outputs), torch.nan)
    ballot, heard = (
        Ballot(len(pool.y), questions.outputs, pool.regression),
        torch.zeros(len(pool.counts), dtype=torch.bool),
    )
    for ids, answers in questions.ask_everyone(steps.answer):
        place = positions(ids, len(heard))[pool.origin]
        rows = (place >= 0).nonzero()[:, 0]
        own = own.to(answers.dtype)
        own[rows] = answers[place[rows], rows]
        sound = ~pool.owners(rows[pool.not_finite(own[rows], rows)])[ids]
        ballot.add(answers if bool(sound.all()) else answers[sound])
        heard[ids] = sound
    return own, ballot, heard


def _overflown(ids: Tensor, round: int, names: Sequence[str]) -> str:
    who = ", ".join(names[i] for i in ids.tolist())
    return (
        f"After round {round + 1} the models are finite, but answers to test examples, or their squared errors, are "
        f"not finite at {who}. A lower learning rate or gradient clipping (SGD's clip) usually helps."
    )
