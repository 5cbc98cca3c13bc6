"""BatchNorm's statistics in every algorithm with a shared model: each policy does what it says."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from archipel import APFL, L2SGD, SGD, Ditto, FedAvg, FedDyn, FedProx, PFedMe, classification, fit
from archipel.core.examples import Examples
from archipel.core.trees import flatten, tree_map
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import POLICIES, recompute

LOCAL = SGD(lr=0.1, steps=2, batch=6)
MAKERS = {
    "APFL": lambda task, policy: APFL(task, LOCAL, batch_norm=policy),
    "Ditto": lambda task, policy: Ditto(FedAvg(task, LOCAL, batch_norm=policy), LOCAL),
    "FedDyn": lambda task, policy: FedDyn(task, LOCAL, batch_norm=policy),
    "FedProx": lambda task, policy: FedProx(task, LOCAL, batch_norm=policy),
    "L2SGD": lambda task, policy: L2SGD(task, SGD(lr=0.1, steps=1, batch=6), p=0.5, batch_norm=policy),
    "PFedMe": lambda task, policy: PFedMe(task, LOCAL, 1.0, 0.1, local_rounds=2, batch_norm=policy),
}
UNIFORM = ("APFL", "FedDyn", "L2SGD", "PFedMe")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MAKERS)
def test_the_policy_decides_over_the_shared_statistics(uneven, name, policy):
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    task = classification(encoder, uneven)
    run = fit(MAKERS[name](task, policy), uneven, rounds=2, setting=Setting(engine=Loop))
    server = run.server["inner"] if name == "Ditto" else run.server
    found, fresh = flatten(server["model"]["buffers"]), flatten(task.init(torch.tensor(0))["buffers"])
    assert list(found) == list(fresh)
    if policy == "local":
        assert all(torch.equal(found[entry], fresh[entry]) for entry in found)
    else:
        assert any(not torch.equal(found[entry], fresh[entry]) for entry in found)
    if policy == "recompute":
        pieces = [Examples.of(client.train) for client in uneven.clients]
        with torch.no_grad():
            own = [recompute(task.loss, task, server["model"], piece) for piece in pieces]
        rho = torch.ones(4) if name in UNIFORM else uneven.sizes.float()
        mean = tree_map(lambda *t: sum(w * v for w, v in zip(rho / rho.sum(), t, strict=True)), *own)
        torch.testing.assert_close(found["1/running_mean"], flatten(mean)["1/running_mean"])
        torch.testing.assert_close(found["1/running_var"], flatten(mean)["1/running_var"])
    x = uneven.clients[0].test["x"]
    for client in run.clients:
        assert bool(run.algorithm.predict(run.server, client, x).isfinite().all())


@pytest.mark.parametrize("name", ["APFL", "Ditto", "L2SGD", "PFedMe"])
def test_personal_models_keep_statistics_of_their_own(uneven, name):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), uneven)
    run = fit(MAKERS[name](task, "share"), uneven, rounds=2, setting=Setting(engine=Loop))
    entry = {"APFL": "omega", "L2SGD": "model"}.get(name, "personal")
    means = [flatten(client[entry]["buffers"])["1/running_mean"] for client in run.clients]
    # Clients' inputs lie a unit apart.
    assert all((one - other).abs().max() > 1e-2 for one, other in pairwise(means))
