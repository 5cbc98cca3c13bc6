"""FedDRM against logistic regression, a gradient written out, FedSPM with one component, and its limit, FedPer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mixtures import inputs_of, opened, rounds_from, tables
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from stepwise import Listening, rounds_of
from torch import nn

from archipel import (
    SGD,
    CrossEntropy,
    FedDRM,
    Federation,
    FedPer,
    FedSPM,
    Network,
    Whole,
    classification,
    fit,
    regression,
)
from archipel.core.trees import flatten
from archipel.engines.setting import Setting

STEP = SGD(lr=0.3, steps=1, batch=None)


def linear_drm(federation, local=STEP, **options):
    """The model with g(x) = x normalised."""
    return FedDRM(classification(nn.Identity(), federation), local, **options)


def unequal(densities="equal"):
    """900 and 100 examples: nine copies of the same hundred, or two normals a unit apart."""
    rng = np.random.default_rng(0)
    few = rng.normal(size=(100, 1)).astype(np.float32)
    many = np.tile(few, (9, 1)) if densities == "equal" else rng.normal(size=(900, 1)).astype(np.float32) - 1
    return Federation.from_arrays([(many, np.arange(900) % 2), (few, np.arange(100) % 2)], test=0.0)


def converged(federation):
    """Gradient descent on the classifier alone, one long run with kept momentum: the problem is convex."""
    drm = linear_drm(federation, SGD(lr=3.0, steps=1, batch=None, momentum=0.8, keep_momentum=True), weight=1.0)
    server, _ = rounds_from(drm, *opened(drm, federation), rounds=120)
    return drm, server


def test_with_given_parameters_the_prior_is_put_on_exactly_once():
    federation = unequal()
    drm, flat = linear_drm(federation), linear_drm(federation, prior="uniform")
    x = federation.clients[1].train["x"][:5]
    _, server = opened(drm, federation)
    # γ and ξ are the same for both clients: P(i|x) is ρ.
    bias = 0.4 + torch.tensor([0.9, 0.1]).log()
    server["model"]["clients"] = {"weight": torch.full((2, 1), 0.7), "bias": bias}
    torch.testing.assert_close(drm.route(server, x).exp(), torch.tensor([[0.9, 0.1]]).expand(5, 2))
    torch.testing.assert_close(flat.route(server, x).exp(), torch.full((5, 2), 0.5))
    ratios = drm.log_ratios(server, x)
    torch.testing.assert_close(ratios[:, 0], ratios[:, 1])


def test_trained_on_equal_densities_it_routes_by_the_prior_alone():
    federation = unequal()
    drm, server = converged(federation)
    x = federation.clients[1].train["x"]
    # The optimum is exact, P(i|x) = ρ everywhere; float32 descent ends some 1e-5 from it.
    posterior, density = drm.route(server, x).exp(), replace(drm, prior="uniform").route(server, x).exp()
    torch.testing.assert_close(posterior, torch.tensor([[0.9, 0.1]]).expand(100, 2), rtol=0, atol=1e-4)
    torch.testing.assert_close(density, torch.full((100, 2), 0.5), rtol=0, atol=1e-3)


def test_trained_to_the_end_it_is_logistic_regression_between_clients():
    federation = unequal("normals")
    drm, server = converged(federation)
    x = np.concatenate([inputs_of(federation, i)[0] for i in range(2)])
    witness = LogisticRegression(C=np.inf, tol=1e-10).fit(x, np.repeat([0, 1], [900, 100]))
    raw = torch.cat([client.train["x"] for client in federation.clients])
    posterior = drm.route(server, raw).exp().numpy()
    # The witness solves the same convex problem on the pooled examples; float32 gradients end some 1e-4 from it.
    np.testing.assert_allclose(posterior, witness.predict_proba(x), atol=1e-3)
    density = replace(drm, prior="uniform").route(server, raw).exp().numpy()
    odds = witness.predict_proba(x) / np.array([0.9, 0.1])
    np.testing.assert_allclose(density, odds / odds.sum(1, keepdims=True), atol=2e-3)
    # N(−1, 1) and N(0, 1) are equally dense at −½: the prior is off. Four standard errors of that root are .3.
    border = raw[(torch.tensor(density[:, 0]) - 0.5).abs().argmin()]
    assert abs(float(border) + 0.5) < 0.3


@pytest.mark.parametrize("asked", [[0, 1, 2], [0, 2]])
def test_one_full_batch_round_is_one_step_on_the_pooled_objective(asked):
    federation = tables()
    drm = linear_drm(federation, weight=0.25)
    handle, server = opened(drm, federation)
    before = {name: t.double().numpy() for name, t in server["model"]["clients"].items()}
    step, shares = {"weight": 0.0, "bias": 0.0}, federation.sizes[asked].double().numpy()
    heads = {}
    for i, share in zip(asked, shares / shares.sum(), strict=True):
        z, y = inputs_of(federation, i)
        residual = softmax(z @ before["weight"].T + before["bias"], axis=1) - np.eye(3)[i]
        step["weight"] += 0.25 * share * residual.T @ z / len(z)
        step["bias"] += 0.25 * share * residual.mean(0)
        head = {name: t.double().numpy() for name, t in server["head"]["head"].items()}
        miss = softmax(z @ head["weight"].T + head["bias"], axis=1) - np.eye(2)[y]
        heads[i] = head["weight"] - 0.3 * 0.75 * miss.T @ z / len(z)
    after, clients = rounds_from(drm, handle.only(torch.tensor(asked)), server)
    for name, value in before.items():
        np.testing.assert_allclose(after["model"]["clients"][name], value - 0.3 * step[name], rtol=1e-5, atol=1e-6)
    for i, head in heads.items():
        np.testing.assert_allclose(clients[i]["head"]["head"]["weight"], head, rtol=1e-5, atol=1e-6)  # float32


def test_with_equal_parameters_fedspm_of_one_component_says_the_same():
    federation = tables()
    encoder = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    task, router = classification(encoder, federation), Network(encoder, federation.inputs)
    drm, spm = FedDRM(task, STEP), FedSPM(task, router, 1, STEP, STEP)
    handle, server = opened(drm, federation)
    server, clients = rounds_from(drm, handle, server, 3)
    other_handle, other = opened(spm, federation)
    model = server["model"]
    other["predictive"] = {"encoder": model["encoder"]}
    # b = γ + log τ: what FedSPM's classifier adds, the plain one has in its bias.
    gamma = model["clients"]["bias"][:, None] - other["tau"].log()
    other["ratio"] = {"encoder": model["encoder"], "gamma": gamma, "xi": model["clients"]["weight"][:, None]}
    x = torch.cat([client.test["x"] for client in federation.clients])
    # The same float32 sums in another order
    torch.testing.assert_close(spm.route(other, x), drm.route(server, x), rtol=1e-5, atol=1e-5)
    for i, client in enumerate(clients):
        state = other_handle.carrier.states[i]
        heads = {name: t[None] for name, t in client["head"]["head"].items()}
        state = state | {"predictive": {"heads": heads}}
        torch.testing.assert_close(spm.predict(other, state, x), drm.predict(server, client, x), rtol=1e-5, atol=1e-5)
    assert drm.route(server, x).exp().std(0).max() > 0.05  # it says something


def test_without_the_classifiers_part_it_is_fedper(uneven):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), uneven)
    local = SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True)
    drm = fit(FedDRM(task, local, weight=0.0), uneven, rounds=3, setting=Setting(engine="loop"))
    per = fit(FedPer(task, local), uneven, rounds=3, setting=Setting(engine="loop"))
    for one, other in [(drm.server["model"], per.server["model"])] + [
        (d["head"], p["head"]) for d, p in zip(drm.clients, per.clients, strict=True)
    ]:
        assert all(torch.equal(flatten(one)[name], value) for name, value in flatten(other).items())


def test_a_head_never_leaves_its_client(uneven):
    algorithm = FedDRM(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=4))
    listening = Listening(algorithm, uneven)
    states = [clients for *_, clients, _ in rounds_of(algorithm, uneven, 3, carrier=listening)][-1]
    heard = [flatten(reply) for reply in listening.heard if reply]
    assert len(heard) == 12
    for reply in heard:
        assert not [name for name in reply if "head" in name]
        for client in states:
            assert not any(
                torch.equal(value[0], head) for head in flatten(client["head"]).values() for value in reply.values()
            )
    heads = [client["head"]["head"]["weight"] for client in states]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine="loop"))
    # four clients, float32: the encoder, the classifier of four clients on four features, the loss
    assert run.history[0]["uplink"] == 4 * 4 * ((4 * 3 + 4) + (4 * 4 + 4) + 1)


def test_it_learns_what_an_average_cannot():
    """Two clients with opposite labels: one model for both is right half of the time, a routed one always."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    federation = Federation.from_arrays([(x + np.float32([0, 8]), y), (x - np.float32([0, 8]), 1 - y)], test=0.3)
    run = fit(linear_drm(federation, SGD(lr=0.5, steps=10, batch=32)), federation, rounds=20)
    assert run.metrics["routing_accuracy"] == 1.0
    assert run.metrics["system_accuracy"] > 0.9  # a linear rule, learnt up to the few examples near its border


def test_a_regression_has_heads_of_squared_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1)).astype(np.float32)
    federation = Federation.from_arrays([(x - 3, 3 * x[:, 0]), (x + 3, -3 * x[:, 0])], test=0.25)
    local = SGD(lr=0.3, steps=20, batch=None, momentum=0.9)
    run = fit(FedDRM(regression(nn.Identity(), federation), local), federation, rounds=10)
    assert run.metrics["routing_accuracy"] == 1.0  # six standard deviations apart
    assert run.metrics["system_rmse"] < 0.05  # both rules are linear, and without noise


def test_recomputed_statistics_are_the_pooled_ones(uneven):
    body = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    drm = FedDRM(classification(body, uneven), SGD(lr=0.1, epochs=2, batch=None), batch_norm="recompute")
    mean = fit(drm, uneven, rounds=2, setting=Setting(engine="loop")).server["model"]["buffers"]["0"]["running_mean"]
    torch.testing.assert_close(mean, torch.zeros(3), rtol=0, atol=1e-5)  # inputs are normalised; float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": 1.5}, r"weight must lie in \[0, 1\]; given 1\.5"),
        ({"weight": "0.1"}, "weight must be a number; given '0.1'"),
        ({"prior": "n"}, "prior must be 'sizes' or 'uniform'; given 'n'"),
        ({"batch_norm": "local"}, "batch_norm must be 'share' or 'recompute'; given 'local'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        linear_drm(tables(), **options)


def test_a_task_of_another_kind_is_refused(uneven):
    with pytest.raises(TypeError, match=r"task must be an encoder and a head, made by classification.*; given a Whole"):
        FedDRM(Whole(Network(nn.Linear(3, 4), uneven.inputs), CrossEntropy()))


def test_what_lies_behind_a_priors_mask_is_not_used(uneven):
    run = fit(FedDRM(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, steps=1)), uneven, rounds=1)
    x = uneven.clients[0].train["x"][:2]
    for masked in (np.ma.masked_equal([1.0, 1e9, 1.0, 1.0], 1e9), np.ma.masked_equal([1, -9, 1, 1], -9)):
        for ask in (run.route, run.predict):
            with pytest.raises(ValueError, match="a share of 0 or above for each of the 4 clients"):
                ask(x, prior=masked)
    whole = run.route(x, prior=np.ma.array([2.0, 1.0, 1.0, 4.0], mask=False))
    assert torch.equal(whole.probabilities, run.route(x, prior=[2.0, 1.0, 1.0, 4.0]).probabilities)
