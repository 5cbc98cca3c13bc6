"""Tilts refitted to the end: a critical point of FedSPM's own loss, and nothing else touched."""

import dataclasses

import pytest
import torch
from torch import nn

from archipel import SGD, FedAvg, Federation, FedSPM, Network, Run, classification, fit, refitted
from archipel.core.trees import flatten
from archipel.data import GaussianClients


@pytest.fixture(scope="module")
def trained():
    means = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]).reshape(3, 1, 1, 2)
    truth = GaussianClients(torch.tensor([0.5, 0.3, 0.2]), torch.ones(3, 1), torch.ones(3, 1, 1), means, std=1.0)
    drawn = truth.sample([600, 360, 240], test=0.2, seed=0)
    parts = [(c.train["x"], (c.train["x"][:, 0] > c.train["x"][:, 1]).long()) for c in drawn.clients]
    federation = Federation.from_arrays(parts, test=0.2)
    once, plain = SGD(lr=0.01, steps=1), nn.Identity()
    spm = FedSPM(classification(plain, federation), Network(plain, federation.inputs), 2, once, once)
    return fit(spm, federation, rounds=2), federation, truth


def gradient(run, federation):
    """Of the loss that FedSPM trains on, summed over all clients' examples, in γ and ξ."""
    spm = run.algorithm
    ratio = {name: run.server["ratio"][name].double().requires_grad_() for name in ("gamma", "xi")}
    total = torch.zeros((), dtype=torch.float64)
    for i, (client, state) in enumerate(zip(federation.clients, run.clients, strict=True)):
        w = state["responsibilities"].values[: len(client.train["y"])].double()
        batch = {"x": client.train["x"].double(), "w": w / w.sum(1, keepdim=True)}
        total = (
            total + spm.ratio_loss({"encoder": {}} | ratio, batch, run.server["tau"].double(), torch.tensor(i))[0].sum()
        )
    return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(ratio.values()))])


def test_refitted_tilts_are_a_critical_point_of_the_training_loss(trained):
    run, federation, _ = trained
    n = int(federation.sizes.sum())
    assert float(gradient(run, federation).abs().max()) > 1e-2 * n
    # tilts are stored in float32: a gradient of n terms, each 1e-7 off
    assert float(gradient(refitted(run, federation, ridge=0.0), federation).abs().max()) < 1e-5 * n


def test_refitted_routing_is_near_the_bayes_rule(trained):
    run, federation, truth = trained
    x = torch.cat([client.test["x"] for client in federation.clients])
    expected = truth.route(x).exp()

    def gap(one):
        return float((one.route(x).probabilities - expected).abs().mean())

    # ten parameters learnt from 770 examples: posteriors are off by about √(10/770)/4
    assert gap(refitted(run, federation)) < 0.05 < gap(run)


def test_only_tilts_and_totals_change(trained):
    run, federation, _ = trained
    better = refitted(run, federation)
    before, after = flatten(run.server), flatten(better.server)
    assert {name for name in before if not torch.equal(before[name], after[name])} <= {"ratio/gamma", "ratio/xi", "tau"}
    torch.testing.assert_close(before["tau"], after["tau"], rtol=1e-5, atol=0)
    assert better.clients is run.clients
    assert isinstance(better, Run)
    assert after["ratio/xi"].dtype == before["ratio/xi"].dtype
    assert run.server["ratio"]["xi"] is not better.server["ratio"]["xi"]


def test_components_without_points_keep_their_tilts(trained):
    run, federation, _ = trained
    states = [dict(state) for state in run.clients]
    values = states[1]["responsibilities"].values.clone()
    values[:, 0], values[:, 1] = 0.0, 1.0
    states[1]["responsibilities"] = type(states[1]["responsibilities"])(values)
    better = refitted(dataclasses.replace(run, clients=states), federation)
    assert float(better.server["tau"][1, 0]) == 0
    assert torch.equal(better.server["ratio"]["xi"][1, 0], run.server["ratio"]["xi"][1, 0])
    assert not torch.equal(better.server["ratio"]["xi"][1, 1], run.server["ratio"]["xi"][1, 1])


def test_what_cannot_be_refitted_is_said(trained, uneven):
    run, _, _ = trained
    with pytest.raises(ValueError, match="was trained on"):
        refitted(run, uneven)
    averaged = fit(FedAvg(classification(nn.Linear(3, 4), uneven), SGD(steps=1)), uneven, rounds=1)
    with pytest.raises(TypeError, match="FedSPM"):
        refitted(averaged, uneven)
    own = dataclasses.replace(run, algorithm=dataclasses.replace(run.algorithm, encoders="own"))
    with pytest.raises(ValueError, match="shared"):
        refitted(own, trained[1])


def test_metrics_are_those_of_the_refitted_model(trained):
    run, federation, _ = trained
    assert run.metrics
    better = refitted(run, federation)
    assert better.metrics == better.evaluate(federation).metrics
    assert better.metrics["routing_accuracy"] != run.metrics["routing_accuracy"]
    assert better.table == better.evaluate(federation).clients
    assert better.history[:-1] == run.history[:-1]
    assert run.evaluate(federation).metrics == run.metrics  # the given run is as it was
    assert refitted(dataclasses.replace(run, history=[]), federation).metrics == {}


def test_several_local_steps_miss_the_posterior_and_the_refit_finds_it():
    # Inputs take four values, so the posterior of a client given the value is a ratio of counts.
    counts = torch.tensor([[40, 20, 10, 10], [10, 40, 20, 30], [5, 10, 60, 25]])
    values = torch.eye(4)
    clients = [(values.repeat_interleave(row, 0), torch.arange(int(row.sum())) % 2) for row in counts]
    federation = Federation.from_arrays(clients, test=0.0)
    posterior = (counts / counts.sum(0)).T

    def error(run):
        return float((torch.as_tensor(run.route(values).probabilities) - posterior).abs().max())

    plain, runs = nn.Identity(), {}
    for steps in (1, 10):
        solver = SGD(lr=0.5, steps=steps, batch=None)
        task, router = classification(plain, federation), Network(plain, federation.inputs)
        runs[steps] = fit(FedSPM(task, router, 1, solver, solver), federation, rounds=100)
    # one step a round is gradient descent on the convex objective: 100 of them leave 1e-3 at most
    assert error(runs[1]) < 1e-3
    assert error(runs[10]) > 0.05
    assert error(refitted(runs[10], federation, ridge=1e-6)) < 1e-5
