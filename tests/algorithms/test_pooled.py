"""Pooled: the optimum of everybody's data, however they are divided, and what it costs to bring them together."""

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, meeting, of_server, shares
from sklearn.linear_model import LogisticRegression
from stepwise import arrays, federation_of
from torch import nn

from archipel import SGD, CrossEntropy, FedAvg, Federation, Network, Pooled, Sample, Whole, classification, fit
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from archipel.experiments import read_config, reevaluate, train
from archipel.learning.quadratic import Quadratic


def pooled(d=3, **settings):
    return Pooled(Quadratic(d), SGD(lr=0.2, steps=20, batch=None, **settings))


@pytest.mark.parametrize("engine", ENGINES)
def test_it_ends_where_federated_averaging_of_single_steps_does(engine):
    A, a = arrays()
    federation = federation_of(A, a, SIZES)
    run = fit(pooled(), federation, rounds=10, setting=Setting(engine=ENGINES[engine]))
    expected = meeting(A, a, shares("examples", SIZES))
    # 200 steps that shrink by 1 − 0.2 · 0.7 at least (the mean's eigenvalues are above 0.7): 1e-13
    assert of_server(run) == pytest.approx(expected, abs=1e-10)
    one = fit(
        FedAvg(Quadratic(3), SGD(lr=0.2, steps=1, batch=None)), federation, rounds=200, setting=Setting(engine="loop")
    )
    assert of_server(one) == pytest.approx(of_server(run), abs=1e-10)
    assert abs(expected - meeting(A, a, shares("uniform", SIZES))).max() > 1e-2  # sizes matter


def rows(seed=0, n=60):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return x, (x @ torch.tensor([[1.0, -1, 0], [0, 1, -1], [1, 0, 1]])).argmax(1)


def divided(*sizes):
    x, y = rows()
    return Federation.from_arrays(list(zip(x.split(sizes), y.split(sizes), strict=True)), test=0.0)


def test_the_division_over_clients_does_not_matter():
    task = lambda federation: classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation)  # noqa: E731
    models = []
    for sizes in ((60,), (5, 30, 25), (20, 20, 20)):
        federation = divided(*sizes)
        run = fit(Pooled(task(federation), SGD(lr=0.2, steps=10, batch=None)), federation, rounds=3)
        models.append(flatten(run.server["model"]))
    for other in models[1:]:
        for name, values in models[0].items():
            # the same rows in another order: float32 sums of 60, a few times over
            torch.testing.assert_close(other[name], values, rtol=1e-4, atol=1e-6)


def test_a_softmax_regression_is_that_of_scikit_learn():
    federation = divided(10, 50)
    task = Whole(Network(nn.Linear(3, 3, bias=False), federation.inputs), CrossEntropy())
    run = fit(Pooled(task, SGD(lr=1.0, steps=100, batch=None, weight_decay=0.1)), federation, rounds=3)
    x, y = (torch.cat([client.train[column] for client in federation.clients]) for column in ("x", "y"))
    x = federation.inputs.normalise(x).double().numpy()  # of float32 scikit-learn computes in float32, and stops early
    witness = LogisticRegression(C=1 / (0.1 * 60), fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y.numpy())
    # The loss is 0.1-convex: 300 steps shrink by 0.9 each, to 1e-13. Rounding in float32 is left: a gradient is a mean
    # of 60 terms of about 1, wrong by 60 · 6e-8 at worst, and 0.1-convexity multiplies it by 10.
    assert run.server["model"]["module"]["weight"].numpy() == pytest.approx(witness.coef_, abs=4e-5)


def test_examples_are_sent_once_and_counted(uneven):
    task = classification(nn.Linear(3, 2), uneven)
    for engine in ("loop", "batched", "wire"):
        run = fit(Pooled(task, SGD(steps=2)), uneven, rounds=3, setting=Setting(engine=engine), cohort=Sample(count=2))
        held = int(uneven.sizes.sum())
        # three float32 features and an int64 class; asked for by an int64 number each
        assert [record["uplink"] for record in run.history] == [held * (3 * 4 + 8), 0, 0]
        assert [record["downlink"] for record in run.history] == [held * 8, 0, 0]


def test_the_pool_holds_every_example_once_in_another_order(uneven):
    run = fit(
        Pooled(classification(nn.Linear(3, 2), uneven), SGD(steps=1)),
        uneven,
        rounds=1,
        setting=Setting(engine="batched"),
    )
    found = run.server["examples"]
    x, y = (torch.cat([client.train[column] for client in uneven.clients]) for column in ("x", "y"))
    given, kept = (np.column_stack([t.numpy(), u.numpy()]).tolist() for t, u in ((x, y), (found["x"], found["y"])))
    assert sorted(given) == sorted(kept)
    assert given != kept


def test_neither_cohorts_nor_lost_replies_change_it(uneven):
    algorithm = Pooled(classification(nn.Linear(3, 2), uneven), SGD(lr=0.1, steps=3, batch=8))
    everybody = fit(algorithm, uneven, rounds=3)
    nobody = fit(algorithm, uneven, rounds=3, cohort=Sample(count=1), answers=lambda round, client: False)
    for one, other in zip(flatten(everybody.server).values(), flatten(nobody.server).values(), strict=True):
        assert torch.equal(one, other)


def test_resuming_is_exact_and_costs_nothing_again(uneven, tmp_path):
    local = SGD(lr=0.1, steps=3, batch=8, momentum=0.9, keep_momentum=True)
    algorithm = Pooled(classification(nn.Linear(3, 2), uneven), local)
    straight = fit(algorithm, uneven, rounds=4)
    fit(algorithm, uneven, rounds=4, folder=tmp_path, until=2)
    resumed = fit(algorithm, uneven, rounds=4, folder=tmp_path)
    for one, other in zip(flatten(straight.server).values(), flatten(resumed.server).values(), strict=True):
        assert torch.equal(one, other)
    assert [r["uplink"] for r in resumed.history] == [r["uplink"] for r in straight.history]


def test_it_runs_from_a_configuration_and_predicts(tmp_path):
    config = read_config("digits-fedavg", ["algorithm.name=pooled", "rounds=2", "data.clients=3"])
    run = train(config, tmp_path).run
    assert run.metrics["global_accuracy"] == run.metrics["system_accuracy"] > 0.15  # two rounds; guessing has 0.1
    x = torch.zeros(1, 16, 16, dtype=torch.uint8)
    answers = [run.predict(x).values, run.predict(x, client="client-1").values]
    assert torch.equal(*answers)
    _, again = reevaluate(tmp_path)
    assert again.metrics == run.metrics


def test_that_examples_leave_their_clients_is_told(caplog):
    A, a = arrays()
    with caplog.at_level("WARNING", logger="archipel"):
        fit(pooled(), federation_of(A, a, SIZES), rounds=1)
    assert "Pooled collects all training examples at the server, 17 of 4 clients" in caplog.text
    assert "checkpoints hold them" in caplog.text
