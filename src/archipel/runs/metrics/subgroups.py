"""Metrics of subgroups of patients by any column, from counts of which small ones are never sent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Adapts, Algorithm, Clients, Predicts, PredictsGlobally
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, tree_map
from archipel.data.federation import Federation
from archipel.runs.answers import answer, embed
from archipel.runs.metrics.classification import classification_metrics
from archipel.runs.metrics.counts import Counts, count_scores
from archipel.runs.metrics.estimate import Estimate

MINIMUM = 10
"""Examples of a subgroup at a site below which the site doesn't send its counts."""


@dataclass(frozen=True)
class Subgroup:
    """A subgroup's metrics over all sites that sent its counts.

    Args:
        name: as in ``"age from 50 to 65"``.
        n: examples that were counted.
        sites: how many sites sent counts of it.
        metrics: by name, as of :func:`archipel.runs.metrics.classification.classification_metrics`.
    """

    name: str
    n: int
    sites: int
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class SubgroupStep:
    """The client step: it answers the client's own test examples, and replies with counts for each subgroup.

    A subgroup with fewer examples than ``minimum`` is left out. If it is the only one, the smallest other one is left
    out as well: otherwise the difference to the site's total would tell it.

    Args:
        algorithm: whose models answer.
        classes: K.
        minimum: examples of a subgroup at the site.
    """

    algorithm: Algorithm
    classes: int
    minimum: int = MINIMUM

    def count(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Count scores for each subgroup that is large enough."""
        assert data.test is not None
        personal = client
        if isinstance(self.algorithm, Adapts):
            personal = self.algorithm.adapt(message["server"], client, data, key)
        x, y, mask = data.test["x"], data.test["y"], data.test.mask
        answers = answer(self.algorithm, message["server"], personal, embed(self.algorithm, message["server"], x))
        limits = message["limits"]
        values = x.index_select(1, message["column"].view(1))[:, 0].double()
        group = torch.where(values.isnan(), len(limits) + 1, torch.bucketize(values, limits, right=True))
        members = (group == torch.arange(len(limits) + 2, device=x.device)[:, None]) & mask
        told = shown(members.sum(1), self.minimum)
        counts = [count_scores(answers, y, one & keep) for one, keep in zip(members, told, strict=True)]
        return client, {name: torch.stack([count[name] for count in counts]) for name in counts[0]}


def shown(sizes: Tensor, minimum: int) -> Tensor:
    """Return ``(G,)`` bool: the subgroups whose counts a site sends.

    Args:
        sizes: ``(G,)`` examples of each.
        minimum: the smallest number that is sent.

    >>> shown(torch.tensor([3, 12, 30, 0]), 10).tolist()  # the 12 with the site's 45 would tell the 3
    [False, False, True, False]
    >>> shown(torch.tensor([3, 4, 30, 0]), 10).tolist()
    [False, False, True, False]
    """
    small = (sizes > 0) & (sizes < minimum)
    large = sizes >= minimum
    next_one = torch.where(large, sizes, torch.iinfo(sizes.dtype).max).argmin()
    second = (torch.arange(len(sizes), device=sizes.device) == next_one) & (small.sum() == 1)
    return large & ~second


def subgroups(
    algorithm: Algorithm,
    server: Tree,
    clients: Clients,
    federation: Federation,
    key: Tensor,
    by: str,
    limits: Sequence[float] = (),
    *,
    positive: int | None = None,
    minimum: int = MINIMUM,
) -> list[Subgroup]:
    """Return metrics of subgroups by a column of a table, over all sites.

    Args:
        algorithm: what was trained; a classification.
        server: the server's state.
        clients: a handle on the clients.
        federation: whose test examples are counted.
        key: of the evaluation.
        by: the column's name.
        limits: between subgroups, rising; default: the training mean of all sites, which the run knows.
        positive: the positive one of two classes; ``None``: the second.
        minimum: examples of a subgroup at a site below which the site doesn't send its counts.

    Returns:
        A row for each subgroup whose counts at least one site sent.

    Raises:
        ValueError: there is no such column, the data are no table or a regression, or limits don't rise.
    """
    inputs = federation.inputs
    if inputs.kind != "table" or federation.classes is None:
        raise ValueError("Subgroups by a column need a table with classes; these data are a "
                         + ("regression." if federation.classes is None else f"{inputs.kind}."))  # fmt: skip
    if not isinstance(algorithm, Predicts | PredictsGlobally):
        return []
    names = inputs.features or tuple(map(str, range(inputs.shape[0])))
    if by not in names:
        raise ValueError(f"There is no column {by!r}; there are {', '.join(names)}.")
    column = names.index(by)
    between = list(limits) or [inputs.mean[column] * inputs.scale]
    if any(b <= a for a, b in itertools.pairwise(between)):
        raise ValueError(f"Limits of {by} must rise; given {', '.join(f'{limit:g}' for limit in between)}.")
    asked = [i for i, client in enumerate(federation.clients) if len(client.test["y"])]
    step = SubgroupStep(algorithm, len(federation.classes), minimum)
    message = {"server": server, "column": torch.tensor(column), "limits": torch.tensor(between).double()}
    replies = clients.everyone.only(torch.tensor(asked)).evaluate(step.count, message, key)
    rows = []
    for group, name in enumerate(_names(by, between)):
        counts = Counts.of(tree_map(lambda t, g=group: t[:, g].sum(0), replies.value))
        if counts.n:
            sent = int((replies.value["confusion"][:, group].sum((1, 2)) > 0).sum())
            rows.append(Subgroup(name, counts.n, sent, classification_metrics(counts, positive)))
    return rows


def _names(by: str, limits: Sequence[float]) -> list[str]:
    texts = [f"{limit:.4g}" for limit in limits]
    middle = [f"{by} from {a} to {b}" for a, b in itertools.pairwise(texts)]
    return [f"{by} below {texts[0]}", *middle, f"{by} from {texts[-1]}", f"{by} missing"]
