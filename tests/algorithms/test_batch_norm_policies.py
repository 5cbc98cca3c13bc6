"""BatchNorm's statistics beside those of a shared model; conformance/test_settings.py tries each policy."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from archipel import APFL, L2SGD, SGD, Ditto, FedAvg, PFedMe, classification, fit
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import POLICIES

LOCAL = SGD(lr=0.1, steps=2, batch=6)
MAKERS = {
    "APFL": lambda task, policy: APFL(task, LOCAL, batch_norm=policy),
    "Ditto": lambda task, policy: Ditto(FedAvg(task, LOCAL, batch_norm=policy), LOCAL),
    "L2SGD": lambda task, policy: L2SGD(task, SGD(lr=0.1, steps=1, batch=6), p=0.5, batch_norm=policy),
    "PFedMe": lambda task, policy: PFedMe(task, LOCAL, 1.0, 0.1, local_rounds=2, batch_norm=policy),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_dittos_policy_is_that_of_its_inner_method(uneven, policy):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()), uneven)
    run = fit(MAKERS["Ditto"](task, policy), uneven, rounds=2, setting=Setting(engine=Loop))
    inner = fit(FedAvg(task, LOCAL, batch_norm=policy), uneven, rounds=2, setting=Setting(engine=Loop))
    found, alone = (flatten(server["model"]["buffers"]) for server in (run.server["inner"], inner.server))
    assert all(torch.equal(found[name], alone[name]) for name in alone)


@pytest.mark.parametrize("name", ["APFL", "Ditto", "L2SGD", "PFedMe"])
def test_personal_models_keep_statistics_of_their_own(uneven, name):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), uneven)
    run = fit(MAKERS[name](task, "share"), uneven, rounds=2, setting=Setting(engine=Loop))
    entry = {"APFL": "omega", "L2SGD": "model"}.get(name, "personal")
    means = [flatten(client[entry]["buffers"])["1/running_mean"] for client in run.clients]
    # Clients' inputs lie a unit apart.
    assert all((one - other).abs().max() > 1e-2 for one, other in pairwise(means))
