"""How good a federation is: for its own clients, for queries from outside, and at telling whose a query is."""

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
    NoReplyError,
    Predicts,
    PredictsGlobally,
    Replies,
    Routes,
)
from archipel.calibration import BINS, calibration_error, gaps
from archipel.data.federation import Federation
from archipel.examples import ClientData, Examples
from archipel.trees import Tree

log = logging.getLogger("archipel")
PIECE = 512
"""Examples a forward pass."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    For classification ``metrics`` holds, as fractions:

    - ``system_accuracy``: on all clients' test examples pooled, by somebody who doesn't know whose they are. A method
      that routes sends each to one client, whose personal model answers (eqs. 10 and 11 of FedSPM). Otherwise all
      personal models vote; ties go to the class with the highest summed probability.
    - ``average_accuracy``: each client's personal model on its own test examples, weighted by n_i/n (training
      examples), after adaptation where the method adapts; then ``average_before_accuracy`` is without it.
    - ``routing_accuracy``: how often the most likely client is the one a pooled test example came from.
    - ``global_accuracy``: one model for everybody on the pooled test examples, where the method has one.
    - ``worst_accuracy``: the least of the clients' own accuracies that ``average_accuracy`` averages;
      ``worst_decile_accuracy``: the plain mean of the lowest tenth of them, m/10 rounded up.
    - ``ece``: expected calibration error of the personal models' answers on their own test examples. An example of
      client i weighs (n_i/n)/t_i, t_i its test examples, as it does in ``average_accuracy``; examples of all clients
      are binned together by the confidence of the answer (:func:`archipel.calibration.gaps`), and
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
class Examiner:
    """The evaluation's client step: an object that holds the algorithm, so that it can travel where steps do."""

    algorithm: Algorithm
    regression: bool

    def examine(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Scores the personal model on the client's test examples, and answers the queries in the message."""
        algorithm, server = self.algorithm, message["server"]
        reply: Tree = {}
        personal = client
        if isinstance(algorithm, Adapts):
            personal = algorithm.adapt(server, client, data, key)
            reply["before"] = self._examined(server, client, data.test)["score"]
        reply["own"] = self._examined(server, personal, data.test)
        if "x" in message:
            reply["answers"] = torch.cat([self._answer(server, personal, x) for x in message["x"].split(PIECE)])
        return client, reply

    def _answer(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        if isinstance(self.algorithm, Predicts):
            return self.algorithm.predict(server, client, x)
        assert isinstance(self.algorithm, PredictsGlobally)
        return self.algorithm.predict_global(server, x)

    def _examined(self, server: Tree, client: Tree, test: Examples | None) -> Tree:
        """The mean score on the client's test examples, and for classes the calibration's gaps."""
        if test is None:  # replies look alike; who has no tests is left out of the averages
            return {"score": torch.zeros(())} | ({} if self.regression else {"gaps": torch.zeros(BINS)})
        answers = torch.cat([self._answer(server, client, batch["x"]) for batch in test.pieces(PIECE)])
        y = torch.cat([batch["y"] for batch in test.pieces(PIECE)])
        weights = test.mask / torch.clamp(test.count, min=1)
        scores = score(answers, y, self.regression)
        found = {"score": torch.where(test.mask, scores, 0.0).sum() / torch.clamp(test.count, min=1)}
        if not self.regression:
            found["gaps"] = gaps(answers.max(-1).values.exp(), scores, weights)
        return found


def score(answers: Tensor, y: Tensor, regression: bool) -> Tensor:
    """``(n,)``: 1 for a right class and 0 for a wrong one, or the squared error."""
    if regression:
        y = y[:, None] if y.dim() == 1 else y
        return (answers - y).square().mean(-1)
    return (answers.argmax(-1) == y).to(answers.dtype)


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
    classes = answers.shape[-1]
    ballots = torch.nn.functional.one_hot(answers.argmax(-1), classes).sum(0).to(torch.float64)
    # Summed probabilities are at most m, so that divided by m + 1 they can break ties and nothing else.
    return (ballots + answers.double().exp().sum(0) / (len(answers) + 1)).argmax(-1)


@torch.no_grad()
def evaluate(algorithm: Algorithm, server: Tree, clients: Clients, federation: Federation, key: Tensor) -> Evaluation:
    """Evaluates all enrolled clients; neither state nor random numbers of training are touched.

    A client whose answers aren't finite is left out of the metrics, and named in the log.

    Returns:
        The evaluation; its metrics are empty where the algorithm doesn't predict or the federation holds no tests.

    Raises:
        DivergenceError: no client's answers are finite, or not those of one that queries are routed to.
    """
    everyone = clients.everyone
    names = [client.name for client in federation.clients]
    tests = [client.test for client in federation.clients]
    counts = [len(test["y"]) for test in tests]
    table = [
        {"client": name, "train": int(n), "test": count}
        for name, n, count in zip(names, everyone.sizes.tolist(), counts, strict=True)
    ]
    if sum(counts) == 0 or not isinstance(algorithm, Predicts | PredictsGlobally):
        return Evaluation({}, table)
    regression = federation.classes is None
    unit = "rmse" if regression else "accuracy"
    examiner = Examiner(algorithm, regression)
    metrics: dict[str, float] = {}

    def put(name: str, scores: Tensor | float) -> None:
        mean = float(torch.as_tensor(scores, dtype=torch.float64).mean())
        metrics[f"{name}_{unit}"] = mean**0.5 if regression else mean

    pooled_x, pooled_y = (torch.cat([test[column] for test in tests]) for column in ("x", "y"))
    origin = torch.repeat_interleave(torch.arange(len(tests)), torch.tensor(counts))
    own: dict[str, dict[int, Tensor]] = {"score": {}, "gaps": {}, "before": {}}

    def note(ids: Tensor, value: Tree) -> None:
        replies = value["own"] | ({"before": value["before"]} if "before" in value else {})
        for part, values in replies.items():
            own[part].update((i, v) for i, v in zip(ids.tolist(), values.double(), strict=True) if counts[i])

    def average(part: str) -> Tensor:
        weights = everyone.sizes[list(own[part])].double()
        mean: Tensor = torch.tensordot(weights / weights.sum(), torch.stack(list(own[part].values())), 1)
        return mean

    if isinstance(algorithm, PredictsGlobally):
        answers = torch.cat([algorithm.predict_global(server, x) for x in pooled_x.split(PIECE)])
        put("global", score(answers, pooled_y, regression))
    if isinstance(algorithm, Routes):
        found = [algorithm.route(server, x).max(-1) for x in pooled_x.split(PIECE)]
        routed = torch.cat([most.indices for most in found])
        certainty = torch.cat([most.values for most in found]).exp()
        answers, answered = _routed_answers(examiner, server, everyone, names, pooled_x, routed, key)
        for ids, value in answered:
            note(ids, value)
        put("system", score(answers, pooled_y, regression))
        metrics["routing_accuracy"] = float((routed == origin).double().mean())
        metrics["routing_ece"] = calibration_error(certainty, routed == origin)
        for i, entry in enumerate(table):
            entry["routed"] = float((routed[origin == i] == i).double().mean()) if counts[i] else None
    elif isinstance(algorithm, PredictsGlobally) and not (everyone.stateful or isinstance(algorithm, Adapts)):
        # Clients that keep nothing and adapt nothing have no model of their own: all votes are the global model's.
        replies = _asked(examiner, {"server": server}, everyone, names, key)
        note(replies.ids, replies.value)
        metrics[f"system_{unit}"] = metrics[f"global_{unit}"]
    else:
        replies = _asked(examiner, {"server": server, "x": pooled_x}, everyone, names, key)
        note(replies.ids, replies.value)
        if regression:
            put("system", score(replies.value["answers"].mean(0), pooled_y, regression))
        else:
            put("system", (vote(replies.value["answers"]) == pooled_y).double())
    if not own["score"]:
        tested = torch.tensor([i for i, count in enumerate(counts) if count])
        raise DivergenceError(_overflown(tested, everyone.round, names))
    put("average", average("score"))
    if own["before"]:
        put("average_before", average("before"))
    ordered = sorted((float(value) for value in own["score"].values()), reverse=regression)  # the worst first
    put("worst", ordered[0])
    if not regression:
        put("worst_decile", torch.tensor(ordered[: math.ceil(len(ordered) / 10)]))
        metrics["ece"] = float(average("gaps").abs().sum())
    for i, value in own["score"].items():
        table[i][unit] = float(value) ** 0.5 if regression else float(value)
    return Evaluation(metrics, table)


def _asked(examiner: Examiner, message: Tree, clients: Clients, names: Sequence[str], key: Tensor) -> Replies:
    """The replies of those whose answers are finite; the others are named."""
    try:
        replies = clients.evaluate(examiner.examine, message, key)
    except NoReplyError:
        raise DivergenceError(_overflown(clients.ids, clients.round, names)) from None
    lost = clients.ids[~torch.isin(clients.ids, replies.ids)]
    if len(lost):
        log.warning("%s They are left out of the metrics.", _overflown(lost, clients.round, names))
    return replies


def _overflown(ids: Tensor, round: int, names: Sequence[str]) -> str:
    who = ", ".join(names[i] for i in ids.tolist())
    return (
        f"After round {round + 1} models are finite, but answers to test examples, or squares of their errors, are "
        f"not at {who}. A lower learning rate or gradient clipping (SGD's clip) usually helps."
    )


def _routed_answers(
    examiner: Examiner,
    server: Tree,
    everyone: Clients,
    names: Sequence[str],
    x: Tensor,
    routed: Tensor,
    key: Tensor,
) -> tuple[Tensor, list[tuple[Tensor, Tree]]]:
    """Every query's answer from the client it was sent to, and each client's own scores."""
    answers: Tensor | None = None
    others = []
    for client in range(everyone.population):
        mine = (routed == client).nonzero()[:, 0]
        message = {"server": server} | ({"x": x[mine]} if len(mine) else {})
        replies = _asked(examiner, message, everyone.only(torch.tensor([client])), names, key)
        if len(mine):
            found = replies.value["answers"][0]
            answers = found.new_zeros(len(x), found.shape[-1]) if answers is None else answers
            answers[mine] = found
        others.append((replies.ids, replies.value))
    assert answers is not None
    return answers, others
