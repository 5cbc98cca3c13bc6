"""Parameters with ``requires_grad=False`` stay fixed and are never sent, in every method with a network."""

import copy

import pytest
import torch
from table import ROWS
from torch import nn

from archipel import Federation, Network, fit
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from archipel.learning.contents import find_all
from random_tables import random_tables

UNEVEN = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)


def _networks(algorithm):
    return [network for network in find_all(algorithm, Network) if any(True for _ in network.module.parameters())]


WITH_NETWORK = [name for name, row in ROWS.items() if _networks(row.make(UNEVEN))]


def _freeze(algorithm):
    """Freeze the first layer's weight of every network, and return the weights."""
    frozen = []
    for network in _networks(algorithm):
        layer = next(module for module in network.module.modules() if isinstance(module, nn.Linear))
        layer.weight.requires_grad_(False)
        frozen.append(layer.weight)
    return frozen


def _shapes(run):
    """Names and shapes of all states."""
    return {(name, value.shape[-2:]) for state in (run.server, *run.clients) for name, value in flatten(state).items()}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", WITH_NETWORK)
def test_frozen_parameters_stay_and_are_not_sent(name, engine):
    row = ROWS[name]
    torch.manual_seed(0)
    whole = fit(row.make(UNEVEN), UNEVEN, groups=row.groups, rounds=2, setting=Setting(engine=engine))
    algorithm = row.make(UNEVEN)
    frozen = _freeze(algorithm)
    before = copy.deepcopy(frozen)
    run = fit(algorithm, UNEVEN, groups=row.groups, rounds=2, setting=Setting(engine=engine))
    assert all(torch.equal(now, then) for now, then in zip(frozen, before, strict=True))
    weight = frozen[0].shape
    assert not {path for path, shape in _shapes(run) if path.endswith("weight") and shape == weight}
    assert {path for path, shape in _shapes(whole) if path.endswith("weight") and shape == weight}
    if name not in ("Local", "Pooled"):  # which send no model
        assert run.history[-1]["uplink"] < whole.history[-1]["uplink"]
    if row.predicts:  # and they are used
        x = UNEVEN.clients[0].test["x"]
        answers = run.predict(x, client=0).values
        for now in frozen:
            now.add_(1.0)
        assert not torch.equal(run.predict(x, client=0).values, answers)
