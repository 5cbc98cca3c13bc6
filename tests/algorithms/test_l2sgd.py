"""L2SGD: the trajectory on paper, the update that vanishes at the optimum, and coins that are tossed fairly."""

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
    proximal_map,
    scalars,
    shares,
    times,
    vectors,
)

from archipel import L2SGD, SGD, FedAvg, Sample, fit
from archipel.algorithms.l2sgd import runs
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation


def stepping(lr):
    return SGD(lr=lr, steps=1, batch=None)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trajectory_on_paper(engine):
    algorithm = L2SGD(Quadratic(), stepping(0.3), penalty=1.0, p=0.4, coins=(0, 0, 1, 1, 0))
    run = fit(algorithm, scalars(*THREE), rounds=2, setting=Setting(engine=ENGINES[engine]))
    expected = (0.39158951, 0.85493827, 2.6566358)  # docs/methods/personalised.md
    assert of_clients(run, "model")[:, 0] == pytest.approx(expected, abs=1e-7)
    assert [record["iterations"] for record in run.history] == [4, 1]
    # Two exchanges for five steps: a model (and a loss) up; the second mean isn't used and isn't sent.
    assert [record["uplink"] for record in run.history] == [3 * 16] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_towards_a_weighted_mean_move_it(engine):
    (A, a), sizes, lr, p = THREE, [1, 2, 5], 0.2, 0.4
    federation = scalars(A, a, sizes)
    algorithm = L2SGD(Quadratic(), stepping(lr), penalty=1.0, p=p, weights="examples", coins=(0, 1, 1))
    run = fit(algorithm, federation, rounds=1, setting=Setting(engine=ENGINES[engine]))
    rho, theta = np.array(sizes) / 8, np.zeros(3)
    theta = theta - lr * rho / (1 - p) * np.array(A) * (theta - np.array(a))
    for _ in range(2):  # the gradient of λ/2 Σ ρ_k ‖θ_k − θ̄‖² as it is, in every step
        theta = theta - lr / p * rho * (theta - rho @ theta)
    assert of_clients(run, "model")[:, 0] == pytest.approx(theta, abs=1e-12)
    assert theta == pytest.approx((0.18691, 0.48889, 1.99087), abs=5e-6)  # docs/methods/personalised.md
    assert of_server(run) == pytest.approx(rho @ theta, abs=1e-12)


def optimum(A, a, rho, penalty):
    """The personal models, and their mean."""
    M = proximal_map(A, penalty)
    theta = meeting(M, a, rho)
    return theta - times(M, theta - np.asarray(a)), theta


PROBLEMS = {
    "two": (*(np.array(t) for t in TWO), 2.0, (4 / 9, 8 / 9)),
    "three": (*(np.array(t) for t in THREE), 1.0, (46 / 59, 70 / 59, 160 / 59)),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_optima_on_paper(problem):
    A, a, penalty, personal = PROBLEMS[problem]
    found, mean = optimum(A[:, None, None], a[:, None], shares("uniform", a), penalty)
    assert found[:, 0] == pytest.approx(personal, abs=1e-12)
    assert mean == pytest.approx(np.mean(personal), abs=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.7])
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_the_update_averaged_over_the_coin_vanishes_at_the_optimum(weights, p):
    A, a = vectors()
    rho, penalty, lr = shares(weights, SIZES), 1.3, 0.05
    personal, mean = optimum(A, a, rho, penalty)
    assert rho @ personal == pytest.approx(mean, abs=1e-12)
    algorithm = L2SGD(Quadratic(3), stepping(lr), penalty, p, weights=weights)
    for k in range(4):
        client = {"model": {"theta": torch.tensor(personal[k])}}
        data = ClientData(Examples.of({"x": A[k][None], "y": a[k][None]}))
        message = {"steps": torch.tensor(1), "share": torch.tensor(rho[k])}
        with torch.no_grad():
            alone, _ = algorithm.descend(
                client, message | {"lr": torch.tensor(lr / (1 - p), dtype=torch.float64)}, data, keys.key(0)
            )
            centre = {"mean": {"theta": torch.tensor(mean)}, "lr": torch.tensor(lr * penalty / p, dtype=torch.float64)}
            together, _ = algorithm.approach(client, message | centre, data, keys.key(0))
        moves = [state["model"]["theta"].numpy() - personal[k] for state in (alone, together)]
        assert abs(moves[0]).max() > 1e-3
        assert (1 - p) * moves[0] + p * moves[1] == pytest.approx(np.zeros(3), abs=1e-14)


def test_smaller_steps_end_nearer_to_the_optimum():
    # With coins that alternate there is a fixed point, which is O(η) away: halving η halves the distance.
    gaps = []
    for lr, rounds in ((0.3, 40), (0.15, 80)):
        algorithm = L2SGD(Quadratic(), stepping(lr), penalty=1.0, p=0.5, coins=(0, 1) * rounds)
        run = fit(algorithm, scalars(*THREE), rounds=rounds, setting=Setting(engine=Loop))
        gaps.append(np.linalg.norm(of_clients(run, "model")[:, 0] - np.array([46, 70, 160]) / 59))
    assert gaps[0] < 0.2
    assert gaps[0] / gaps[1] == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_vector_clients_by_hand_with_partial_participation(engine, weights):
    (A, a), cohort, p, lr, penalty = vectors(), Sample(count=2), 0.4, 0.3, 0.7
    federation, rho = quadratic_federation(A, a, SIZES), shares(weights, SIZES)
    coins = (1, 0, 0, 0, 1, 1, 0, 1, 0, 0)
    algorithm = L2SGD(Quadratic(3), stepping(lr), penalty, p, weights=weights, coins=coins)
    run = fit(algorithm, federation, rounds=4, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    A, a, theta = A.numpy(), a.numpy(), np.zeros((4, 3))
    for ids, (alone, together) in zip(cohorts(cohort, federation, 4), runs(coins), strict=True):
        for _ in range(alone):
            theta[ids] -= (lr * rho[:, None] / (1 - p) * times(A, theta - a))[ids]
        mean = np.average(theta[ids], axis=0, weights=rho[ids])
        for _ in range(together):
            theta[ids] -= (lr * penalty * rho[:, None] / p * (theta - mean))[ids]
            mean = np.average(theta[ids], axis=0, weights=rho[ids])
    assert of_clients(run, "model") == pytest.approx(theta, abs=1e-13)
    assert of_server(run) == pytest.approx(mean, abs=1e-13)


def test_without_a_penalty_everybody_descends_alone():
    algorithm = L2SGD(Quadratic(), stepping(0.3), penalty=0.0, p=0.25)
    run = fit(algorithm, scalars(*THREE), rounds=4, setting=Setting(engine=Loop))
    alone = sum(algorithm._runs(t, keys.fold(keys.key(0), "round", t))[0] for t in range(4))
    A, a = map(np.array, THREE)
    expected = a - (1 - 0.3 * A / (3 * 0.75)) ** alone * a
    assert of_clients(run, "model")[:, 0] == pytest.approx(expected, abs=1e-13)


def test_the_largest_penalty_is_federated_averaging():
    # ηλ/(Kp) = 1: a step towards the mean goes all the way.
    algorithm = L2SGD(Quadratic(), stepping(0.3), penalty=5.0, p=0.5, coins=(0, 1) * 6)
    run = fit(algorithm, scalars(*THREE), rounds=6, setting=Setting(engine=Loop))
    average = fit(FedAvg(Quadratic(), stepping(0.3 / 1.5)), scalars(*THREE), rounds=6, setting=Setting(engine=Loop))
    assert of_clients(run, "model") == pytest.approx(float(of_server(average)[0]), abs=1e-14)


@pytest.mark.parametrize("p", [0.2, 0.7])
def test_drawn_coins_turn_as_often_as_they_should(p):
    algorithm, n = L2SGD(Quadratic(), p=p), 1000
    drawn = np.array([algorithm._runs(0, keys.key(seed)) for seed in range(n)])
    assert drawn.min() == 1
    for lengths, q in zip(drawn.T, (p, 1 - p), strict=True):
        # geometric: mean 1/q, variance (1 − q)/q²
        assert abs(lengths.mean() - 1 / q) < 5 * np.sqrt((1 - q) / q**2 / n)
        assert abs(np.mean(lengths == 1) - q) < 5 * np.sqrt(q * (1 - q) / n)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / np.sqrt(n)
    # exchanges a step: p (1 − p)
    assert n / drawn.sum() == pytest.approx(p * (1 - p), rel=0.1)


def test_bytes_are_those_of_one_exchange_a_round():
    algorithm = L2SGD(Quadratic(), stepping(0.1), penalty=0.1, p=0.5)
    run = fit(algorithm, scalars(*THREE), rounds=30, setting=Setting(engine=Loop))
    assert {record["uplink"] for record in run.history} == {3 * 16}  # a model and a loss
    steps = sum(record["iterations"] for record in run.history)
    # 4 steps a round: the sum of 30 pairs of geometric lengths has the standard deviation √(30 · 4)
    assert abs(steps - 30 / (0.5 * 0.5)) < 5 * np.sqrt(30 * 4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_of_local_steps_passes_through_the_minibatches(engine):
    # Two examples each (minima 0 and 6, A = 1), one a step: both come, in some order.
    x, y = torch.ones(2, 1, 1).double(), torch.tensor([[0.0], [6.0]]).double()
    federation = scalars([1.0, 1.0], [0.0, 0.0], [2, 2])
    for client in federation.clients:
        client.train.update(x=x, y=y)
    algorithm = L2SGD(Quadratic(), SGD(lr=0.5, steps=1, batch=1), 0.0, 0.5, coins=(0, 0, 1))
    run = fit(algorithm, federation, rounds=1, setting=Setting(engine=ENGINES[engine]))
    # η/(K(1 − p)) = 0.5: 6 then 0 gives 1.5, 0 then 6 gives 3
    assert set(of_clients(run, "model")[:, 0]) <= {1.5, 3.0}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"p": 0.0}, r"L2SGD's p must lie in \(0, 1\); given 0\.0"),
        ({"p": 1.0}, r"L2SGD's p must lie in \(0, 1\)"),
        ({"p": float("nan")}, r"L2SGD's p must lie in \(0, 1\)"),
        ({"penalty": -0.5}, r"L2SGD's penalty must be 0 or above and finite; given -0\.5"),
        ({"local": SGD(steps=3)}, "give its local solver steps=1"),
        ({"local": SGD(epochs=1)}, "give its local solver steps=1"),
        ({"coins": (0, 2)}, r"coins must be 0 .* or 1 .*; given \(0, 2\)"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        L2SGD(Quadratic(), **setting)


def test_steps_that_jump_over_the_mean_and_coins_that_run_out_are_refused():
    with pytest.raises(ValueError, match=r"at most 1.*3 clients it is 1\.2\. Lower the learning rate to 0\.25"):
        fit(L2SGD(Quadratic(), stepping(0.3), penalty=6.0, p=0.5), scalars(*THREE), rounds=1)
    with pytest.raises(ValueError, match="2 coins make 1 rounds"):
        fit(L2SGD(Quadratic(), stepping(0.1), coins=(0, 1)), scalars(*THREE), rounds=2)
