"""FedEM with experts against a round written out in numpy, planted mixtures and its limit, FedAvg."""

import dataclasses

import numpy as np
import pytest
import torch
from mixtures import inputs_of, log_probabilities, opened, random_heads, rounds_from, tables
from quadratics import ENGINES
from stepwise import Listening, rounds_of
from torch import nn

from archipel import (
    SGD,
    CrossEntropy,
    FedAvg,
    FedEMExperts,
    Federation,
    Network,
    Whole,
    classification,
    fit,
    regression,
)
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import POLICIES
from archipel.learning.experts import posterior as responsibilities

STEP = SGD(lr=0.5, steps=1, batch=None)
PI = torch.tensor([0.7, 0.3])


def softmax_experts(federation, **options):
    """Two softmax regressions on the normalised inputs: everything can be written out."""
    options = {"local": STEP, "components": 2} | options
    return FedEMExperts(classification(nn.Identity(), federation), **options)


def posterior(pi, log_likelihoods):
    """Bayes' rule, one example at a time."""
    joint = np.array([[p * np.exp(value) for p, value in zip(pi, row, strict=True)] for row in log_likelihoods])
    return joint / joint.sum(1, keepdims=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("encoders", ["shared", "own"])
def test_a_round_is_the_papers_whoever_takes_part(engine, encoders):
    federation = tables()
    algorithm = softmax_experts(federation, encoders=encoders)
    heads = random_heads(2, 2, 2)
    model = {"encoder": {}, "heads": heads} if encoders == "shared" else {"encoder": {"0": {}, "1": {}}, "heads": heads}
    handle, server = opened(algorithm, federation, ENGINES[engine], model=model)
    handle = handle.only(torch.tensor([0, 1]))
    weight, bias = np.zeros((2, 2, 2)), np.zeros((2, 2))
    pis, shares = [], federation.sizes[:2].double().numpy() / int(federation.sizes[:2].sum())
    for i, share in enumerate(shares):
        z, y = inputs_of(federation, i)
        log_p = log_probabilities(heads, z)
        q = posterior([0.5, 0.5], log_p[np.arange(len(y)), :, y])
        pis.append(q.mean(0))
        # The gradient of mean_j q_jc · (−log softmax)_y: q_jc (p − onehot) on the logits.
        residual = q[:, :, None] * (np.exp(log_p) - np.eye(2)[y][:, None])
        weight += share * (heads["weight"].double().numpy() - 0.5 * np.einsum("nck,nd->ckd", residual, z) / len(y))
        bias += share * (heads["bias"].double().numpy() - 0.5 * residual.mean(0))
    server, clients = rounds_from(algorithm, handle, server)
    # float32 against float64, a few hundred operations
    np.testing.assert_allclose(server["model"]["heads"]["weight"], weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server["model"]["heads"]["bias"], bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(clients[0]["pi"], pis[0], rtol=1e-4)
    np.testing.assert_allclose(clients[1]["pi"], pis[1], rtol=1e-4)
    assert torch.equal(clients[2]["pi"], torch.full((2,), 0.5))


def responsibilities_of(algorithm, server, federation, pi, examples):
    """What the E-step finds, through the only thing that leaves it: π, of one example at a time."""
    found = []
    for j in range(len(examples["y"])):
        data = ClientData(Examples.of({name: column[j : j + 1] for name, column in examples.items()}))
        message = {"model": server["model"], "lr": torch.tensor(0.0)}
        client, _ = algorithm.train({"pi": pi}, message, data, keys.key(0))
        found.append(client["pi"])
    return torch.stack(found)


def test_opposite_examples_belong_to_opposite_experts():
    x = np.array([[1.0], [-1.0]], dtype=np.float32)
    federation = Federation.from_arrays([(x, np.array([0, 1])), (x, np.array([0, 1]))], test=0.0)
    algorithm = softmax_experts(federation, encoders="shared")
    # Expert 0 says class 1 with probability .99 whatever x is, expert 1 class 0.
    a = float(np.log(99))
    heads = {"weight": torch.zeros(2, 2, 1), "bias": torch.tensor([[0.0, a], [a, 0.0]])}
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads})
    examples = {"x": torch.tensor(x), "y": torch.tensor([1, 0])}
    q = responsibilities_of(algorithm, server, federation, torch.tensor([0.5, 0.5]), examples)
    torch.testing.assert_close(q, torch.tensor([[0.99, 0.01], [0.01, 0.99]]), rtol=0, atol=1e-6)


def test_equal_likelihoods_give_back_the_mixing_weights():
    federation = tables()
    algorithm = softmax_experts(federation, encoders="shared")
    same = {name: t[:1].expand(2, *t.shape[1:]) for name, t in random_heads(1, 2, 2).items()}
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": same})
    examples = {name: column[:5] for name, column in federation.clients[0].train.items()}
    q = responsibilities_of(algorithm, server, federation, PI, examples)
    torch.testing.assert_close(q, PI.expand(5, 2))


def test_padding_has_no_weight():
    federation = tables()
    algorithm = softmax_experts(federation, encoders="shared", local=SGD(lr=0.1, steps=3, batch=8))
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": random_heads(2, 2, 2)})
    train = federation.clients[0].train
    longer = {name: torch.cat([column, 7 * column.flip(0)[:9] % 2]) for name, column in train.items()}
    message = {"model": server["model"], "lr": torch.tensor(0.1)}
    count = torch.tensor(len(train["y"]))
    padded = ClientData(Examples(longer, count, len(train["y"])))
    one, reply = algorithm.train({"pi": PI}, message, ClientData(Examples.of(train)), keys.key(0))
    other, same = algorithm.train({"pi": PI}, message, padded, keys.key(0))
    torch.testing.assert_close(other["pi"], one["pi"])
    for name, value in flatten(reply).items():
        torch.testing.assert_close(flatten(same)[name], value)


@pytest.mark.parametrize("encoders", ["shared", "own"])
def test_one_expert_is_fedavg(uneven, encoders):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), uneven)
    local = SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True, weight_decay=0.01, clip=1.0)
    avg, em = FedAvg(task, local), FedEMExperts(task, local, components=1, encoders=encoders)
    handle, server = opened(avg, uneven)
    theta, head = server["model"]["encoder"], server["model"]["head"]
    start = {
        "encoder": theta if encoders == "shared" else {"0": theta},
        "heads": {name: t[None] for name, t in head.items()},
    }
    server, _ = rounds_from(avg, handle, server, 3)
    handle, other = opened(em, uneven, model=start)
    other, clients = rounds_from(em, handle, other, 3)
    found, expected = other["model"], server["model"]
    found_encoder = found["encoder"] if encoders == "shared" else found["encoder"]["0"]
    # The head's product is summed in another order: float32, some forty steps.
    for name, value in flatten(expected["encoder"]).items():
        torch.testing.assert_close(flatten(found_encoder)[name], value, rtol=1e-4, atol=1e-5)
    for name, value in expected["head"].items():
        torch.testing.assert_close(found["heads"][name][0], value, rtol=1e-4, atol=1e-5)
    x = uneven.clients[2].test["x"]
    torch.testing.assert_close(em.predict(other, clients[2], x), avg.predict_global(server, x), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(client["pi"], torch.ones(1)) for client in clients)


def test_the_answer_is_the_clients_mixture():
    federation = tables()
    algorithm = softmax_experts(federation, encoders="shared")
    heads = random_heads(2, 2, 2, seed=3)
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads})
    z, _ = inputs_of(federation, 1, "test")
    expected = np.exp(log_probabilities(heads, z)).transpose(0, 2, 1) @ PI.double().numpy()
    found = algorithm.predict(server, {"pi": PI}, federation.clients[1].test["x"]).exp()
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # float32


def test_a_regression_answers_by_the_mixtures_mean():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    federation = Federation.from_arrays([(x, x[:, 0] * 3), (x, -x[:, 0] * 3)], test=0.25)
    algorithm = FedEMExperts(regression(nn.Identity(), federation), STEP, components=2, encoders="shared")
    heads = random_heads(2, 1, 2)
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads})
    z = federation.inputs.normalise(federation.clients[0].test["x"])
    values = torch.stack([z @ heads["weight"][c].T + heads["bias"][c] for c in range(2)])
    found = algorithm.predict(server, {"pi": PI}, federation.clients[0].test["x"])
    torch.testing.assert_close(found, 0.7 * values[0] + 0.3 * values[1])


def test_a_planted_mixture_is_found():
    """Two rules, opposite to each other, that clients follow in different proportions. What the data tell of a client
    is how often it follows the first, π s + (1 − π)(1 − s) with experts that are sure of their rule by s.
    """
    rng, shares, n = np.random.default_rng(0), (0.9, 0.5, 0.2), 300
    arrays, planted = [], []
    for share in shares:
        x, first = rng.choice([-1, 1], size=(n, 1)).astype(np.float32), rng.random(n) < share
        arrays.append((x, ((x[:, 0] > 0) ^ first).astype(int)))
        planted.append(first.mean())
    federation = Federation.from_arrays(arrays, test=0.0)
    algorithm = softmax_experts(federation, local=SGD(lr=1.0, steps=5, batch=None))
    server, clients = rounds_from(algorithm, *opened(algorithm, federation), rounds=40)
    for state, client, share in zip(clients, federation.clients, planted, strict=True):
        x = client.train["x"]
        follows = algorithm.predict(server, state, x).exp()[torch.arange(n), (x[:, 0] <= 0).long()]
        # At the likelihood's maximum these are the clients' own frequencies; no fewer than two experts can do that. A
        # client's frequencies at x = −1 and x = 1 differ by chance, and it has one π for both: some 1e-3.
        assert float(follows.mean()) == pytest.approx(share, abs=2e-3)


def test_mixing_weights_and_responsibilities_stay_at_home(uneven):
    algorithm = FedEMExperts(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=4))
    listening = Listening(algorithm, uneven)
    states = [clients for *_, clients, _ in rounds_of(algorithm, uneven, 3, carrier=listening)][-1]
    heard = [flatten(reply) for reply in listening.heard if reply]
    assert len(heard) == 12
    assert {name.split("/")[0] for reply in heard for name in reply} == {"model", "loss"}
    assert not any("pi" in name for message in listening.sent[1:] for name in flatten(message))
    assert len({tuple(client["pi"].tolist()) for client in states}) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_norm_policies(uneven, policy):
    """A layer on the inputs themselves, whose pooled mean is 0 by the federation's normalisation."""
    task = classification(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), uneven)
    algorithm = FedEMExperts(task, SGD(lr=0.1, epochs=2, batch=None), components=2, batch_norm=policy)
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))
    means = [run.server["model"]["buffers"][c]["0"]["running_mean"] for c in ("0", "1")]
    if policy == "recompute":
        torch.testing.assert_close(means, [torch.zeros(3), torch.zeros(3)], rtol=0, atol=1e-5)  # float32
    assert (max(mean.abs().max() for mean in means) > 0) == (policy != "local")
    assert all(("buffers" in client) == (policy == "local") for client in run.clients)
    assert 0 < run.metrics["average_accuracy"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "components must be a whole number of at least 1; given 0"),
        ({"components": 1.5}, "components must be a whole number"),
        ({"encoders": "both"}, "encoders must be 'shared' or 'own'; given 'both'"),
        ({"batch_norm": "off"}, "batch_norm must be 'share', 'local' or 'recompute'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        softmax_experts(tables(), **options)


def test_a_task_of_another_kind_is_refused(uneven):
    with pytest.raises(TypeError, match=r"task must be an encoder and a head, made by classification.*; given a Whole"):
        FedEMExperts(Whole(Network(nn.Linear(3, 4), uneven.inputs), CrossEntropy()))
    assert dataclasses.replace(softmax_experts(uneven), components=4).components == 4


def test_very_unlikely_examples_keep_the_mixing_weights():
    pi = torch.tensor([0.7, 0.2, 0.1])
    for unlikely in (-1e4, -1e8):
        # equal likelihoods give π back, to the last digits of a float32
        found = responsibilities(pi.log(), torch.full((5, 3), unlikely))
        assert (found - pi).abs().max() < 2e-7
