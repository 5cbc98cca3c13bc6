"""FedSplit: the optimum as a fixed point of reflected proximal steps, exact or not, and how fast it is reached."""

import numpy as np
import pytest
from quadratics import ENGINES, SIZES, THREE, meeting, proximal_map, scalars, shares, times
from stepwise import PAIRS, arrays, federation_of, gradients, rounds_of, states_of, theta, unreliable

from archipel import SGD, FedSplit, fit
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic

# Heavy-ball's best for curvatures from 2 to 5 (A + 1/s): it shrinks by (√2.5 − 1)/(√2.5 + 1) = 0.23 a step.
EXACT = SGD(lr=4 / (2**0.5 + 5**0.5) ** 2, momentum=0.225**2, steps=40, batch=None, tolerance=1e-13)


def test_three_scalar_clients_end_at_two_and_their_z_beside_it():
    run = fit(FedSplit(Quadratic(), EXACT, s=1.0), scalars(*THREE), rounds=40, setting=Setting(engine="loop"))
    # with s = 1 the slowest client's reflection shrinks by (4 − 1)/(4 + 1): 0.6^40 = 1e-9 of 6
    assert run.server["model"]["theta"].item() == pytest.approx(2, abs=1e-8)
    assert states_of(run.clients, "z")[:, 0] == pytest.approx(np.array([0, 0, 6]), abs=1e-7)  # θ* − s A (θ* − a)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_few_inner_steps_have_the_same_fixed_point(steps, engine):
    algorithm = FedSplit(Quadratic(), SGD(lr=0.2, steps=steps, batch=None))
    run = fit(algorithm, scalars(*THREE), rounds=60, setting=Setting(engine=ENGINES[engine]))
    assert run.server["model"]["theta"].item() == pytest.approx(2, abs=1e-5)  # linear; measured 1e-7
    assert states_of(run.clients, "z")[:, 0] == pytest.approx(np.array([0, 0, 6]), abs=1e-4)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_rounds_of_vector_clients_are_those_of_the_paper(weights):
    (A, a), s, rho = arrays(), 0.7, shares(weights, SIZES)
    z, M = np.zeros((4, 3)), proximal_map(A, 1 / s)
    x = np.zeros(3)
    local = SGD(lr=0.3, momentum=0.2, steps=100, batch=None, tolerance=1e-13)
    algorithm = FedSplit(Quadratic(3), local, s=s, weights=weights)
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 8, PAIRS):
        centre = 2 * x - z
        u = centre - times(M, centre - a)
        z[asked] += 2 * (u - x)[asked]
        x = rho @ z
        assert theta(server["model"]) == pytest.approx(x, abs=1e-11)
        assert states_of(clients, "z") == pytest.approx(z, abs=1e-11)


def test_whoever_takes_part_the_optimum_is_reached_and_the_mean_kept():
    A, a = arrays()
    rho, s = shares("examples", SIZES), 0.7
    algorithm = FedSplit(Quadratic(3), SGD(lr=0.25, steps=3, batch=None), s=s, weights="examples")
    for _, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 120, PAIRS, unreliable):
        assert theta(server["model"]) == pytest.approx(rho @ states_of(clients, "z"), abs=1e-12)
    best = meeting(A, a, rho)
    # a random block of a contraction a round: linear on average; measured 1e-5
    assert theta(server["model"]) == pytest.approx(best, abs=1e-3)
    assert states_of(clients, "z") == pytest.approx(best - s * gradients(A, a, best), abs=1e-2)


def test_an_exact_round_contracts_as_theorem_1_says():
    A, a = arrays()
    eigenvalues = np.linalg.eigvalsh(A)
    low, high = eigenvalues.min(), eigenvalues.max()
    s, root = 1 / np.sqrt(low * high), np.sqrt(high / low)
    best = meeting(A, a, np.ones(4))
    rest = best - s * gradients(A, a, best)
    local = SGD(lr=0.25, momentum=0.3, steps=200, batch=None, tolerance=1e-14)
    gaps = [np.linalg.norm(rest)]
    for _, _, clients, _ in rounds_of(FedSplit(Quadratic(3), local, s=s), federation_of(A, a), 6):
        gaps.append(np.linalg.norm(states_of(clients, "z") - rest))
    ratios = np.array(gaps[1:]) / gaps[:-1]
    assert ratios.max() <= (root - 1) / (root + 1) + 1e-9
    assert gaps[-1] < gaps[0]


def test_a_step_that_is_not_above_zero_is_refused():
    for s in (0, -1.0, float("inf")):
        with pytest.raises(ValueError, match=r"FedSplit's s must be above 0 and finite; given"):
            FedSplit(Quadratic(), SGD(steps=1), s=s)
