"""IFCA: rounds by hand, planted clusters found, empty ones left alone, and one model a client on the way up."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from quadratics import ENGINES, power, vectors
from stepwise import PAIRS, Listening, rounds_of, unreliable
from torch import nn

from archipel import (
    IFCA,
    SGD,
    CrossEntropy,
    FedAvg,
    Federation,
    Network,
    PerClient,
    PredictsGlobally,
    Sample,
    Whole,
    classification,
    fit,
)
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.trees import flatten, nbytes
from archipel.engines import Handle, Ledger, Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation
from archipel.learning.tasks import risk

STEP = SGD(lr=0.2, steps=1, batch=None)


@dataclass(frozen=True)
class Scattered(Quadratic):
    """Quadratics whose model is drawn: standard normal, times ``spread``."""

    spread: float = 1.0

    def init(self, key):
        return {"theta": self.spread * keys.normal(key, self.dimension, dtype=torch.float64)}


def starts(task, clusters, seed=0):
    """θ_c of a run with this seed before its first round, ``(C, d)``."""
    key = keys.fold(keys.key(seed), "server")
    drawn = [task.init(key)] + [task.init(keys.fold(key, c)) for c in range(1, clusters)]
    return np.stack([model["theta"].numpy() for model in drawn])


def thetas(server):
    return np.stack([model["theta"].numpy() for model in server["models"].values()])


def clusters(clients):
    return [int(client["cluster"]) for client in clients]


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("answers", [None, unreliable])
def test_rounds_are_those_of_the_paper_whoever_takes_part(weights, answers):
    A, a = vectors(m=6)
    sizes = [1, 5, 2, 9, 3, 4]
    task = Scattered(3)
    algorithm = IFCA(task, SGD(lr=0.1, steps=3, batch=None), clusters=3, weights=weights)
    federation = quadratic_federation(A, a, sizes)
    A, a, theta = A.numpy(), a.numpy(), starts(task, 3)
    rho, shrink = np.array(sizes) if weights == "examples" else np.ones(6), power(np.eye(3) - 0.1 * A, 3)

    def nearest(theta):
        gap = theta[:, None] - a
        return 0.5 * np.einsum("cki,kij,ckj->ck", gap, A, gap)

    expected, seen = nearest(theta).argmin(0), set()
    for asked, server, clients, info in rounds_of(algorithm, federation, 6, Sample(count=4), answers):
        loss = nearest(theta)
        expected[asked] = loss.argmin(0)[asked]
        path = [theta[expected[k]] for k in range(6)]
        values = np.zeros(6)  # the mean over three steps of the loss before each
        for _ in range(3):
            values += [0.5 * (x - a[k]) @ A[k] @ (x - a[k]) / 3 for k, x in enumerate(path)]
            path = [x - 0.1 * A[k] @ (x - a[k]) for k, x in enumerate(path)]
        end = a + np.einsum("kij,kj->ki", shrink, theta[expected] - a)
        theta = theta.copy()
        for c in range(3):
            members = [k for k in asked if expected[k] == c]
            if members:
                theta[c] = np.average(end[members], axis=0, weights=rho[members])
            seen.add(min(len(members), 2))
        assert thetas(server) == pytest.approx(theta, abs=1e-13)
        assert clusters(clients) == expected.tolist()
        assert info["clusters"] == [sum(expected[k] == c for k in asked) for c in range(3)]
        assert info["loss"] == pytest.approx(np.average(values[asked], weights=rho[asked]))
    assert seen == {0, 1, 2}  # empty clusters, those of one and those of several


@pytest.mark.parametrize("engine", ENGINES)
def test_one_cluster_is_fedavg_to_the_bit(uneven, engine):
    task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)
    local = SGD(lr=0.1, epochs=2, batch=5, momentum=0.9, keep_momentum=True, schedule="cosine")
    methods = (FedAvg(task, local), IFCA(task, local, clusters=1))
    avg, one = (
        fit(x, uneven, rounds=3, cohort=Sample(count=3), setting=Setting(engine=ENGINES[engine])) for x in methods
    )
    expected, found = flatten(avg.server["model"]), flatten(one.server["models"]["0"])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for client, other in zip(avg.clients, one.clients, strict=True):
        pairs = zip(flatten(client["velocity"]).values(), flatten(other["velocity"]).values(), strict=True)
        assert all(torch.equal(v, w) for v, w in pairs)
    assert one.metrics["average_accuracy"] == avg.metrics["average_accuracy"]
    assert [r["loss"] for r in one.history] == pytest.approx([r["loss"] for r in avg.history])


@pytest.mark.parametrize("seed", range(5))
def test_planted_clusters_are_found_and_end_at_their_own_optima(seed):
    # Two groups far apart, with one curvature: of any two starts one lies nearer to the one group, the other to the
    # other, so that every draw parts them (in more dimensions, or with other losses, not every draw does).
    A, a = np.ones(5), np.array([10.0, -10.0, 10.5, -9.0, 9.0])
    federation = quadratic_federation(torch.tensor(A)[:, None, None], torch.tensor(a)[:, None], [1, 4, 2, 5, 7])
    step = SGD(lr=0.75, steps=1, batch=None)
    run = fit(IFCA(Scattered(), step, clusters=2), federation, rounds=22, seed=seed, setting=Setting(engine=Loop))
    found = clusters(run.clients)
    up, down = found[0], found[1]
    assert found == [up, down, up, down, up]
    assert up != down
    # A mean weighted by examples, approached by a factor of 0.25 a round: 0.25^22 = 6e-14, of gaps of some 10
    expected = {up: (10 * 1 + 10.5 * 2 + 9 * 7) / 10, down: -(10 * 4 + 9 * 5) / 9}
    assert thetas(run.server)[:, 0] == pytest.approx([expected[0], expected[1]], abs=1e-10)


def test_a_cluster_that_nobody_chose_keeps_its_model():
    federation = quadratic_federation(torch.ones(2, 1, 1), torch.tensor([[50.0], [-50.0]]))
    task = Scattered(spread=2.0)
    run = fit(IFCA(task, STEP, clusters=3), federation, rounds=4, setting=Setting(engine=Loop))
    start = starts(task, 3)[:, 0]
    assert abs(start).max() < 50
    middle = np.argsort(start)[1]  # on a line the outer two are nearer to everything outside of them
    end = thetas(run.server)[:, 0]
    assert end[middle] == start[middle]
    assert all(end[c] != start[c] for c in range(3) if c != middle)
    assert [record["clusters"][middle] for record in run.history] == [0] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_whose_members_diverge_keeps_its_model(engine, caplog):
    # f(θ) = ½ · 1e300 (θ − a)² overflows on its way to the gradient's square, and the model of its client with it.
    A, a = torch.tensor([1e300, 1.0, 1.0]).double()[:, None, None], torch.tensor([[50.0], [-50.0], [-40.0]])
    federation, task = quadratic_federation(A, a), Scattered(spread=2.0)
    local = SGD(lr=0.2, steps=3, batch=None)
    run = fit(IFCA(task, local, clusters=2), federation, rounds=2, setting=Setting(engine=ENGINES[engine]))
    start, end = starts(task, 2)[:, 0], thetas(run.server)[:, 0]
    high, low = start.argmax(), start.argmin()
    assert end[high] == start[high]
    # 3 steps of two clients: the distance from the mean of −50 and −40 shrinks by 0.8³ a round
    assert end[low] == pytest.approx(-45 + 0.8**6 * (start[low] + 45))
    assert run.history[0]["dropped"] == {"client-0": "NaN or infinite values"}
    with pytest.raises(Exception, match="No reply could be used"):
        fit(
            IFCA(task, local, clusters=2),
            quadratic_federation(A[:1], a[:1]),
            rounds=1,
            setting=Setting(engine=ENGINES[engine]),
        )


def test_of_equals_the_lowest_is_chosen():
    algorithm, data = IFCA(Quadratic(), STEP), Examples.of({"x": torch.ones(2, 1, 1), "y": torch.zeros(2, 1)})
    for values, expected in [((1.0, -1.0, 1.0), 0), ((2.0, -1.0, 1.0), 1), ((np.nan, 3.0, -3.0), 1), ((np.nan,), 0)]:
        models = {str(c): {"theta": torch.tensor([value])} for c, value in enumerate(values)}
        assert int(algorithm.nearest(models, data)) == expected


def task_of(kind, federation):
    encoder = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    if kind == "whole":
        return Whole(Network(nn.Sequential(encoder, nn.Linear(5, 3)), federation.inputs), CrossEntropy())
    return classification(encoder, federation)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["supervised", "whole"])
def test_the_choice_is_made_on_all_of_the_clients_data(uneven, kind, engine):
    task = task_of(kind, uneven)
    algorithm = IFCA(task, SGD(lr=0.5, steps=2, batch=2), clusters=4)
    carrier, everyone = ENGINES[engine](algorithm, uneven), torch.arange(4)
    handle = Handle(carrier, everyone, uneven.sizes, 0, 1, Ledger())
    with torch.no_grad():
        server = algorithm.init_server(handle, keys.key(1))
        # Here a model's quality is the client's own matter: model c is good at one label, and says little else.
        for c, model in enumerate(server["models"].values()):
            bias = flatten(model)[{"whole": "module/1/bias", "supervised": "head/bias"}[kind]]
            bias += 0.3 * torch.nn.functional.one_hot(torch.tensor(c % 3), 3)
        handle.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.key(2))
        found = handle.collect(algorithm.choose, {"models": server["models"]}, keys.key(3)).value
    expected = []
    for client in uneven.clients:
        x, y = client.train["x"], client.train["y"]
        losses = [-task.predict(m, x)[torch.arange(len(y)), y].mean().item() for m in server["models"].values()]
        assert np.diff(sorted(losses)[:2]) > 1e-4  # no choice hangs on rounding
        expected.append(int(np.argmin(losses)))
    assert found.tolist() == clusters([carrier.states[k] for k in range(4)]) == expected
    assert len(set(expected)) > 1


def test_one_model_a_client_goes_up_and_all_come_down_once(uneven):
    task = classification(nn.Linear(3, 4), uneven)
    algorithm = IFCA(task, SGD(lr=0.1, epochs=1, batch=4), clusters=3)
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine=Loop))
    model = nbytes(run.server["models"]["0"])
    assert model == 4 * (4 * 3 + 4 + 3 * 4 + 3)
    for record in run.history:
        assert record["uplink"] == 4 * (8 + model + 4)  # the cluster's number, int64; a model; a loss, float32
        assert record["downlink"] == 4 * (3 * model + 8)  # the models, and a learning rate, float64
    listening = Listening(algorithm, uneven)
    list(rounds_of(algorithm, uneven, 1, PAIRS, carrier=listening))
    sent = [set(message) for message in listening.sent[1:]]
    assert sent[0] == {"models"}
    assert all(message == {"model", "lr"} for message in sent[1:])


@pytest.fixture(scope="module")
def opposite():
    """Six clients; the second three call each class by the other's name, so that no model suits all."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(360, 3, generator=generator)
    y = (x @ torch.tensor([1.0, -1.0, 0.5]) > 0).long()
    rows = torch.arange(360).split([40, 90, 50, 70, 30, 80])
    return Federation.from_arrays([(x[i], y[i] if k < 3 else 1 - y[i]) for k, i in enumerate(rows)])


@pytest.mark.parametrize("seed", range(6))
def test_clients_with_opposite_labels_are_parted(opposite, seed):
    # A linear model that is better than chance for one group is worse for the other: here the two groups' choices
    # leave each other from any start, if not in the first round.
    task = classification(nn.Identity(), opposite)
    algorithm = IFCA(task, SGD(lr=0.3, epochs=1, batch=10), clusters=2)
    run = fit(algorithm, opposite, rounds=6, seed=seed, setting=Setting(engine="batched"))
    found = clusters(run.clients)
    assert found in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    assert run.metrics["average_accuracy"] > 0.9
    one = fit(FedAvg(task, algorithm.local), opposite, rounds=6, seed=seed, setting=Setting(engine="batched"))
    # What is right for one group is wrong for the other: 190 examples on this side of 360, and some chance.
    assert one.metrics["average_accuracy"] < 0.7


def test_from_a_start_that_all_like_best_it_is_fedavg():
    # 0 is nearer than 100 to everybody, and the mean of all is, too: planted as the groups are, they aren't found.
    federation = quadratic_federation(torch.ones(3, 1, 1), torch.tensor([[10.0], [-10.0], [12.0]]), [1, 2, 1])
    algorithm = IFCA(Scattered(), STEP, clusters=2)
    carrier, everyone = Loop(algorithm, federation), torch.arange(3)
    handle = Handle(carrier, everyone, federation.sizes, 0, 1, Ledger())
    server = {"models": {str(c): {"theta": torch.tensor([v]).double()} for c, v in enumerate((0.0, 100.0))}}
    with torch.no_grad():
        handle.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.key(0))
        for _ in range(100):
            server, info = algorithm.round(server, handle, keys.key(1))
            assert info["clusters"] == [3, 0]
    # (10 − 2 · 10 + 12)/4, approached by 0.8 a round: 0.8^100 = 2e-10
    assert thetas(server)[:, 0] == pytest.approx([0.5, 100.0], abs=1e-9)
    assert server["models"]["1"]["theta"].item() == 100.0


def test_kept_momentum_starts_anew_where_the_cluster_changes():
    algorithm = IFCA(Quadratic(), SGD(lr=0.1, steps=1, batch=None, momentum=0.9, keep_momentum=True), clusters=2)
    data = Examples.of({"x": torch.ones(1, 1, 1).double(), "y": torch.zeros(1, 1).double()})
    client = {"cluster": torch.tensor(0), "velocity": {"theta": torch.tensor([3.0]).double()}}
    models = [{"theta": torch.tensor([value]).double()} for value in (1.0, 2.0)]

    def velocity(*order):
        message = {"models": {str(c): models[i] for c, i in enumerate(order)}}
        chosen, _ = algorithm.choose(client, message, type("Data", (), {"train": data}), keys.key(0))
        return int(chosen["cluster"]), chosen["velocity"]["theta"].item()

    assert velocity(0, 1) == (0, 3.0)
    assert velocity(1, 0) == (1, 0.0)


def test_clients_predict_by_the_model_they_chose(uneven):
    task = classification(nn.Linear(3, 4), uneven)
    run = fit(IFCA(task, SGD(lr=0.1, epochs=1, batch=4), clusters=3), uneven, rounds=1, setting=Setting(engine=Loop))
    x = uneven.clients[0].test["x"]
    for c in range(3):
        found = run.algorithm.predict(run.server, run.clients[0] | {"cluster": torch.tensor(c)}, x)
        assert torch.equal(found, task.predict(run.server["models"][str(c)], x))
    # and in batches over clients
    batch = {"cluster": torch.tensor([2, 0, 1, 2])}
    found = torch.func.vmap(lambda client: run.algorithm.predict(run.server, client, x))(batch)
    expected = torch.stack([task.predict(run.server["models"][str(c)], x) for c in (2, 0, 1, 2)])
    torch.testing.assert_close(found, expected)
    assert not isinstance(run.algorithm, PredictsGlobally)


class TestBatchNorm:
    """A layer on the inputs themselves, so that the right statistics are known: those of a cluster's members."""

    def run(self, uneven, policy, rounds=1):
        task = classification(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), uneven)
        algorithm = IFCA(task, SGD(lr=0.1, steps=1, batch=None), clusters=2, batch_norm=policy)
        return fit(algorithm, uneven, rounds=rounds, setting=Setting(engine="loop"))

    @pytest.mark.parametrize(("policy", "factor"), [("share", 0.1), ("recompute", 1.0)])
    def test_a_clusters_statistics_are_its_members(self, uneven, policy, factor):
        run = self.run(uneven, policy)
        found = clusters(run.clients)
        for c in set(found):
            members = [k for k in range(4) if found[k] == c]
            x = torch.cat([uneven.inputs.normalise(uneven.clients[k].train["x"]) for k in members])
            statistics = run.server["models"][str(c)]["buffers"]["0"]["running_mean"]
            # torch's rule from 0, with its momentum of 0.1, or the mean itself; float32
            torch.testing.assert_close(statistics, factor * x.mean(0), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("kind", ["supervised", "whole"])
    def test_models_are_judged_as_they_predict(self, uneven, kind):
        if kind == "whole":
            module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
            task = Whole(Network(module, uneven.inputs), CrossEntropy())
        else:
            task = classification(nn.BatchNorm1d(3), uneven)
        model, data = task.init(keys.key(0)), Examples.of(uneven.clients[3].train)
        rows = torch.arange(data.length)
        expected = -task.predict(model, data["x"])[rows, data["y"]].mean()
        torch.testing.assert_close(risk(task, model, data), expected)
        assert abs(task.loss(model, data.columns)[0].mean() - expected) > 1e-3  # as training sees it


def test_what_cant_be_is_refused(uneven):
    for given in (0, -1, True, 2.0, "2"):
        with pytest.raises(ValueError, match="IFCA's clusters must be a whole number of at least 1; given"):
            IFCA(Quadratic(), STEP, clusters=given)
    with pytest.raises(ValueError, match="IFCA's batch_norm must be 'share' or 'recompute'; given 'local'"):
        IFCA(Quadratic(), STEP, batch_norm="local")
    with pytest.raises(ValueError, match=r"must start from different models.*initial='keyed'"):
        fit(IFCA(Quadratic(), STEP, clusters=2), quadratic_federation(torch.ones(1, 1, 1), torch.ones(1, 1)), rounds=1)
