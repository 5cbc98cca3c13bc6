"""FedProx: proximal fixed points, FedAvg without a penalty, and what happens to a client that diverges."""

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
    of_server,
    power,
    proximal_map,
    scalars,
    shares,
    times,
    vectors,
)
from torch import nn

from archipel import SGD, DivergenceError, FedAvg, FedProx, Sample, classification, fit
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation

EXACT = SGD(lr=0.26, steps=200, batch=None, tolerance=1e-11)


def local_map(A, penalty, lr, steps):
    """E steps from θ end at θ − N (θ − a): they shrink the way to the proximal point by (I − η(A + μ))^E."""
    A = np.asarray(A)
    one = np.eye(A.shape[-1])
    return (one - power(one - lr * (A + penalty * one), steps)) @ proximal_map(A, penalty)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_penalty_it_is_fedavg_to_the_bit(uneven, engine):
    task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)
    local = SGD(lr=0.2, epochs=2, batch=4, momentum=0.9, keep_momentum=True, clip=0.5)
    plain, prox, pulled = (
        fit(algorithm, uneven, rounds=2, setting=Setting(engine=ENGINES[engine]))
        for algorithm in (FedAvg(task, local), FedProx(task, local, penalty=0.0), FedProx(task, local, penalty=0.3))
    )
    for one, other, third in zip(*(flatten(run.server).values() for run in (plain, prox, pulled)), strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, third)


@pytest.mark.parametrize(("problem", "penalty", "value", "rounds"), [(TWO, 2.0, 2 / 3, 30), (THREE, 1.0, 92 / 59, 18)])
def test_exact_solves_meet_where_the_moreau_envelopes_do(problem, penalty, value, rounds):
    run = fit(FedProx(Quadratic(), EXACT, penalty), scalars(*problem), rounds=rounds, setting=Setting(engine=Loop))
    # a contraction by 1 − mean M (1/2 and 0.34) a round: 1e-9 and 4e-9 are left
    assert of_server(run) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_vector_clients_with_few_steps(engine, weights):
    A, a = vectors()
    federation, local = quadratic_federation(A, a, SIZES), SGD(lr=0.25, steps=4, batch=None)
    run = fit(
        FedProx(Quadratic(3), local, 0.5, weights=weights),
        federation,
        rounds=40,
        setting=Setting(engine=ENGINES[engine]),
    )
    N = local_map(A, 0.5, 0.25, 4)
    assert of_server(run) == pytest.approx(meeting(N, a, shares(weights, SIZES)), abs=1e-7)
    # The other weighting and FedAvg end elsewhere: the test could tell.
    other = "uniform" if weights == "examples" else "examples"
    for wrong in (meeting(N, a, shares(other, SIZES)), meeting(local_map(A, 0, 0.25, 4), a, shares(weights, SIZES))):
        assert abs(of_server(run) - wrong).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_partial_participation_is_each_cohorts_own_map(engine):
    A, a = vectors()
    federation, cohort = quadratic_federation(A, a, SIZES), Sample(count=2)
    algorithm = FedProx(Quadratic(3), SGD(lr=0.1, steps=3, batch=None), 2.0)
    run = fit(algorithm, federation, rounds=5, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    theta, N = np.zeros(3), local_map(A, 2.0, 0.1, 3)
    for ids in cohorts(cohort, federation, 5):
        theta = np.average((theta - times(N, theta - a.numpy()))[ids], axis=0, weights=np.array(SIZES)[ids])
    assert of_server(run) == pytest.approx(theta, abs=1e-13)


def test_a_large_penalty_holds_the_clients_where_they_start():
    local = SGD(lr=5e-7, steps=50, batch=None)
    run = fit(FedProx(Quadratic(), local, penalty=1e6), scalars(*THREE), rounds=3, setting=Setting(engine=Loop))
    # The proximal point at 0 is A a/μ, at most 1.2e-5 away.
    assert 0 < of_server(run) < 4e-5


def test_a_client_that_diverges_is_named_and_left_out_and_the_round_goes_on():
    federation = scalars([1.0, 1e200], [1.0, 1.0])
    run = fit(
        FedProx(Quadratic(), SGD(lr=0.5, steps=3, batch=None)), federation, rounds=2, setting=Setting(engine=Loop)
    )
    assert [record["dropped"] for record in run.history] == [{"client-1": "NaN or infinite values"}] * 2
    # client-0 alone: the three steps shrink the way to the proximal point 1/1.1 by 1 − 0.5 · 1.1
    theta = 0.0
    for _ in range(2):
        point = (1 + 0.1 * theta) / 1.1
        theta = point + 0.45**3 * (theta - point)
    assert of_server(run) == pytest.approx(theta, rel=1e-12)
    with pytest.raises(DivergenceError, match=r"round 1.*lower learning rate"):
        fit(
            FedProx(Quadratic(), SGD(lr=1e200, steps=3, batch=None)), federation, rounds=2, setting=Setting(engine=Loop)
        )


@pytest.mark.parametrize("penalty", [-0.1, float("nan"), float("inf")])
def test_penalties_out_of_range_are_refused(penalty):
    with pytest.raises(ValueError, match="FedProx's penalty must be 0 or above and finite; given"):
        FedProx(Quadratic(), EXACT, penalty)
