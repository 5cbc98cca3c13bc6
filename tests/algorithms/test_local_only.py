"""Training alone: closed forms, and nothing of anybody else."""

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, THREE, cohorts, of_clients, power, scalars, times, vectors
from torch import nn

from archipel import SGD, Federation, Local, Sample, classification, fit
from archipel.core.trees import flatten
from archipel.data import Client
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation


@pytest.mark.parametrize("engine", ENGINES)
def test_every_client_descends_on_its_own(engine):
    A, a = vectors()
    federation, cohort = quadratic_federation(A, a, SIZES), Sample(count=2)
    algorithm = Local(Quadratic(3), SGD(lr=0.2, steps=3, batch=None))
    run = fit(algorithm, federation, rounds=6, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    a, shrink, theta = a.numpy(), power(np.eye(3) - 0.2 * A.numpy(), 3), np.zeros((4, 3))
    for ids in cohorts(cohort, federation, 6):
        theta[ids] = (a + times(shrink, theta - a))[ids]
    assert of_clients(run, "model") == pytest.approx(theta, abs=1e-14)


def test_it_ends_at_each_clients_own_optimum():
    run = fit(
        Local(Quadratic(), SGD(lr=0.25, steps=20, batch=None)), scalars(*THREE), rounds=6, setting=Setting(engine=Loop)
    )
    # 0.75^120 = 1e-15
    assert of_clients(run, "model")[:, 0] == pytest.approx(THREE[1], abs=1e-12)


def test_momentum_goes_on_through_the_rounds():
    A, a = map(np.array, THREE)
    for kept in (True, False):
        local = SGD(lr=0.1, steps=2, batch=None, momentum=0.6, keep_momentum=kept)
        run = fit(Local(Quadratic(), local), scalars(*THREE), rounds=3, setting=Setting(engine=Loop))
        theta, velocity = np.zeros(3), np.zeros(3)
        for _ in range(3):
            velocity = velocity if kept else np.zeros(3)
            for _ in range(2):
                velocity = 0.6 * velocity + A * (theta - a)
                theta = theta - 0.1 * velocity
        assert of_clients(run, "model")[:, 0] == pytest.approx(theta, abs=1e-14)


def test_nobody_elses_data_matter_and_no_model_travels(uneven):
    def train(federation):
        task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation)
        return fit(Local(task, SGD(lr=0.2, epochs=1, batch=4)), federation, rounds=2, setting=Setting(engine=Loop))

    first, *others = uneven.clients
    changed = [Client(c.name, {"x": -c.train["x"], "y": c.train["y"]}, c.test) for c in others]
    other = Federation("changed", (first, *changed), uneven.inputs, uneven.classes)
    one, two = train(uneven), train(other)
    for i, expected in enumerate([True, False, False, False]):
        pairs = zip(flatten(one.clients[i]).values(), flatten(two.clients[i]).values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == expected
    # a loss up (float32) and a learning rate down (float64)
    assert [(record["uplink"], record["downlink"]) for record in one.history] == [(4 * 4, 4 * 8)] * 2
    assert "global_accuracy" not in one.metrics
