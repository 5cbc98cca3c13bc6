"""SCAFFOLD: the common optimum from drifting clients, its invariant, and its steps in numpy."""

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, THREE, meeting, scalars, shares
from stepwise import PAIRS, arrays, federation_of, gradients, rounds_of, states_of, theta, unreliable
from torch import nn

from archipel import SCAFFOLD, SGD, FedAvg, classification, fit
from archipel.core.trees import flatten, unflatten
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic


def scaffold(d=1, *, lr=0.1, steps=5, **settings):
    return SCAFFOLD(Quadratic(d), SGD(lr=lr, steps=steps, batch=None), **settings)


def shrinkage(A, lr, steps):
    """The spectral radius of a round on scalar clients, as a linear map of (θ, c_1, …, c_m) with all a_k = 0: a local
    run ends at y_k = s_k + (1 − ηA_k)^K (θ − s_k), with s_k = (c_k − c)/A_k where its corrected gradient vanishes.
    """
    m, A = len(A), np.array(A)
    x, controls = np.eye(m + 1)[0], np.eye(m + 1)[1:]
    c = controls.mean(0)
    stationary, q = (controls - c) / A[:, None], ((1 - lr * A) ** steps)[:, None]
    y = stationary + q * (x - stationary)
    after = np.vstack([y.mean(0), controls - c + (x - y) / (steps * lr)])
    return abs(np.linalg.eigvals(after)).max()


@pytest.mark.parametrize(("steps", "rounds"), [(1, 90), (4, 40), (10, 60)])
def test_three_scalar_clients_meet_at_the_optimum_however_many_steps_they_make(steps, rounds):
    run = fit(scaffold(steps=steps), scalars(*THREE), rounds=rounds, setting=Setting(engine="loop"))
    left = 10 * shrinkage(THREE[0], 0.1, steps) ** rounds  # of gaps of up to 4
    assert left < 1e-8
    assert run.server["model"]["theta"].item() == pytest.approx(2, abs=left + 1e-13)
    # c_k are the gradients there, A (θ* − a), and their mean is 0
    assert states_of(run.clients, "control")[:, 0] == pytest.approx(np.array([2, 2, -4]), abs=10 * left + 1e-12)
    assert run.server["control"]["theta"].item() == pytest.approx(0, abs=10 * left + 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_vector_clients_of_unequal_weight(weights, engine):
    A, a = arrays()
    run = fit(
        scaffold(3, lr=0.2, steps=2, weights=weights),
        federation_of(A, a, SIZES),
        rounds=60,
        setting=Setting(engine=ENGINES[engine]),
    )
    expected = meeting(A, a, shares(weights, SIZES))
    # eigenvalues of the mean above 0.7: two steps shrink by (1 − 0.2 · 0.7)² = 0.74 a round, to 1e-8 in 60
    assert theta(run.server["model"]) == pytest.approx(expected, abs=1e-6)
    assert states_of(run.clients, "control") == pytest.approx(gradients(A, a, expected), abs=1e-5)
    other = shares("uniform" if weights == "examples" else "examples", SIZES)
    assert abs(expected - meeting(A, a, other)).max() > 1e-2  # the test could tell


def test_partial_participation_keeps_the_mean_and_the_optimum():
    A, a = arrays()
    rho = shares("examples", SIZES)
    algorithm = scaffold(3, lr=0.2, steps=2, weights="examples")
    for _, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 250, PAIRS, unreliable):
        control = states_of(clients, "control")
        # the server's c is everybody's mean in every round, sampled and answering or not: float64 sums of a few numbers
        assert theta(server["control"]) == pytest.approx(rho @ control, abs=1e-13)
    assert theta(server["model"]) == pytest.approx(meeting(A, a, rho), abs=1e-6)  # linear; measured 1e-9


@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_are_those_of_the_paper(option):
    (A, a), lr, steps, rate = arrays(), 0.1, 3, 0.7
    x, c, control, rho = np.zeros(3), np.zeros(3), np.zeros((4, 3)), shares("examples", SIZES)
    algorithm = scaffold(3, lr=lr, steps=steps, server_rate=rate, weights="examples", option=option)
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 6, PAIRS):
        y = np.tile(x, (4, 1))
        for _ in range(steps):
            y = y - lr * (gradients(A, a, y) - control + c)
        new = control - c + (x - y) / (steps * lr) if option == "II" else gradients(A, a, np.tile(x, (4, 1)))
        moves, changes = (y - x)[asked], (new - control)[asked]
        x = x + rate * np.average(moves, axis=0, weights=rho[asked])
        c = c + rho[asked] @ changes
        control[asked] = new[asked]
        assert theta(server["model"]) == pytest.approx(x, abs=1e-13)
        assert theta(server["control"]) == pytest.approx(c, abs=1e-13)
        assert states_of(clients, "control") == pytest.approx(control, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_option_i_ends_at_the_optimum_too_with_the_gradients_there(engine):
    A, a = arrays()
    algorithm = scaffold(3, lr=0.2, steps=2, weights="examples", option="I")
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=60, setting=Setting(engine=ENGINES[engine]))
    expected = meeting(A, a, shares("examples", SIZES))
    # as for option II: two steps shrink by 0.74 a round, to 1e-8 in 60
    assert theta(run.server["model"]) == pytest.approx(expected, abs=1e-6)
    assert states_of(run.clients, "control") == pytest.approx(gradients(A, a, expected), abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_option_i_takes_the_gradient_of_all_examples_where_the_run_started(uneven, engine):
    task = classification(nn.Linear(3, 4), uneven)
    algorithm = SCAFFOLD(task, SGD(lr=0.1, epochs=2, batch=4, weight_decay=0.1), option="I")
    start = fit(FedAvg(task, SGD(lr=0.0, steps=1)), uneven, rounds=1).server["model"]  # where all methods start
    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine=ENGINES[engine]))
    flat = {name: values.clone().requires_grad_() for name, values in flatten(start).items()}
    for client, state in zip(uneven.clients, run.clients, strict=True):
        losses, _ = task.loss(unflatten(flat), client.train)
        penalty = 0.05 * sum(values.square().sum() for values in flat.values())
        expected = torch.autograd.grad(losses.mean() + penalty, list(flat.values()))
        for found, gradient in zip(flatten(state["control"]).values(), expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)  # float32 sums in another order


def test_the_first_round_is_that_of_fedavg(uneven):
    task, local = classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=2, batch=4)
    one = fit(SCAFFOLD(task, local, weights="examples"), uneven, rounds=1, setting=Setting(engine="loop")).server[
        "model"
    ]
    other = fit(FedAvg(task, local), uneven, rounds=1, setting=Setting(engine="loop")).server["model"]
    one, other = flatten(one), flatten(other)
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("engine", ENGINES)
def test_uneven_clients_divide_by_the_steps_they_made(engine):
    A, a = arrays()
    algorithm = SCAFFOLD(Quadratic(3), SGD(lr=0.1, epochs=2, batch=2))
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=1, setting=Setting(engine=ENGINES[engine]))
    for k, client in enumerate(run.clients):
        y, steps, seen = np.zeros(3), 2 * -(-SIZES[k] // 2), []
        for _ in range(steps):  # all examples of a client are alike, and so are its minibatches
            seen.append(A[k] @ (y - a[k]))
            y = y - 0.1 * seen[-1]
        assert theta(client["control"]) == pytest.approx(np.mean(seen, axis=0), abs=1e-13)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"SCAFFOLD's server_rate must be above 0 and finite; given 0"):
        scaffold(server_rate=0)
    with pytest.raises(ValueError, match=r"SCAFFOLD's option must be 'I' or 'II'; given 1"):
        scaffold(option=1)
    for local in (SGD(lr=0.1, steps=1, momentum=0.9), SGD(lr=0.0, steps=1), SGD(steps=1, tolerance=0.1)):
        with pytest.raises(
            ValueError, match=r"SCAFFOLD reads gradients .* momentum=0 and lr above 0, without a tolerance; given"
        ):
            SCAFFOLD(Quadratic(), local)
