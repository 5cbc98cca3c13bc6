"""FedDyn: trajectories and optima on paper, and the mean of everybody's gradients at the server."""

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
    of_server,
    scalars,
    shares,
    times,
    vectors,
)

from archipel import SGD, FedDyn, Sample, fit
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation

# For A + μ between 1.5 and 5 a step shrinks by 0.6 or faster: 0.6^60 = 5e-14.
EXACT = SGD(lr=0.28, steps=60, batch=None, tolerance=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trajectory_with_exact_solves(engine):
    found = []
    fit(
        FedDyn(Quadratic(), EXACT, penalty=1.0),
        scalars(*THREE),
        rounds=4,
        setting=Setting(engine=ENGINES[engine]),
        callbacks=[lambda moment: found.append(moment.server["model"]["theta"].item())],
    )
    assert found == pytest.approx((2.044444, 1.962469, 1.942804, 1.945583), abs=1e-6)  # docs/methods/averaging.md


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("problem", "value"), [(TWO, 0.8), (THREE, 2.0)])
def test_the_optimum_is_common_whatever_the_number_of_steps(problem, value, steps):
    algorithm = FedDyn(Quadratic(), SGD(lr=0.25, steps=steps, batch=None), penalty=2.0)
    run = fit(algorithm, scalars(*problem), rounds=40, setting=Setting(engine=Loop))
    assert of_server(run) == pytest.approx(value, abs=1e-9)
    # There the estimates are the gradients, and their mean vanishes.
    A, a = map(np.array, problem)
    assert of_clients(run, "gradient")[:, 0] == pytest.approx(A * (value - a), abs=1e-8)
    assert of_server(run, "h") == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_vector_clients_by_hand_with_partial_participation_and_lost_replies(engine, weights):
    A, a = vectors()
    federation, cohort, mu, lr = quadratic_federation(A, a, SIZES), Sample(count=3), 0.8, 0.15
    lost = {(1, i) for i in cohorts(cohort, federation, 2)[1][:1]}
    algorithm = FedDyn(Quadratic(3), SGD(lr=lr, steps=4, batch=None), mu, weights=weights)
    run = fit(
        algorithm,
        federation,
        rounds=5,
        cohort=cohort,
        setting=Setting(engine=ENGINES[engine]),
        answers=lambda round, client: (round, client) not in lost,
    )
    A, a, rho = A.numpy(), a.numpy(), shares(weights, SIZES)
    theta, h, g = np.zeros(3), np.zeros(3), np.zeros((4, 3))
    for t, drawn in enumerate(cohorts(cohort, federation, 5)):
        ids = [i for i in drawn if (t, i) not in lost]
        local = np.tile(theta, (4, 1))
        for _ in range(4):
            local = local - lr * (times(A, local - a) - g + mu * (local - theta))
        g[ids] = (g - mu * (local - theta))[ids]
        h = h - mu * (rho[ids] @ (local - theta)[ids])
        theta = np.average(local[ids], axis=0, weights=rho[ids]) - h / mu
    assert of_server(run) == pytest.approx(theta, abs=1e-12)
    assert of_server(run, "h") == pytest.approx(h, abs=1e-12)
    assert of_clients(run, "gradient") == pytest.approx(g, abs=1e-12)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_partial_participation_ends_at_the_optimum_of_all(weights):
    A, a = vectors()
    seen = []

    def watch(moment):
        # After every round h is the mean of everybody's estimates, sampled or not.
        states = [moment.clients.carrier.states[i]["gradient"]["theta"].numpy() for i in range(4)]
        seen.append(abs(shares(weights, SIZES) @ np.stack(states) - moment.server["h"]["theta"].numpy()).max())

    run = fit(
        FedDyn(Quadratic(3), SGD(lr=0.3, steps=3, batch=None), 3.0, weights=weights),
        quadratic_federation(A, a, SIZES),
        rounds=60,
        cohort=Sample(count=2),
        setting=Setting(engine=Loop),
        callbacks=[watch],
    )
    assert len(seen) == 60
    assert max(seen) < 1e-12
    assert of_server(run) == pytest.approx(meeting(A.numpy(), a, shares(weights, SIZES)), abs=1e-5)


def test_an_exact_solve_keeps_the_gradient_where_it_ended():
    A, a = vectors()
    run = fit(FedDyn(Quadratic(3), EXACT, 1.0), quadratic_federation(A, a), rounds=1, setting=Setting(engine=Loop))
    # eq. (14) from g = 0 and θ = 0: A (θ_k − a) + μ θ_k = 0, so g_k = −μ θ_k = ∇f_k(θ_k)
    ends = torch.linalg.solve(A + torch.eye(3), (A @ a[..., None])[..., 0]).numpy()
    assert of_clients(run, "gradient") == pytest.approx(times(A.numpy(), ends - a.numpy()), abs=1e-12)


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("nan")])
def test_penalties_out_of_range_are_refused(penalty):
    with pytest.raises(ValueError, match="FedDyn's penalty must be above 0 and finite; given"):
        FedDyn(Quadratic(), EXACT, penalty)
