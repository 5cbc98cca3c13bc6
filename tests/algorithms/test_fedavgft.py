"""FedAvgFT: FedAvg's training to the bit, and tuning that training never sees."""

import pytest
import torch
from quadratics import ENGINES, SIZES, power, times, vectors
from torch import nn

from archipel import SGD, FedAvg, FedAvgFT, FedBABU, classification, fit
from archipel.core import keys
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.carrier import client_data
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import POLICIES
from archipel.learning.quadratic import Quadratic, quadratic_federation
from archipel.runs.answers import vote
from archipel.runs.run import Run

BLOCK = SGD(lr=0.1, steps=3, batch=5, momentum=0.9, keep_momentum=True, schedule="cosine")
FULL = SGD(lr=0.3, steps=6, batch=None, momentum=0.9)


def state_of(run):
    return flatten({"server": run.server, "clients": {str(k): client for k, client in enumerate(run.clients)}})


def adapted(run, federation, k):
    """What client k has for an evaluation."""
    data = client_data(federation, k, training=False)
    return run.algorithm.adapt(run.server, run.clients[k], data, keys.key(3))


@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_fedavgs_to_the_bit(uneven, engine):
    task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)
    methods = (FedAvg(task, BLOCK), FedAvgFT(task, BLOCK, SGD(lr=0.5, epochs=2, batch=4)))
    avg, tuned = (
        fit(method, uneven, rounds=3, setting=Setting(engine=ENGINES[engine]), evaluate_every=1) for method in methods
    )
    one, other = state_of(avg), state_of(tuned)
    other = {name: value for name, value in other.items() if "/adapted/" not in name}
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [r["loss"] for r in tuned.history] == [r["loss"] for r in avg.history]
    assert [(r["uplink"], r["downlink"]) for r in tuned.history] == [(r["uplink"], r["downlink"]) for r in avg.history]
    before = [r["metrics"]["average_before_accuracy"] for r in tuned.history]
    assert before == [r["metrics"]["average_accuracy"] for r in avg.history]
    assert [r["metrics"]["average_accuracy"] for r in tuned.history] != before


def test_tuning_is_gradient_descent_from_the_shared_model():
    A, a = vectors()
    federation = quadratic_federation(A, a, SIZES)
    tuning = SGD(lr=0.15, steps=4, batch=None)
    run = fit(
        FedAvgFT(Quadratic(3), SGD(lr=0.1, steps=2, batch=None), tuning),
        federation,
        rounds=3,
        setting=Setting(engine=Loop),
    )
    A, a, theta = A.numpy(), a.numpy(), run.server["model"]["theta"].numpy()
    expected = a + times(power(torch.eye(3).numpy() - 0.15 * A, 4), theta - a)
    for k in range(4):
        found = run.algorithm.predict(run.server, adapted(run, federation, k), torch.zeros(1, 3, 3))
        assert found.numpy()[0] == pytest.approx(expected[k], abs=1e-13)
        assert run.algorithm.predict(run.server, run.clients[k], torch.zeros(1, 3, 3)).numpy()[0] == pytest.approx(
            theta
        )


def by_torch(server, federation, k):
    """Softmax regression tuned by torch's own optimiser: the log-probabilities it ends with, as a function."""
    x, y = federation.clients[k].train["x"], federation.clients[k].train["y"]
    layer = nn.Linear(3, 3)
    layer.load_state_dict(server["model"]["head"])
    optimiser = torch.optim.SGD(layer.parameters(), lr=FULL.lr, momentum=FULL.momentum)
    for _ in range(FULL.steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(layer(federation.inputs.normalise(x)), y).backward()
        optimiser.step()
    return lambda x: layer(federation.inputs.normalise(x)).detach().log_softmax(-1)


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation_shows_the_tuned_models_and_the_shared_one(uneven, engine):
    algorithm = FedAvgFT(classification(nn.Identity(), uneven), SGD(lr=0.05, epochs=1, batch=4), FULL)
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine=ENGINES[engine]))
    models = [by_torch(run.server, uneven, k) for k in range(4)]
    tests = [client.test for client in uneven.clients]
    own = torch.stack([(f(t["x"]).argmax(-1) == t["y"]).double().mean() for f, t in zip(models, tests, strict=True)])
    rho = uneven.sizes.double() / uneven.sizes.sum()
    assert run.metrics["average_accuracy"] == pytest.approx(float(rho @ own))
    shared = [algorithm.task.predict(run.server["model"], t["x"]).argmax(-1) == t["y"] for t in tests]
    before = float(rho @ torch.stack([right.double().mean() for right in shared]))
    assert run.metrics["average_before_accuracy"] == pytest.approx(before)
    x, y = (torch.cat([t[column] for t in tests]) for column in ("x", "y"))
    ballots = vote(torch.stack([f(x) for f in models]))
    assert run.metrics["system_accuracy"] == pytest.approx((ballots == y).double().mean().item())
    assert run.metrics["system_accuracy"] != pytest.approx(torch.cat(shared).double().mean().item())
    for k, f in enumerate(models):
        found = algorithm.predict(run.server, adapted(run, uneven, k), x)
        torch.testing.assert_close(found, f(x), rtol=1e-4, atol=1e-5)  # float32, six steps


def test_a_rate_of_zero_tunes_nothing(uneven):
    algorithm = FedAvgFT(classification(nn.Linear(3, 4), uneven), BLOCK, SGD(lr=0.0, epochs=1, batch=4))
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine=Loop))
    assert run.metrics["average_accuracy"] == run.metrics["average_before_accuracy"]
    tuned, shared = flatten(adapted(run, uneven, 0)["tuned"]), flatten(run.server["model"])
    assert all(torch.equal(tuned[name], shared[name]) for name in shared)


def test_by_default_it_is_one_epoch(uneven):
    # 25 examples at most: one batch of 128, one step a pass, whose rate is 0.01.
    run = fit(FedAvgFT(classification(nn.Identity(), uneven), BLOCK), uneven, rounds=1, setting=Setting(engine=Loop))
    x, y = uneven.clients[2].train["x"], uneven.clients[2].train["y"]
    layer = nn.Linear(3, 3)
    layer.load_state_dict(run.server["model"]["head"])
    nn.functional.cross_entropy(layer(uneven.inputs.normalise(x)), y).backward()
    found = adapted(run, uneven, 2)["tuned"]["head"]["weight"]
    torch.testing.assert_close(found, layer.weight.detach() - 0.01 * layer.weight.grad, rtol=0, atol=1e-7)  # float32


@pytest.mark.parametrize("policy", POLICIES)
def test_tuning_moves_batch_norms_statistics_on(uneven, policy):
    task = classification(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), uneven)
    local = SGD(lr=0.1, epochs=1, batch=None)
    run = fit(
        FedAvgFT(task, local, SGD(lr=0.0, steps=1, batch=None), batch_norm=policy),
        uneven,
        rounds=2,
        setting=Setting(engine=Loop),
    )
    x = uneven.inputs.normalise(uneven.clients[1].train["x"])
    holder = run.clients[1] if policy == "local" else run.server["model"]
    before = holder["buffers"]["0"]["running_mean"]
    after = adapted(run, uneven, 1)["tuned"]["buffers"]["0"]["running_mean"]
    # torch's rule, with its momentum of 0.1: one pass over all of the client's data
    torch.testing.assert_close(after, 0.9 * before + 0.1 * x.mean(0), rtol=0, atol=1e-6)  # float32
    assert not torch.equal(after, before)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedAvgFT, FedBABU])
def test_a_run_answers_with_the_adapted_models_that_were_measured(uneven, tmp_path, method, engine):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), uneven)
    algorithm = method(task, SGD(lr=0.1, epochs=1, batch=4), SGD(lr=0.5, epochs=5, batch=4))
    setting = Setting(engine=ENGINES[engine])
    run = fit(algorithm, uneven, rounds=2, setting=setting, folder=tmp_path)
    again = fit(algorithm, uneven, rounds=2, setting=setting, folder=tmp_path)  # from the checkpoint
    unlike = 0
    for k, client in enumerate(uneven.clients):
        x, y = client.test["x"], client.test["y"]
        found = run.predict(x, client=k).values
        accuracy = (found.argmax(1) == y).double().mean().item()
        assert accuracy == pytest.approx(run.table[k]["accuracy"], abs=1e-9)
        for name, value in flatten(run.clients[k]["adapted"]).items():
            assert torch.equal(flatten(again.clients[k]["adapted"])[name], value)
        unlike += not torch.allclose(found, algorithm.predict(run.server, run.clients[k], x).exp(), atol=1e-3)
    assert unlike == 4
    measured = run.evaluate(uneven)
    assert measured.metrics == pytest.approx(run.metrics, abs=1e-6)  # before adaptation, too


def test_what_cant_be_is_refused():
    with pytest.raises(TypeError, match=r"FedAvgFT's tuning must be a solver, SGD\(lr=0\.01, epochs=1\), say; given a"):
        FedAvgFT(Quadratic(), FULL, 0.1)
    with pytest.raises(TypeError, match=r"task must be a task, made by classification\(.*given a FedAvg"):
        FedAvgFT(FedAvg(Quadratic(), FULL), FULL)
    for tuning in (SGD(epochs=1, schedule="cosine"), SGD(epochs=1, momentum=0.9, keep_momentum=True)):
        with pytest.raises(ValueError, match=r"outside of all rounds: give it schedule='constant' and keep_momentum=F"):
            FedAvgFT(Quadratic(), FULL, tuning)
    with pytest.raises(ValueError, match="batch_norm must be 'share', 'local' or 'recompute'"):
        FedAvgFT(Quadratic(), FULL, batch_norm="mine")


class Stops(FedAvgFT):
    """FedAvgFT whose third round fails."""

    def round(self, server, clients, key):
        if clients.round == 2:
            raise RuntimeError("the network is gone")
        return super().round(server, clients, key)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_a_rescued_run_says_who_has_not_adapted(uneven, tmp_path, every):
    """Its kept models are those of the last checkpoint before the error, or of the enrolment."""
    task, tuning = classification(nn.Linear(3, 4), uneven), SGD(lr=0.5, epochs=2, batch=4)
    algorithm = Stops(task, BLOCK, tuning)
    with pytest.raises(RuntimeError, match="gone"):
        fit(algorithm, uneven, rounds=4, folder=tmp_path, checkpoint_every=every)
    x = uneven.clients[1].train["x"]
    rescued = Run.read(tmp_path, algorithm)
    whole = fit(FedAvgFT(task, BLOCK, tuning), uneven, rounds=4, until=2)
    assert torch.equal(rescued.predict(x).values, whole.predict(x).values)  # the shared model
    if every == 10:
        with pytest.raises(ValueError, match="client-1 has no adapted model of round 2"):
            rescued.predict(x, client=1)
    else:
        assert torch.equal(rescued.predict(x, client=1).values, whole.predict(x, client=1).values)


def test_clients_whose_tuning_diverges_do_not_answer_with_another_model(tmp_path):
    A, a = (torch.tensor(values, dtype=torch.float64) for values in ([[[1e200]], [[1.0]]], [[0.0], [4.0]]))
    steep = quadratic_federation(A, a)
    local = SGD(lr=1e-200, steps=1, batch=None)
    algorithm = FedAvgFT(Quadratic(), local, SGD(lr=0.5, steps=3, batch=None))
    run = fit(algorithm, steep, rounds=1, folder=tmp_path)
    start = float(run.server["model"]["theta"])
    for one in (run, Run.read(tmp_path, algorithm)):
        with pytest.raises(ValueError, match="client-0 has no adapted model of round 1"):
            one.predict(steep.clients[1].train["x"], client=0)
        found = one.predict(steep.clients[1].train["x"], client=1)
        assert found.values.item() == pytest.approx(4 + (start - 4) / 2**3)
