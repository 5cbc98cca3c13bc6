"""Metrics of each site and of all together, beside what needs no learning together: from counts that sites send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from archipel.algorithm import Adapts, Algorithm, Clients, Predicts, PredictsGlobally
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, tree_map
from archipel.data.federation import Federation
from archipel.runs.answers import TOGETHER, answer, embed
from archipel.runs.metrics.classification import classification_metrics, reliability
from archipel.runs.metrics.counts import BINS, Counts, count_scores
from archipel.runs.metrics.estimate import Estimate
from archipel.runs.metrics.regression import LEAST, regression_metrics, regression_sums

Part = Literal["test", "validation"]
POOLED = "all sites"
MAJORITY, MEAN = "majority class", "training mean"


@dataclass(frozen=True)
class Row:
    """A model's metrics at a site.

    Args:
        site: the site's name, or ``"all sites"``.
        model: the method's name, or what answers without learning: the majority class, or mean, of the site's training
            examples.
        n: examples that were counted.
        metrics: by name.
        pooled: whether this is all sites together.
        curve: points of the reliability curve (:func:`archipel.runs.metrics.classification.reliability`).
        confusion: ``[true][given]`` counts; ``None`` for a regression.
    """

    site: str
    model: str
    n: int
    metrics: dict[str, Estimate]
    pooled: bool = False
    curve: list[dict[str, Any]] = field(default_factory=list)
    confusion: list[list[int]] | None = None

    def value(self, metric: str) -> float | None:
        """Return a metric's value, of several targets their mean; ``None`` if the examples don't determine it.

        Raises:
            ValueError: there is no such metric of these data.
        """
        found = [one.value for name, one in self.metrics.items() if name.partition("[")[0] == metric]
        if not found:
            known = dict.fromkeys(name.partition("[")[0] for name in self.metrics)
            raise ValueError(f"There is no {metric} of these data; there are {', '.join(known)}.")
        known_values = [value for value in found if value is not None]
        return sum(known_values) / len(found) if len(known_values) == len(found) else None


@dataclass(frozen=True)
class Assessment:
    """Metrics for each site and pooled.

    Args:
        rows: site by site, the pooled ones last; at each site the method first.
        warnings: sentences on what a mean would hide.
        classes: the classes' names; ``None`` for a regression.
        positive: the positive one of two classes; ``None`` if the metrics are means over classes, or of a regression.
        part: the examples that were counted.
    """

    rows: list[Row]
    warnings: list[str]
    classes: tuple[str, ...] | None
    positive: str | None
    part: Part = "test"

    def of(self, model: str) -> dict[str, Row]:
        """Return a model's rows by site, without the pooled one."""
        return {row.site: row for row in self.rows if row.model == model and not row.pooled}

    @property
    def models(self) -> list[str]:
        """The models, in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def beside(self, other: Assessment) -> Assessment:
        """Return the assessment with the rows of another method, each below the first method's of the same site."""
        known, rows = set(self.models), []
        extra = {(row.site, row.pooled): row for row in other.rows if row.model not in known}
        seen: set[tuple[str, bool]] = set()
        for row in self.rows:
            rows.append(row)
            place = (row.site, row.pooled)
            if place not in seen and place in extra:
                rows.append(extra[place])
            seen.add(place)
        return Assessment(rows, self.warnings, self.classes, self.positive, self.part)

    def to_json(self) -> dict[str, Any]:
        """Return the assessment in JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Assessment:
        """Return the assessment that :meth:`to_json` wrote."""
        rows = [
            Row(**row | {"metrics": {name: Estimate(**value) for name, value in row["metrics"].items()}})
            for row in values["rows"]
        ]
        classes = None if values["classes"] is None else tuple(values["classes"])
        return cls(rows, list(values["warnings"]), classes, values["positive"], values["part"])


@dataclass(frozen=True)
class CountStep:
    """The client step of an assessment: it answers the client's own held-out examples, and replies with counts.

    Args:
        algorithm: whose models answer.
        classes: K; ``None`` for a regression.
        part: which of the held-out examples.
    """

    algorithm: Algorithm
    classes: int | None
    part: Part = "test"

    def count(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Count scores (:class:`Counts`) or sum errors, of the client's model and of its training examples' majority.

        A model that adapts does so first, with the key of the run's evaluation.
        """
        server, personal = message["server"], client
        examples = data.test if self.part == "test" else data.validation
        assert examples is not None
        if isinstance(self.algorithm, Adapts):
            personal = self.algorithm.adapt(server, client, data, key)
        answers = answer(self.algorithm, server, personal, embed(self.algorithm, server, examples["x"]))
        y, seen, there = examples["y"], data.train["y"], data.train.mask
        if self.classes is not None:
            zeros = torch.zeros(self.classes, dtype=torch.float64, device=y.device)
            shares = zeros.scatter_add(0, seen.clamp(0, self.classes - 1), there.double()) / there.sum()
            usual = shares.log().expand(len(y), self.classes)
            counts = {"model": count_scores(answers, y, examples.mask), "usual": count_scores(usual, y, examples.mask)}
            return client, counts
        y, seen = (values[:, None] if values.dim() == 1 else values for values in (y, seen))
        mean = torch.where(there[:, None], seen.double(), 0.0).sum(0) / there.sum()
        one, other = (
            regression_sums(given, y, message["origin"], examples.mask) for given in (answers, mean.expand_as(y))
        )
        return client, {"model": one, "usual": other}


def assess(
    algorithm: Algorithm,
    server: Tree,
    clients: Clients,
    federation: Federation,
    key: Tensor,
    *,
    positive: str | None = None,
    part: Part = "test",
) -> Assessment | None:
    """Ask every site for counts of its held-out examples, and compute metrics of each site and of all together.

    What leaves a site is :class:`archipel.runs.metrics.counts.Counts`, or for a regression ten sums a target.

    Args:
        algorithm: what was trained.
        server: the server's state.
        clients: a handle on the clients.
        federation: whose held-out examples are counted.
        key: of the evaluation.
        positive: the positive one of two classes; ``None``: the second.
        part: ``"test"`` or ``"validation"``.

    Returns:
        The assessment; ``None`` if the algorithm doesn't predict, or no site has such examples.

    Raises:
        ValueError: there is no such class, or there are more than two and one is given.
    """
    chosen = _positive(federation.classes, positive)
    if not isinstance(algorithm, Predicts | PredictsGlobally):
        return None
    least = 1 if federation.classes is not None else LEAST
    sizes = [len((getattr(client, part) or {"y": ()})["y"]) for client in federation.clients]
    asked = [i for i, size in enumerate(sizes) if size >= least]
    if not asked:
        return None
    k = None if federation.classes is None else len(federation.classes)
    message: Tree = {"server": server}
    if k is None:
        targets = torch.stack([client.train["y"].double().mean(0).reshape(-1) for client in federation.clients])
        message["origin"] = (federation.sizes.double() @ targets) / federation.sizes.sum()
    few = [federation.clients[i].name for i, size in enumerate(sizes) if size < least]
    warnings = [f"{name} has too few {part} examples to be counted." for name in few]
    titles = (type(algorithm).__name__, MEAN if k is None else MAJORITY)
    rows: list[Row] = []
    together: dict[str, Tree] = {}
    step = CountStep(algorithm, k, part)

    def add(site: str, found: Tree, pooled: bool = False) -> None:
        for which, title in zip(("model", "usual"), titles, strict=True):
            if k is None:
                rows.append(_of_sums(site, title, found[which], pooled))
                continue
            counts = Counts.of(found[which])
            metrics, curve = classification_metrics(counts, chosen), reliability(counts, chosen)
            if which == "usual" and not pooled and metrics["auc"].value is not None:
                metrics["auc"] = Estimate(0.5)  # all its scores at a site are equal: no error of bins, and no interval
            rows.append(Row(site, title, counts.n, metrics, pooled, curve, counts.confusion.tolist()))
            if which == "model":
                assert federation.classes is not None
                warnings.extend(_concerns(site, counts, federation.classes, chosen))

    for ids in torch.tensor(asked).split(max(1, TOGETHER // (4 * BINS * (k or 1)))):
        replies = clients.everyone.only(ids).evaluate(step.count, message, key)
        for place, i in enumerate(replies.ids.tolist()):
            add(federation.clients[i].name, tree_map(lambda t, i=place: t[i], replies.value))
        sums = tree_map(lambda t: t.sum(0), replies.value)
        together = tree_map(torch.add, together, sums) if together else sums
    add(POOLED, together, pooled=True)
    label = None if chosen is None or federation.classes is None else federation.classes[chosen]
    return Assessment(rows, warnings, federation.classes, label, part)


def _of_sums(name: str, title: str, sums: Tensor, pooled: bool) -> Row:
    several = len(sums) > 1
    metrics = {
        f"{metric}[{target}]" if several else metric: value
        for target, row in enumerate(sums)
        for metric, value in regression_metrics(row).items()
    }
    return Row(name, title, int(sums[0, 0]), metrics, pooled)


def _positive(classes: Sequence[str] | None, positive: str | None) -> int | None:
    if positive is None:
        return 1 if classes is not None and len(classes) == 2 else None
    if classes is None or len(classes) != 2:
        raise ValueError("A positive class is one of two; these data have " + (
            "numbers as targets." if classes is None else f"{len(classes)} classes, whose metrics are averaged."
        ))  # fmt: skip
    if positive not in classes:
        raise ValueError(f"There is no class {positive!r}; there are {' and '.join(map(repr, classes))}.")
    return list(classes).index(positive)


def _concerns(site: str, counts: Counts, classes: Sequence[str], positive: int | None) -> list[str]:
    """Say what the averages of a site hide: classes that are absent, never found, or answers that aren't finite."""
    found, rows = [], counts.confusion.sum(1).tolist()
    if counts.lost:
        found.append(f"{site}: {counts.lost} answers aren't finite and are left out.")
    absent = [name for name, n in zip(classes, rows, strict=True) if not n]
    if absent:
        found.append(
            f"{site}: no example has the class {', '.join(map(repr, absent))}, so that metrics that need "
            f"{'it' if len(absent) == 1 else 'them'} are missing. Accuracy alone says little there."
        )
    for k, (name, n) in enumerate(zip(classes, rows, strict=True)):
        if n and not int(counts.confusion[k, k]):
            what = "" if positive is None else f"{'sensitivity' if k == positive else 'specificity'} is 0: "
            found.append(f"{site}: {what}none of the {n} examples of class {name!r} was recognised.")
    return found
