"""pFedMe: fixed points with local rounds, inexact inner solves by hand, and whose model is personal."""

import numpy as np
import pytest
import torch
from quadratics import (
    ENGINES,
    SIZES,
    THREE,
    TWO,
    a_round,
    cohorts,
    meeting,
    of_clients,
    of_server,
    power,
    proximal_map,
    scalars,
    shares,
    times,
    vectors,
)
from torch import nn

from archipel import SGD, Federation, PFedMe, Sample, classification, fit
from archipel.data import Client
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation

EXACT = SGD(lr=0.26, steps=200, batch=None, tolerance=1e-11)


@pytest.mark.parametrize(
    ("problem", "penalty", "theta", "personal", "rounds"),
    [(TWO, 2.0, 2 / 3, (4 / 9, 8 / 9), 30), (THREE, 1.0, 92 / 59, (46 / 59, 70 / 59, 160 / 59), 20)],
)
def test_the_fixed_points_on_paper(problem, penalty, theta, personal, rounds):
    algorithm = PFedMe(Quadratic(), EXACT, penalty, rate=1 / penalty, local_rounds=1)
    run = fit(algorithm, scalars(*problem), rounds=rounds, setting=Setting(engine=Loop))
    # ηλ = 1 is exact proximal averaging: contractions by 1 − mean M, 1/2 and 0.34
    assert of_server(run) == pytest.approx(theta, abs=1e-8)
    assert of_clients(run, "personal")[:, 0] == pytest.approx(personal, abs=1e-8)


@pytest.mark.parametrize(("local_rounds", "value"), [(5, 1.530472), (20, 1.445710)])
def test_local_rounds_pull_the_shared_model(local_rounds, value):
    A, a = map(np.array, THREE)
    M = A / (A + 1)
    N = 1 - (1 - 0.1 * M) ** local_rounds
    theta = N @ a / N.sum()
    assert theta == pytest.approx(value, abs=1e-6)  # docs/methods/personalised.md
    algorithm = PFedMe(Quadratic(), EXACT, penalty=1.0, rate=0.1, local_rounds=local_rounds)
    server, clients = a_round(algorithm, scalars(*THREE), [theta])
    # Rounds are contractions by 1 − mean N. Inner solves end within 1e-11.
    assert server["model"]["theta"].item() == pytest.approx(theta, abs=1e-10)
    # The personal models are the last proximal points, of ω a local round before its end.
    expected = a + (1 - M) * (1 - 0.1 * M) ** (local_rounds - 1) * (theta - a)
    assert [client["personal"]["theta"].item() for client in clients] == pytest.approx(expected, abs=1e-10)


def simulated(A, a, rho, ids_of_rounds, *, penalty, rate, local_rounds, lr, steps, mixing, everybody=False):
    """From θ = 0; K steps from ω shrink the way to the proximal point by B^K: they end at ω − (1 − B^K) M (ω − a)."""
    one = np.eye(A.shape[-1])
    solve = (one - power(one - lr * (A + penalty * one), steps)) @ proximal_map(A, penalty)
    theta, personal = np.zeros(A.shape[-1]), np.zeros(a.shape)
    for ids in ids_of_rounds:
        omega = np.tile(theta, (len(a), 1))
        for _ in range(local_rounds):
            near = omega - times(solve, omega - a)
            omega = omega - rate * penalty * (omega - near)
        who = slice(None) if everybody else ids
        personal[who] = near[who]
        theta = (1 - mixing) * theta + mixing * np.average(omega[ids], axis=0, weights=rho[ids])
    return theta, personal


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("participants", "weights"), [("sampled", "examples"), ("all", "uniform")])
def test_inexact_solves_by_hand_with_partial_participation_and_mixing(engine, participants, weights):
    (A, a), cohort = vectors(), Sample(count=2)
    federation = quadratic_federation(A, a, SIZES)
    setting = {"penalty": 1.5, "rate": 0.4, "local_rounds": 2, "mixing": 1.4}
    local = SGD(lr=0.1, steps=3, batch=None)
    algorithm = PFedMe(Quadratic(3), local, **setting, participants=participants, weights=weights)
    run = fit(algorithm, federation, rounds=3, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    theta, personal = simulated(
        A.numpy(),
        a.numpy(),
        shares(weights, SIZES),
        cohorts(cohort, federation, 3),
        lr=0.1,
        steps=3,
        everybody=participants == "all",
        **setting,
    )
    assert of_server(run) == pytest.approx(theta, abs=1e-13)
    assert of_clients(run, "personal") == pytest.approx(personal, abs=1e-13)
    # Only the sampled send: a model of three float64 and a loss.
    assert [record["uplink"] for record in run.history] == [2 * 4 * 8] * 3


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_vector_clients_meet_where_the_weights_say(weights):
    A, a = vectors()
    algorithm = PFedMe(Quadratic(3), SGD(lr=0.3, steps=12, batch=None), 1.0, 1.0, 1, weights=weights)
    # Twelve steps leave 0.55^12 = 8e-4 of the way to the proximal point: (1 − B^K) M stands for M.
    B = power(np.eye(3) - 0.3 * (A.numpy() + np.eye(3)), 12)
    theta = meeting((np.eye(3) - B) @ proximal_map(A, 1.0), a, shares(weights, SIZES))
    server, _ = a_round(algorithm, quadratic_federation(A, a, SIZES), theta)
    assert server["model"]["theta"].numpy() == pytest.approx(theta, abs=1e-13)
    assert abs(theta - meeting(proximal_map(A, 1.0), a, shares("uniform", SIZES))).max() > 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_penalty_the_shared_model_stays_and_clients_train_from_it(engine):
    algorithm = PFedMe(Quadratic(), SGD(lr=0.1, steps=7, batch=None), 0.0, rate=0.5, local_rounds=2)
    run = fit(algorithm, scalars(*THREE), rounds=2, setting=Setting(engine=ENGINES[engine]))
    A, a = map(np.array, THREE)
    assert of_server(run) == 0
    assert of_clients(run, "personal")[:, 0] == pytest.approx(a - (1 - 0.1 * A) ** 7 * a, abs=1e-14)


def test_a_large_penalty_is_gradient_descent_on_one_model():
    # λ → ∞ with ηλ = 1: the proximal point is a gradient step of size 1/λ.
    solver = SGD(lr=1e-4, steps=1, batch=None)
    run = fit(
        PFedMe(Quadratic(), solver, 1e4, 1e-4, local_rounds=1), scalars(*THREE), rounds=5, setting=Setting(engine=Loop)
    )
    assert of_clients(run, "personal")[:, 0] == pytest.approx(of_server(run)[0], abs=2e-3)
    A, a = map(np.array, THREE)
    theta = 0.0
    for _ in range(5):
        theta -= 1e-4 * np.mean(A * (theta - a))
    assert of_server(run) == pytest.approx(theta, rel=1e-9)


def three_examples():
    """A client whose examples have the minima 1, 10 and 100, and one like it."""
    x, y = torch.ones(3, 1, 1, dtype=torch.float64), torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64)
    clients = tuple(Client(n, {"x": x, "y": y}, {"x": x[:0], "y": y[:0]}) for n in ("a", "b"))
    return Federation("three", clients, scalars([1.0], [0.0]).inputs, None)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_inner_problem_keeps_its_minibatch(engine):
    # λ = 1, one example: the proximal point at ω is (y + ω)/2, and with η = 1 that is where ω goes.
    algorithm = PFedMe(Quadratic(), SGD(lr=0.5, steps=5, batch=1), 1.0, 1.0, local_rounds=3)
    run = fit(algorithm, three_examples(), rounds=1, setting=Setting(engine=ENGINES[engine]))
    orders = [(x, y, z) for x in (1, 10, 100) for y in (1, 10, 100) for z in (1, 10, 100) if len({x, y, z}) == 3]
    possible = [x / 8 + y / 4 + z / 2 for x, y, z in orders]  # each example once, in some order
    for found in of_clients(run, "personal")[:, 0]:
        assert min(abs(found - value) for value in possible) < 1e-12


def test_a_minibatch_is_augmented_once(uneven):
    seen = []

    def watch(x, key):
        seen.append(int(key))
        return x

    task = classification(nn.Linear(3, 4), uneven)
    algorithm = PFedMe(task, SGD(lr=0.1, steps=5, batch=4, augment=watch), 1.0, 0.1, local_rounds=3)
    fit(algorithm, uneven, rounds=1, setting=Setting(engine=Loop))
    assert len(seen) == len(set(seen)) == 4 * 3


def test_the_personal_model_is_not_the_one_that_is_sent():
    run = fit(PFedMe(Quadratic(), EXACT, 1.0, 0.1, 2), scalars([2.0], [3.0]), rounds=1, setting=Setting(engine=Loop))
    # The proximal point at ω is (6 + ω)/3, and ω moves a tenth of the way: ω = 0, 0.2, 0.2 + (6.2/3 − 0.2)/10.
    assert of_clients(run, "personal")[0] == pytest.approx(6.2 / 3, abs=1e-9)
    assert of_server(run) == pytest.approx(0.2 + 0.1 * (6.2 / 3 - 0.2), abs=1e-9)
    x = torch.zeros(1, 1, 1)
    assert run.algorithm.predict(run.server, run.clients[0], x).item() == pytest.approx(6.2 / 3)
    assert run.algorithm.predict_global(run.server, x).item() == of_server(run)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"penalty": -1.0}, r"PFedMe's penalty must be 0 or above and finite; given -1\.0"),
        ({"rate": 0.0}, r"PFedMe's rate must be above 0 and finite; given 0\.0"),
        ({"mixing": 0.0}, "PFedMe's mixing must be above 0"),
        ({"local_rounds": 0}, "PFedMe's local_rounds must be a whole number of at least 1; given 0"),
        ({"local_rounds": 2.5}, "PFedMe's local_rounds must be a whole number"),
        ({"participants": "some"}, "PFedMe's participants must be 'sampled' or 'all'; given 'some'"),
        ({"local": SGD(steps=1, momentum=0.5, keep_momentum=True)}, "set keep_momentum=False"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        PFedMe(**({"task": Quadratic(), "local": EXACT} | setting))
