"""ProxSkip (Scaffnew): its fixed point and invariant, its iterations in numpy, and the acceleration it is known for."""

from collections import Counter

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, THREE, meeting, scalars, shares
from stepwise import PAIRS, arrays, federation_of, gradients, rounds_of, states_of, theta, unreliable

from archipel import SGD, ClientData, Examples, ProxSkip, fit
from archipel.core import keys
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic

ROUNDING = 1e-13
"""What rounding may leave of a sum that is 0: some hundred operations in float64 on numbers below 8, each off by
at most 2⁻⁵³ of its value."""


def skip(d=1, *, lr=0.1, **settings):
    return ProxSkip(Quadratic(d), SGD(lr=lr, steps=1, batch=None), **settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_three_scalar_clients_end_at_two(engine):
    run = fit(skip(lr=0.25, p=0.5), scalars(*THREE), rounds=70, setting=Setting(engine=ENGINES[engine]))
    # An iteration shrinks Ψ by 1 − min(γμ, p²) = 3/4 in expectation: in 140 of them by 3e-18, and its root by 2e-9.
    assert run.server["model"]["theta"].item() == pytest.approx(2, abs=1e-7)
    assert states_of(run.clients, "h")[:, 0] == pytest.approx(np.array([2, 2, -4]), abs=1e-7)


def test_iterations_are_those_of_the_paper():
    (A, a), gamma, p, coins = arrays(), 0.2, 0.4, [0, 0, 1, 1, 0, 1, 0, 0, 0, 1]
    rho, x, h, expected = shares("examples", SIZES), np.zeros((4, 3)), np.zeros((4, 3)), []
    for coin in coins:
        end = x - gamma * (gradients(A, a, x) - h)
        x = np.tile(rho @ (end - gamma / p * h), (4, 1)) if coin else end
        h = h + p / gamma * (x - end)
        if coin:
            expected.append((x[0], h))
    algorithm = skip(3, lr=gamma, p=p, weights="examples", coins=coins)
    found = list(rounds_of(algorithm, federation_of(A, a, SIZES), 4))
    for (x, h), (_, server, clients, _) in zip(expected, found, strict=True):
        assert theta(server["model"]) == pytest.approx(x, abs=1e-13)
        assert states_of(clients, "h") == pytest.approx(h, abs=1e-12)
    assert [info["steps"] for *_, info in found] == [3, 1, 2, 4]


def test_the_sum_of_h_stays_zero_whoever_takes_part():
    A, a = arrays()
    rho = shares("examples", SIZES)
    algorithm = skip(3, lr=0.2, p=0.4, weights="examples")
    for _, _, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 30, PAIRS, unreliable):
        assert rho @ states_of(clients, "h") == pytest.approx(np.zeros(3), abs=1e-12)
    assert abs(states_of(clients, "h")).max() > 0.1


class Losing:
    """Loses one of the two exchanges of a round, the training (0) or the correction (1), with some clients."""

    def __init__(self, lost):
        self.lost, self.asked = lost, Counter()

    def __call__(self, round, client):
        self.asked[round, client] += 1
        return (round, client, self.asked[round, client] - 1) not in self.lost


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_whose_training_was_lost_is_not_corrected(engine):
    rho = shares("examples", SIZES[:3])
    for rounds in range(2, 5):
        algorithm = skip(p=0.5, weights="examples", coins=(1,) * 4)
        answers = Losing({(1, 2, 0)})
        run = fit(
            algorithm,
            scalars(*THREE, SIZES[:3]),
            rounds=4,
            until=rounds,
            answers=answers,
            setting=Setting(engine=ENGINES[engine]),
        )
        assert rho @ states_of(run.clients, "h")[:, 0] == pytest.approx(0, abs=ROUNDING)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_correction_that_was_lost_is_made_when_the_client_is_back(engine):
    rho, sums = shares("examples", SIZES[:3]), []
    # Client 2 misses the corrections of rounds 1 and 3, and in round 2 answers nothing: its debt of round 1 stays.
    lost = {(1, 2, 1), (2, 2, 0), (2, 2, 1), (3, 2, 2)}
    for rounds in range(1, 7):
        run = fit(
            skip(p=0.5, weights="examples", coins=(1,) * 400),
            scalars(*THREE, SIZES[:3]),
            rounds=400,
            until=rounds,
            answers=Losing(lost),
            setting=Setting(engine=ENGINES[engine]),
        )
        sums.append(rho @ states_of(run.clients, "h")[:, 0])
        assert ("owed" in run.server) == (rounds in (2, 3, 4))
    assert sums[0] == pytest.approx(0, abs=ROUNDING)
    assert min(abs(sums[1]), abs(sums[2]), abs(sums[3])) > 1e-3
    assert sums[4:] == pytest.approx([0, 0], abs=ROUNDING)


def test_lost_corrections_leave_the_end_where_it_is():
    rho = shares("examples", SIZES[:3])
    A, a = (np.array(t) for t in THREE)
    lost = {(t, t % 3, 1) for t in range(60)}
    run = fit(skip(p=0.5, weights="examples"), scalars(*THREE, SIZES[:3]), rounds=400, answers=Losing(lost))
    best = (rho * A * a).sum() / (rho * A).sum()
    assert theta(run.server["model"])[0] == pytest.approx(best, abs=1e-6)
    assert states_of(run.clients, "h")[:, 0] == pytest.approx(A * (best - a), abs=1e-6)


def test_the_optimum_is_a_fixed_point_whatever_the_number_of_steps():
    # From θ* with h_k = ∇f_k(θ*) nobody moves.
    A, a = arrays()
    best = meeting(A, a, np.ones(4))
    algorithm, federation = skip(3, lr=0.2, p=0.4), federation_of(A, a)
    model = {"theta": torch.tensor(best)}
    message = {"model": model, "lr": torch.tensor(0.2, dtype=torch.float64), "steps": torch.tensor(7)}
    for client, gradient in zip(federation.clients, gradients(A, a, best), strict=True):
        state = {"h": {"theta": torch.tensor(gradient)}, "end": model, "waits": torch.tensor(0.0)}
        _, reply = algorithm.train(state, message, ClientData(Examples.of(client.train)), keys.key(0))
        assert theta(reply["model"]) == pytest.approx(best, abs=1e-14)


def test_to_communicate_always_is_gradient_descent():
    A, a = arrays()
    x = np.zeros(3)
    for _, server, _, _ in rounds_of(skip(3, lr=0.2, p=1.0), federation_of(A, a), 5):
        x = x - 0.2 * gradients(A, a, x).mean(0)
        assert theta(server["model"]) == pytest.approx(x, abs=1e-13)


def conditioned(kappa, m=2, d=4, seed=3):
    """Clients with L = 1 and μ = 1/κ in rotated bases, but for the slowest direction, which they share."""
    generator = np.random.default_rng(seed)
    A = []
    for _ in range(m):
        turn = np.eye(d)
        turn[1:, 1:] = np.linalg.qr(generator.normal(size=(d - 1, d - 1)))[0]
        A.append(turn @ np.diag(np.geomspace(1 / kappa, 1, d)) @ turn.T)
    return np.stack(A), generator.normal(size=(m, d))


def communications(kappa, p, shrunk=1e-5):
    """Rounds until Ψ has shrunk, and the mean of ln Ψ's fall per iteration against theory's."""
    (A, a), gamma = conditioned(kappa), 1.0
    best = meeting(A, a, np.ones(len(A)))
    rest = gradients(A, a, best)
    start = len(A) * best @ best + (gamma / p) ** 2 * np.sum(rest**2)
    algorithm = skip(4, lr=gamma, p=p)
    for t, (_, server, clients, _) in enumerate(rounds_of(algorithm, federation_of(A, a), 10_000)):
        gap = theta(server["model"]) - best
        psi = len(A) * gap @ gap + (gamma / p) ** 2 * np.sum((states_of(clients, "h") - rest) ** 2)
        if psi < shrunk * start:
            return t + 1, np.log(start / psi) / int(server["iteration"])
    raise AssertionError("no convergence")


def test_communication_grows_as_the_root_of_the_condition_number():
    # Theorem 3.6 with γ = 1/L, p = 1/√κ: Ψ shrinks by 1 − 1/κ an iteration, in κ ln(1/ε) iterations of which √κ ln(1/ε)
    # communicate: slope 1/2. Coins decide how many those are: 35, 69, 138 on average, ± their root, which moves
    # the slope by 0.2/ln 16 = 0.07. Gradient descent would have slope 1.
    kappas = np.array([9, 36, 144])
    rounds, rates = zip(*(communications(kappa, kappa**-0.5) for kappa in kappas), strict=True)
    slope = np.polyfit(np.log(kappas), np.log(rounds), 1)[0]
    assert slope == pytest.approx(0.5, abs=0.14)
    # The rate is at least the theorem's, up to the noise of a run (its bound is on the mean).
    assert all(rate > 0.9 / kappa for rate, kappa in zip(rates, kappas, strict=True))
    assert communications(9, 1.0)[0] > 1.5 * rounds[0]


def test_the_number_of_steps_is_geometric():
    algorithm, n = skip(p=0.2), 800
    steps = np.array([algorithm.iterations(0, keys.fold(keys.key(0), i)) for i in range(n)])
    # mean 1/p = 5 and P(1) = p, within five standard errors
    assert abs(steps.mean() - 5) < 5 * np.sqrt(0.8) / 0.2 / np.sqrt(n)
    assert abs((steps == 1).mean() - 0.2) < 5 * np.sqrt(0.16 / n)
    assert steps.min() == 1


def test_a_round_costs_one_model_up_and_two_down():
    run = fit(skip(3, p=0.5), federation_of(*arrays()), rounds=2, setting=Setting(engine="loop"))
    model, number = 3 * 8, 8
    assert [r["uplink"] for r in run.history] == [4 * (model + number)] * 2  # the loss is a number
    assert [r["downlink"] for r in run.history] == [4 * (2 * model + 2 * number)] * 2  # lr and the steps


def test_what_does_not_fit_is_refused():
    for p in (0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"ProxSkip's p must lie in \(0, 1\]; given"):
            skip(p=p)
    with pytest.raises(
        ValueError, match=r"momentum=0 and lr above 0, .* given momentum=0.9, lr=0.1 and tolerance=None"
    ):
        ProxSkip(Quadratic(), SGD(lr=0.1, steps=1, momentum=0.9))
    with pytest.raises(ValueError, match=r"coins hold no communication \(1\) from iteration 2 on"):
        fit(skip(coins=[0, 1, 0, 0]), scalars(*THREE), rounds=2)
