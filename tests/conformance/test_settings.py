"""What follows for every row of ``table.py`` from its class: refusals of wrong settings, and BatchNorm's policies."""

import math
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import torch
from table import ROWS
from torch import nn

from archipel import IFCA, SGD, Adapts, Federation, Network, Supervised, classification, fit
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import Interval, hints_of
from archipel.core.examples import Examples
from archipel.core.trees import flatten, tree_map
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import recompute
from archipel.learning.tasks import Task
from random_tables import random_tables

UNEVEN = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
BY_CLASS = {type(row.make(UNEVEN)): row for row in ROWS.values()}


def wrong_values(hint):
    """Values that an annotation rules out, and what the error says of them."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [None]
    if hint in (SGD, Network, Supervised, Task):
        yield 0.1, "must be a"
    elif hint is bool:
        yield "yes", "must be True or False"
    elif get_origin(hint) is Literal:
        yield "neither", "must be "
    elif get_origin(hint) is Annotated:
        kind, interval = get_args(hint)[:2]
        yield "1", "must be a "
        if isinstance(interval, Interval):
            yield from ((value, "must ") for value in (interval.low - 1, math.nan, math.inf))
            if interval.ends[0] == "(":
                yield kind(interval.low), "must "
            if interval.high < math.inf and interval.ends[1] == ")":
                yield kind(interval.high), "must "


SETTINGS = [
    pytest.param(kind, field.name, value, said, id=f"{kind.__name__} {field.name} {value}")
    for kind in BY_CLASS
    for field in fields(kind)
    for value, said in wrong_values(hints_of(kind)[field.name])
]


@pytest.mark.parametrize(("kind", "name", "value", "said"), SETTINGS)
def test_a_setting_that_its_annotation_rules_out_is_refused(kind, name, value, said):
    algorithm = BY_CLASS[kind].make(UNEVEN)
    with pytest.raises((TypeError, ValueError)) as caught:
        replace(algorithm, **{name: value})
    assert f"{kind.__name__}'s {name} {said}" in str(caught.value)
    assert "given" in str(caught.value)


SHARING = {kind: row for kind, row in BY_CLASS.items() if issubclass(kind, SharedModel)}
POLICIES = [
    pytest.param(kind, policy, id=f"{kind.__name__} {policy}")
    for kind in SHARING
    for policy in get_args(hints_of(kind)["batch_norm"])
]


def with_batch_norm(kind, policy):
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    algorithm = replace(SHARING[kind].make(UNEVEN), task=classification(encoder, UNEVEN), batch_norm=policy)
    return algorithm, fit(algorithm, UNEVEN, rounds=2, setting=Setting(engine=Loop))


def statistics(tree):
    """The running means and variances of a state."""
    return {name: value for name, value in flatten(tree).items() if "buffers" in name and "running" in name}


@pytest.mark.parametrize(("kind", "policy"), POLICIES)
def test_the_policy_decides_over_the_shared_statistics(kind, policy):
    algorithm, run = with_batch_norm(kind, policy)
    shared = {name: value for name, value in run.server.items() if name in ("model", "models")}
    found = statistics(shared)
    assert found
    drawn = all(bool((value == (0.0 if "mean" in name else 1.0)).all()) for name, value in found.items())
    assert drawn == (policy == "local")
    x = UNEVEN.clients[0].test["x"]
    for client in run.clients:
        assert bool(algorithm.predict(run.server, client, x).isfinite().all())
    if policy == "local" and "buffers" in run.clients[0]:
        means = [statistics(client)[name] for client in run.clients for name in list(statistics(client))[:1]]
        assert not torch.allclose(means[0], means[1], atol=1e-3)  # clients' inputs lie a unit apart


RECOMPUTED = [
    kind
    for kind in SHARING
    if "recompute" in get_args(hints_of(kind)["batch_norm"])
    and kind.statistics is SharedModel.statistics
    and kind.own_parts is SharedModel.own_parts
    and kind is not IFCA  # a model for each cluster: a test of its own
]


@pytest.mark.parametrize("kind", RECOMPUTED, ids=lambda kind: kind.__name__)
def test_recomputed_statistics_are_the_weighted_mean_of_the_clients_own(kind):
    algorithm, run = with_batch_norm(kind, "recompute")
    model, found = run.server["model"], statistics(run.server["model"])
    with torch.no_grad():
        task = algorithm.task
        own = [recompute(task.loss, task, model, Examples.of(client.train)) for client in UNEVEN.clients]
    rho = torch.ones(4) if algorithm.weights == "uniform" else UNEVEN.sizes.float()
    mean = tree_map(lambda *t: sum(w * v for w, v in zip(rho / rho.sum(), t, strict=True)), *own)
    for name, value in statistics({"buffers": mean}).items():
        torch.testing.assert_close(found[name], value)


def test_methods_that_adapt_keep_a_place_for_it():
    for row in ROWS.values():
        algorithm = row.make(UNEVEN)
        if isinstance(algorithm, Adapts) and row.predicts:
            run = fit(algorithm, UNEVEN, groups=row.groups, rounds=1, setting=Setting(engine=Loop))
            if algorithm.__class__.__name__ != "Compressing":
                assert "adapted" in run.clients[0]
