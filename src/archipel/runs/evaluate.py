"""How good a federation is: for its own clients, for queries from outside, and at telling whose a query is."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Adapts, Algorithm, Clients, DivergenceError, Personalises, Predicts, PredictsGlobally, Routes
from archipel.runs.answers import HERE, Asking, Examiner, Poll, embedded, places, route_all
from archipel.runs.answers import PIECE
from archipel.runs.calibration import calibration_error, gaps
from archipel.engines.setting import Setting
from archipel.data.federation import Federation
from archipel.core.trees import Tree

log = logging.getLogger("archipel")
VOTES = 10**8
"""Answers that an evaluation may ask for so that everybody votes on everything: 3,000 clients with 33,000 queries."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    For classification ``metrics`` holds, as fractions:

    - ``system_accuracy``: on all clients' test examples pooled, by somebody who doesn't know whose they are. A method
      that routes sends each to one client, whose personal model answers (eqs. 10 and 11 of FedSPM). Otherwise all
      personal models vote; ties go to the class with the highest summed probability. Where that would take more than
      10⁸ answers nobody votes, the log says so, and this metric isn't there.
    - ``average_accuracy``: each client's personal model on its own test examples, weighted by n_i/n (training
      examples), after adaptation where the method adapts; then ``average_before_accuracy`` is without it.
    - ``routing_accuracy``: how often the most likely client is the one a pooled test example came from.
    - ``global_accuracy``: one model for everybody on the pooled test examples, where the method has one.
    - ``worst_accuracy``: the least of the clients' own accuracies that ``average_accuracy`` averages;
      ``worst_decile_accuracy``: the plain mean of the lowest tenth of them, m/10 rounded up.
    - ``ece``: expected calibration error of the personal models' answers on their own test examples. An example of
      client i weighs (n_i/n)/t_i, t_i its test examples, as it does in ``average_accuracy``; examples of all clients
      are binned together by the confidence of the answer (:func:`archipel.runs.calibration.gaps`), and
      ECE = Σ_b |Σ_ij∈b w_ij (right_ij − confidence_ij)|.
    - ``routing_ece``: the same of the router: its confidence in the most likely client of a pooled test example, all
      with the same weight.

    Clients without test examples are left out of what is averaged or least. For regression the same accuracies with
    ``rmse`` for accuracy and the mean of the personal models' values for the vote; ``worst_rmse`` is the largest, and
    there are no worst tenth and no calibration.

    Args:
        metrics: by name.
        clients: a row a client: name, sizes, its own accuracy (or rmse) and, for routers, how many of its test
            examples came to it (``routed``).
    """

    metrics: dict[str, float]
    clients: list[dict[str, Any]]


@dataclass(frozen=True)
class Pool:
    """All clients' test examples, one client's after another's.

    Args:
        x: ``(n, …)``.
        y: ``(n, …)``.
        origin: ``(n,)`` int64, whose each is.
        counts: ``(m,)`` int64, how many each client has.
        regression: whether targets are numbers.
    """

    x: Tensor
    y: Tensor
    origin: Tensor
    counts: Tensor
    regression: bool

    @classmethod
    def of(cls, federation: Federation) -> Pool:
        tests = [client.test for client in federation.clients]
        counts = torch.tensor([len(test["y"]) for test in tests])
        origin = torch.arange(len(tests)).repeat_interleave(counts)
        x, y = (torch.cat([test[column] for test in tests]) for column in ("x", "y"))
        return cls(x, y, origin, counts, federation.classes is None)

    def scores(self, answers: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """``(n,)`` float64: 1 for a right class and 0 for a wrong one, or the squared error."""
        y = self.y[rows]
        if self.regression:
            return (answers - (y[:, None] if y.dim() == 1 else y)).square().mean(-1).double()
        return (answers.argmax(-1) == y).double()

    def unsound(self, answers: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """``(n,)`` bool: where an answer, or its squared error, isn't finite."""
        return ~(answers.isfinite().all(-1) & self.scores(answers, rows).isfinite())

    def owners(self, rows: Tensor) -> Tensor:
        """``(m,)`` bool: the clients that some of the rows, ``(n,)`` bool, are of."""
        return torch.zeros(len(self.counts), dtype=torch.bool).index_fill(0, self.origin[rows], True)

    def means(self, values: Tensor) -> Tensor:
        """``(m,)``: each client's mean of its examples' values, ``(n,)``; NaN for one without."""
        return torch.zeros(len(self.counts), dtype=torch.float64).index_add(0, self.origin, values) / self.counts


@torch.no_grad()
def evaluate(
    algorithm: Algorithm,
    server: Tree,
    clients: Clients,
    federation: Federation,
    key: Tensor,
    setting: Setting = HERE,
) -> Evaluation:
    """Evaluates all enrolled clients; neither state nor random numbers of training are touched.

    All test examples are pooled, and what models share of them is computed once (:class:`archipel.Embeds`); a client's
    own are among them. A client whose answers aren't finite is left out of the metrics, and named in the log.

    Args:
        algorithm: what was trained.
        server: the server's state.
        clients: a handle on them.
        federation: whose test examples are asked.
        key: of whatever is drawn, in a method that adapts.
        setting: where what the server computes is computed.

    Returns:
        The evaluation; its metrics are empty where the algorithm doesn't predict or the federation holds no tests.

    Raises:
        DivergenceError: no client's answers are finite, or not those of one that queries are routed to.
    """
    everyone, pool = clients.everyone, Pool.of(federation)
    names, sizes = [client.name for client in federation.clients], everyone.sizes.tolist()
    table = [
        {"client": name, "train": n, "test": count}
        for name, n, count in zip(names, sizes, pool.counts.tolist(), strict=True)
    ]
    if not len(pool.y) or not isinstance(algorithm, Predicts | PredictsGlobally):
        return Evaluation({}, table)
    unit = "rmse" if pool.regression else "accuracy"
    there = setting.to_device(server)
    asking = Asking(everyone, server, embedded(algorithm, there, pool.x, setting), federation.outputs, key)
    examiner = Examiner(algorithm)
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
        to, certainty = route_all(algorithm, there, pool.x, asking.queries, setting)
        own, system = _own_and_routed(asking, examiner, pool, to)
        if bool((mute := pool.unsound(system)).any()):
            raise diverged(to[mute].unique())
        put("system", pool.scores(system).mean())
        at_home = to == pool.origin
        metrics["routing_accuracy"] = float(at_home.double().mean())
        metrics["routing_ece"] = calibration_error(certainty, at_home)
        for entry, share in zip(table, pool.means(at_home.double()).tolist(), strict=True):
            entry["routed"] = share if entry["test"] else None
    elif _personal(algorithm, server, everyone):
        if len(pool.y) * len(names) > VOTES:
            log.info(
                "%d clients don't vote on %d test examples, which would be %.1g answers: there is no system_%s.",
                len(names),
                len(pool.y),
                len(names) * len(pool.y),
                unit,
            )
            own = asking.of_some(examiner.answer, pool.origin, torch.arange(len(pool.y)))
        else:
            own, poll, heard = _own_and_polled(asking, examiner, pool)
            if not bool(heard.any()):
                raise diverged(everyone.ids)
            lost |= ~heard
            put("system", pool.scores(poll.mean if pool.regression else poll.ranks).mean())
    else:
        metrics[f"system_{unit}"] = metrics[f"global_{unit}"]  # all votes are the global model's
    lost |= pool.owners(pool.unsound(own))
    if isinstance(algorithm, Adapts):
        before = asking.of_some(examiner.answer_before, pool.origin, torch.arange(len(pool.y)))
        lost |= pool.owners(pool.unsound(before))
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
    return Evaluation(metrics, table)


def _personal(algorithm: Algorithm, server: Tree, clients: Clients) -> bool:
    """Whether clients have models of their own; where they don't, everyone's is the global one."""
    if not isinstance(algorithm, PredictsGlobally) or isinstance(algorithm, Adapts):
        return True
    if isinstance(algorithm, Personalises):
        return algorithm.personalises(server)
    return isinstance(algorithm, Predicts) and clients.stateful


def _own_and_routed(asking: Asking, examiner: Examiner, pool: Pool, to: Tensor) -> tuple[Tensor, Tensor]:
    """``(n, K)`` answers of each query's own client, and of the one it was sent to; NaN where they aren't finite."""
    away = (to != pool.origin).nonzero()[:, 0]
    client, query = torch.cat([pool.origin, to[away]]), torch.cat([torch.arange(len(to)), away])
    own, others = asking.of_some(examiner.answer, client, query).tensor_split([len(to)])
    return own, own.index_put((away,), others)


def _own_and_polled(asking: Asking, examiner: Examiner, pool: Pool) -> tuple[Tensor, Poll, Tensor]:
    """``(n, K)`` answers of each query's own client, NaN where they aren't finite; all votes; ``(m,)`` who voted."""
    own = torch.full((len(pool.y), asking.outputs), torch.nan)
    poll, heard = Poll(len(pool.y), asking.outputs, pool.regression), torch.zeros(len(pool.counts), dtype=torch.bool)
    for ids, answers in asking.of_all(examiner.answer):
        place = places(ids, len(heard))[pool.origin]
        rows = (place >= 0).nonzero()[:, 0]
        own = own.to(answers.dtype)
        own[rows] = answers[place[rows], rows]
        sound = ~pool.owners(rows[pool.unsound(own[rows], rows)])[ids]
        poll.add(answers if bool(sound.all()) else answers[sound])
        heard[ids] = sound
    return own, poll, heard


def _overflown(ids: Tensor, round: int, names: Sequence[str]) -> str:
    who = ", ".join(names[i] for i in ids.tolist())
    return (
        f"After round {round + 1} models are finite, but answers to test examples, or squares of their errors, are "
        f"not at {who}. A lower learning rate or gradient clipping (SGD's clip) usually helps."
    )
