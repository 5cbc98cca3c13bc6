"""Ditto: fixed points, the moving centre, limits of the penalty, and a shared model that knows nothing of it."""

import numpy as np
import pytest
import torch
from quadratics import (
    ENGINES,
    SIZES,
    THREE,
    TWO,
    cohorts,
    meeting,
    of_clients,
    power,
    proximal_map,
    scalars,
    shares,
    times,
    vectors,
)
from torch import nn

from archipel import SGD, Ditto, FedAvg, FedDyn, FedProx, Local, Sample, classification, fit
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation

STEP = SGD(lr=0.2, steps=1, batch=None)


def shared(run):
    return run.server["inner"]["model"]["theta"].numpy()


@pytest.mark.parametrize(
    ("problem", "penalty", "theta", "personal"),
    [(TWO, 2.0, 0.8, (8 / 15, 14 / 15)), (THREE, 1.0, 2.0, (1, 4 / 3, 14 / 5))],
)
def test_the_fixed_points_on_paper(problem, penalty, theta, personal):
    algorithm = Ditto(FedAvg(Quadratic(), STEP), STEP, penalty)
    run = fit(algorithm, scalars(*problem), rounds=45, setting=Setting(engine=Loop))
    # θ contracts by 1 − 0.2 · 7/3 or faster, ω by 1 − 0.2 (1 + μ): 0.6^45 = 1e-10
    assert shared(run) == pytest.approx(theta, abs=1e-8)
    assert of_clients(run, "personal")[:, 0] == pytest.approx(personal, abs=1e-8)


@pytest.mark.parametrize(("inner", "weights"), [("FedProx", "examples"), ("FedDyn", "uniform")])
def test_any_shared_model_is_a_centre(inner, weights):
    A, a = vectors()
    local, one, rho = SGD(lr=0.3, steps=3, batch=None), np.eye(3), shares(weights, SIZES)
    algorithm, N = {
        "FedProx": (
            FedProx(Quadratic(3), local, 0.5, weights=weights),
            (one - power(one - 0.3 * (A.numpy() + 0.5 * one), 3)) @ proximal_map(A, 0.5),
        ),
        "FedDyn": (FedDyn(Quadratic(3), local, 2.0, weights=weights), A.numpy()),
    }[inner]
    # Two personal steps of 0.3 shrink by (1 − 0.3 (0.5 + 1.5))² at least; θ by 0.65 a round or faster.
    ditto = Ditto(algorithm, SGD(lr=0.3, steps=2, batch=None), penalty=1.5)
    run = fit(ditto, quadratic_federation(A, a, SIZES), rounds=30, setting=Setting(engine=Loop))
    theta = meeting(N, a, rho)
    assert shared(run) == pytest.approx(theta, abs=1e-5)
    expected = theta - times(proximal_map(A, 1.5), theta - a.numpy())
    assert of_clients(run, "personal") == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_centre_is_what_was_broadcast_and_follows_it(engine):
    A, a = vectors()
    federation, cohort, mu = quadratic_federation(A, a, SIZES), Sample(count=2), 1.5
    inner = FedAvg(Quadratic(3), SGD(lr=0.1, steps=2, batch=None))
    ditto = Ditto(inner, SGD(lr=0.15, steps=2, batch=None), mu)
    run = fit(ditto, federation, rounds=5, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    A, a, theta, omega = A.numpy(), a.numpy(), np.zeros(3), np.zeros((4, 3))
    shrink = power(np.eye(3) - 0.1 * A, 2)
    for ids in cohorts(cohort, federation, 5):
        for _ in range(2):
            omega[ids] = (omega - 0.15 * (times(A, omega - a) + mu * (omega - theta)))[ids]
        theta = np.average((a + times(shrink, theta - a))[ids], axis=0, weights=np.array(SIZES)[ids])
    assert shared(run) == pytest.approx(theta, abs=1e-13)
    assert of_clients(run, "personal") == pytest.approx(omega, abs=1e-13)


@pytest.fixture(scope="module")
def task(uneven):
    return classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)


BLOCK = SGD(lr=0.2, steps=3, batch=4, momentum=0.9, keep_momentum=True, schedule="cosine")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shared_model_is_as_if_there_were_no_personal_ones(uneven, task, engine):
    inner = FedAvg(task, BLOCK)
    alone, ditto = (
        fit(x, uneven, rounds=3, setting=Setting(engine=ENGINES[engine])) for x in (inner, Ditto(inner, BLOCK, 0.7))
    )
    one, other = flatten(alone.server), flatten(ditto.server["inner"])
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert ditto.metrics["global_accuracy"] == alone.metrics["global_accuracy"]
    # The model is sent once for both purposes; what is more is the second learning rate.
    assert [r["uplink"] for r in ditto.history] == [r["uplink"] for r in alone.history]
    assert [r["downlink"] for r in ditto.history] == [r["downlink"] + 4 * 8 for r in alone.history]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_penalty_everybody_trains_alone(uneven, task, engine):
    alone, ditto = (
        fit(x, uneven, rounds=3, setting=Setting(engine=ENGINES[engine]))
        for x in (Local(task, BLOCK), Ditto(FedAvg(task, BLOCK), BLOCK, 0.0))
    )
    for one, other in zip(alone.clients, ditto.clients, strict=True):
        pairs = zip(flatten(one["model"]).values(), flatten(other["personal"]).values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_large_penalty_leaves_the_centre():
    # ημ = 1: ω ← θ − η ∇f(ω)
    ditto = Ditto(FedAvg(Quadratic(), STEP), SGD(lr=1e-9, steps=1, batch=None), penalty=1e9)
    run = fit(ditto, scalars(*THREE), rounds=30, setting=Setting(engine=Loop))
    assert of_clients(run, "personal") == pytest.approx(2.0, abs=1e-7)


def test_global_and_personal_models_are_told_apart():
    run = fit(Ditto(FedAvg(Quadratic(), STEP), STEP, 1.0), scalars(*THREE), rounds=2, setting=Setting(engine=Loop))
    x = torch.zeros(1, 1, 1)
    found = [run.algorithm.predict(run.server, client, x).item() for client in run.clients]
    assert found == of_clients(run, "personal")[:, 0].tolist()
    assert run.algorithm.predict_global(run.server, x).item() == shared(run)[0]
    assert len({*found, shared(run)[0]}) == 4


def test_what_cant_be_is_refused():
    with pytest.raises(ValueError, match=r"Ditto's penalty must be 0 or above and finite; given -1\.0"):
        Ditto(FedAvg(Quadratic(), STEP), STEP, -1.0)
    with pytest.raises(ValueError, match=r"keep a shared model under 'model'.*Local keeps start.*FedAvg"):
        fit(Ditto(Local(Quadratic(), STEP), STEP), scalars(*TWO), rounds=1)
