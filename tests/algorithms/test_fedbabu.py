"""FedBABU: bodies trained under one head that never moves, and a head tuned in the end."""

from itertools import combinations

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES
from stepwise import PAIRS, Listening, arrays, federation_of, rounds_of, unreliable
from test_fedper import BODY, Halves
from torch import nn

from archipel import SGD, FedBABU, classification, fit
from archipel.core import keys
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.carrier import client_data
from archipel.engines.setting import Setting

V0 = 0.7  # the head, where nobody's best one is


class Headed(Halves):
    def init(self, key):
        return super().init(key) | {"head": torch.tensor([V0], dtype=torch.float64)}


def adapted(run, federation, k):
    """Client k's model for an evaluation."""
    data = client_data(federation, k, training=False)
    return run.algorithm.adapt(run.server, run.clients[k], data, keys.key(3))["tuned"]


def numbers(model):
    return np.concatenate([model["body"], model["head"]])


@pytest.mark.parametrize("answers", [None, unreliable])
def test_bodies_are_trained_under_the_head_that_all_share(answers):
    A, a = arrays()
    w = np.zeros(BODY)
    algorithm = FedBABU(Headed(), SGD(lr=0.1, steps=3, batch=None))
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 6, PAIRS, answers):
        end = np.tile(w, (4, 1))
        for _ in range(3):
            gap = np.column_stack([end, np.full(4, V0)]) - a
            end = end - 0.1 * np.einsum("kij,kj->ki", A, gap)[:, :BODY]
        w = np.average(end[asked], axis=0, weights=np.array(SIZES)[asked])
        assert server["model"]["body"].numpy() == pytest.approx(w, abs=1e-13)
        assert [client["head"]["head"].item() for client in clients] == [V0] * 4


def test_one_step_a_round_ends_at_the_best_body_for_that_head():
    A, a = arrays()
    rho = np.array(SIZES) / sum(SIZES)
    run = fit(
        FedBABU(Headed(), SGD(lr=0.5, steps=1, batch=None)),
        federation_of(A, a, SIZES),
        rounds=30,
        setting=Setting(engine=Loop),
    )
    # ∇_w Σ ρ_k f_k(w, v⁰) = 0
    total = np.einsum("k,kij->ij", rho, A[:, :BODY, :BODY])
    right = np.einsum("k,kij,kj->i", rho, A[:, :BODY], a) - V0 * np.einsum("k,ki->i", rho, A[:, :BODY, BODY])
    left = 10 * abs(1 - 0.5 * np.linalg.eigvalsh(total)).max() ** 30  # of gaps of a few
    assert left < 1e-6
    found = run.server["model"]["body"].numpy()
    assert found == pytest.approx(np.linalg.solve(total, right), abs=left + 1e-12)


@pytest.mark.parametrize("tune", ["head", "all"])
def test_tuning_is_gradient_descent_on_what_is_tuned(tune):
    A, a = arrays()
    federation = federation_of(A, a, SIZES)
    algorithm = FedBABU(Headed(), SGD(lr=0.1, steps=2, batch=None), SGD(lr=0.2, steps=5, batch=None), tune)
    run = fit(algorithm, federation, rounds=3, setting=Setting(engine=Loop))
    start = np.array([*run.server["model"]["body"].tolist(), V0])
    moving = np.array([0.0, 0.0, 1.0]) if tune == "head" else np.ones(3)
    for k in range(4):
        x = start
        for _ in range(5):
            x = x - 0.2 * moving * (A[k] @ (x - a[k]))
        model = adapted(run, federation, k)
        assert numbers(model) == pytest.approx(x, abs=1e-13)
        assert torch.equal(model["body"], run.server["model"]["body"]) == (tune == "head")
        client = run.clients[k] | {"tuned": model}
        assert run.algorithm.predict(run.server, client, torch.zeros(1, 3, 3)).numpy()[0] == pytest.approx(x, abs=1e-13)


@pytest.mark.parametrize("tune", ["head", "all"])
def test_a_rate_of_zero_leaves_the_global_model(uneven, tune):
    task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)
    algorithm = FedBABU(task, SGD(lr=0.2, epochs=1, batch=4), SGD(lr=0.0, epochs=1, batch=4), tune)
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine=Loop))
    x = torch.cat([client.test["x"] for client in uneven.clients])
    expected = algorithm.predict_global(run.server, x)
    for k, client in enumerate(run.clients):
        assert torch.equal(algorithm.predict(run.server, client | {"tuned": adapted(run, uneven, k)}, x), expected)
        assert torch.equal(algorithm.predict(run.server, client, x), expected)
    assert run.metrics["average_accuracy"] == run.metrics["average_before_accuracy"]
    assert run.metrics["system_accuracy"] == run.metrics["global_accuracy"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_head_doesnt_move_in_training_and_never_travels(uneven, engine):
    task = classification(nn.Linear(3, 4), uneven)
    local = SGD(lr=0.3, epochs=2, batch=4, momentum=0.9, keep_momentum=True, weight_decay=0.1)
    algorithm = FedBABU(task, local, SGD(lr=0.5, epochs=3, batch=4))
    run = fit(algorithm, uneven, rounds=3, setting=Setting(engine=ENGINES[engine]), evaluate_every=1)
    drawn = flatten(task.init(keys.fold(keys.key(0), "server"))["head"])
    for held in (run.server["head"]["head"], *(client["head"]["head"] for client in run.clients)):
        assert all(torch.equal(value, drawn[name]) for name, value in held.items())
    assert not torch.equal(run.clients[0]["velocity"]["encoder"]["weight"], torch.zeros(4, 3))
    assert list(run.clients[0]["velocity"]) == ["encoder"]
    # what is tuned for an evaluation does move, and differs from client to client
    tuned = [adapted(run, uneven, k)["head"]["weight"] for k in range(4)]
    pairs = combinations([*tuned, drawn["weight"]], 2)
    assert not any(torch.equal(one, other) for one, other in pairs)
    assert run.metrics["average_accuracy"] != run.metrics["average_before_accuracy"]


def test_only_the_body_is_uploaded_and_sent(uneven):
    algorithm = FedBABU(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=4))
    listening = Listening(algorithm, uneven)
    list(rounds_of(algorithm, uneven, 2, carrier=listening))
    heard = [flatten(reply) for reply in listening.heard if reply]
    assert len(heard) == 8
    assert {name for reply in heard for name in reply} == {"model/encoder/weight", "model/encoder/bias", "loss"}
    names = {name for message in listening.sent[1:] for name in flatten(message)}
    assert names == {"model/encoder/weight", "model/encoder/bias", "lr"}
    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine=Loop))
    assert run.history[0]["uplink"] == 4 * 4 * (4 * 3 + 4 + 1)  # four clients, float32: the encoder and the loss
    assert run.history[0]["downlink"] == 4 * (4 * (4 * 3 + 4) + 8)  # and a learning rate in float64


@pytest.mark.parametrize("policy", ["share", "local", "recompute"])
def test_batch_norms_statistics_go_with_the_body(uneven, policy):
    body = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    block = SGD(lr=0.1, steps=1, batch=None)
    algorithm = FedBABU(classification(body, uneven), block, block, batch_norm=policy)
    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine="loop"))
    means = torch.stack([uneven.inputs.normalise(client.train["x"]).mean(0) for client in uneven.clients])
    rho = uneven.sizes / uneven.sizes.sum()
    # torch's rule from 0 with its momentum of 0.1, one pass over all data; the pooled mean is 0 by normalisation
    shared = {"share": 0.1 * rho @ means, "local": torch.zeros(3), "recompute": rho @ means}[policy]
    found = run.server["model"]["buffers"]["0"]["running_mean"]
    torch.testing.assert_close(found, shared, rtol=0, atol=1e-6)  # float32
    start = 0.1 * means[2] if policy == "local" else shared
    tuned = adapted(run, uneven, 2)["buffers"]["0"]["running_mean"]
    torch.testing.assert_close(tuned, 0.9 * start + 0.1 * means[2], rtol=0, atol=1e-6)


def test_what_cant_be_is_refused(uneven):
    task, step = classification(nn.Linear(3, 4), uneven), SGD(steps=1)
    for frozen in (("heads",), (), ("encoder", "head")):
        with pytest.raises(ValueError, match=r"FedBABU must keep some .* encoder, head, .*and leave some"):
            fit(FedBABU(task, step, frozen=frozen), uneven, rounds=1)
    with pytest.raises(ValueError, match=r"FedBABU's tune must be 'head' or 'all'; given 'body'"):
        FedBABU(task, step, tune="body")
    with pytest.raises(TypeError, match=r"FedBABU's frozen must be a list of names.*given a str"):
        FedBABU(task, step, frozen="head")
    with pytest.raises(TypeError, match=r"FedBABU's tuning must be a solver.*given a str"):
        FedBABU(task, step, "head")
