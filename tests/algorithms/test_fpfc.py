"""FPFC: its penalty's proximal map by brute force, two clients on paper, and stationary points of the objective."""

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, scalars
from scipy.optimize import minimize_scalar
from stepwise import PAIRS, arrays, federation_of, gradients, rounds_of, states_of, unreliable
from torch import nn

from archipel import FPFC, SGD, classification, fit
from archipel.algorithms.fpfc import shrinkage
from archipel.core.pairs import lengths
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic

PENALTY = {"penalty": 1.0, "xi": 0.1, "a": 3.7}


def fpfc(d=1, *, lr=0.4, steps=3, **settings):
    return FPFC(Quadratic(d), SGD(lr=lr, steps=steps, batch=None), **(PENALTY | settings))


def slope(t, penalty, xi, a):
    """g'(t)."""
    return np.where(
        t <= xi, penalty * t / xi, np.where(t <= penalty, penalty, np.clip((a * penalty - t) / (a - 1), 0, None))
    )


def value(t, penalty, xi, a):
    """g(t), integrated by hand."""
    if t <= xi:
        return penalty * t**2 / (2 * xi)
    at_lambda = penalty * xi / 2 + penalty * (penalty - xi)
    if t <= penalty:
        return penalty * xi / 2 + penalty * (t - xi)
    t = min(t, a * penalty)
    return at_lambda + (a * penalty * (t - penalty) - (t**2 - penalty**2) / 2) / (a - 1)


@pytest.mark.parametrize(("rho", "a"), [(1.0, 3.7), (2.5, 2.0), (0.6, 3.7)])
def test_the_proximal_map_balances_the_slope_of_the_penalty(rho, a):
    settings = PENALTY | {"a": a}
    n = torch.linspace(0.001, a + 3, 5_000, dtype=torch.float64)
    t = (shrinkage(n, rho=rho, **settings) * n).numpy()
    # where t minimises g(t) + ρ/2 (t − n)², g'(t) = ρ (n − t)
    assert slope(t, **settings) == pytest.approx(rho * (n.numpy() - t), abs=1e-9)


@pytest.mark.parametrize(("rho", "a"), [(1.0, 3.7), (2.5, 2.0), (0.6, 3.7)])
def test_the_proximal_map_is_a_brute_force_minimum_in_all_four_branches(rho, a):
    settings = PENALTY | {"a": a}
    edges = [0.0, 0.1 + 1 / rho, 1 + 1 / rho, a, a + 3]
    for low, high in pairwise(edges):
        for n in np.linspace(low, high, 7)[1:-1]:  # none where ρ is so small that a branch is empty
            if high <= low:
                continue
            found = float(shrinkage(torch.tensor([n], dtype=torch.float64), rho=rho, **settings)) * n
            objective = lambda t, n=n: value(t, **settings) + rho / 2 * (t - n) ** 2  # noqa: E731
            best = minimize_scalar(objective, bounds=(0, n + 1), method="bounded", options={"xatol": 1e-10})
            grid = min(np.linspace(0, n + 1, 2001), key=objective)
            assert objective(found) <= min(best.fun, objective(grid)) + 1e-12
            assert found == pytest.approx(best.x, abs=1e-6)


def test_the_proximal_map_is_radial_and_continuous():
    n = torch.linspace(0, 6, 600_001, dtype=torch.float64)
    lengths_after = n * shrinkage(n, rho=1.0, **PENALTY)
    assert (lengths_after.diff() >= 0).all()
    assert lengths_after.diff().max() < 1e-4  # slopes up to 1/(1 − 1/2.7) = 1.6, of steps of 1e-5


@pytest.mark.parametrize(("gap", "expected"), [(0.5, 1 / 22), (1.5, 0.5), (3.0, 2.588235), (5.0, 5.0)])
def test_two_clients_end_where_the_paper_and_pencil_say(gap, expected):
    run = fit(fpfc(steps=3), scalars([1.0, 1.0], [0.0, gap]), rounds=60, setting=Setting(engine="loop"))
    ends = states_of(run.clients, "model")[:, 0]
    assert ends[1] - ends[0] == pytest.approx(expected, abs=1e-6)  # docs/methods/personalised.md
    assert ends.mean() == pytest.approx(gap / 2, abs=1e-6)


def stationarity(A, minima, ends, **settings):
    """The gradient of the objective: ∇f_i + 1/m Σ_j g'(‖ω_i − ω_j‖) (ω_i − ω_j)/‖ω_i − ω_j‖."""
    differences = ends[:, None] - ends[None]
    n = np.linalg.norm(differences, axis=-1, keepdims=True)
    pulls = slope(n, **settings) * differences / np.where(n > 0, n, 1)
    return gradients(A, minima, ends) + pulls.mean(1)


@pytest.mark.parametrize("engine", ENGINES)
def test_vector_clients_end_at_a_stationary_point(engine):
    A, a = arrays()
    a[1], a[3] = a[0] + 0.1, a[2] - 0.1  # two pairs
    run = fit(
        fpfc(3, lr=0.3, steps=2), federation_of(A, 3 * a, SIZES), rounds=45, setting=Setting(engine=ENGINES[engine])
    )
    ends = states_of(run.clients, "model")
    # linear: measured 3e-4 after 30 rounds, 4e-6 after 45
    assert stationarity(A, 3 * a, ends, **PENALTY) == pytest.approx(np.zeros((4, 3)), abs=1e-4)
    assert abs(gradients(A, 3 * a, ends)).max() > 0.1  # they aren't the local optima


@pytest.mark.parametrize(("pairs", "rounds"), [("both", 120), ("either", 100)])
def test_partial_participation_ends_at_a_stationary_point_too(pairs, rounds):
    A, a = arrays()
    *_, (_, _, clients, _) = rounds_of(fpfc(3, lr=0.3, steps=2, pairs=pairs), federation_of(A, a), rounds, PAIRS)
    # linear: a pair is updated every sixth round or five in six; measured 1e-3 and 2e-5
    ends = states_of(clients, "model")
    assert stationarity(A, a, ends, **PENALTY) == pytest.approx(np.zeros((4, 3)), abs=1e-2)


@pytest.mark.parametrize("pairs", ["both", "either"])
def test_rounds_are_those_of_the_page(pairs):
    """The page's program with θ and v both stored, for pairs of which both, or one, took part."""
    (A, a), rho, lr, m = arrays(), 1.3, 0.2, 4
    omega, theta, v, zeta = (np.zeros(shape) for shape in ((m, 3), (m, m, 3), (m, m, 3), (m, 3)))
    algorithm = fpfc(3, lr=lr, steps=2, rho=rho, pairs=pairs)
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, 2 * a), 8, PAIRS, unreliable):
        for i in asked:
            for _ in range(2):
                omega[i] -= lr * (A[i] @ (omega[i] - 2 * a[i]) + rho * (omega[i] - zeta[i]))
        for i in range(m):
            for j in range(i + 1, m):
                taking_part = (i in asked) + (j in asked)
                if taking_part >= (2 if pairs == "both" else 1):
                    delta = omega[i] - omega[j] + v[i, j] / rho
                    n = torch.tensor([np.linalg.norm(delta)])
                    theta[i, j] = float(shrinkage(n, rho=rho, **PENALTY)) * delta
                    v[i, j] += rho * (omega[i] - omega[j] - theta[i, j])
                    theta[j, i], v[j, i] = -theta[i, j], -v[i, j]
        zeta = (omega[None] + theta - v / rho).mean(1)
        assert states_of(clients, "model") == pytest.approx(omega, abs=1e-12)
        assert server["models"]["theta"].numpy() == pytest.approx(omega, abs=1e-12)
        length = lengths(server["pairs"])
        s = algorithm._shrinkage(length)
        centres = algorithm.centres(server["models"], server["pairs"], s, torch.arange(m))["theta"].numpy()
        assert centres == pytest.approx(zeta, abs=1e-12)
        i, j = np.triu_indices(m, 1)
        assert server["pairs"].numpy() == pytest.approx((theta + v / rho)[i, j], abs=1e-12)
        assert (s * length).numpy() == pytest.approx(np.linalg.norm(theta[i, j], axis=1), abs=1e-12)


def test_penalties_lead_from_local_optima_to_consensus():
    A, a = arrays()
    federation = federation_of(A, a)
    alone = fit(fpfc(3, lr=0.3, steps=2, penalty=1e-6, xi=1e-7), federation, rounds=60, setting=Setting(engine="loop"))
    assert states_of(alone.clients, "model") == pytest.approx(a, abs=1e-5)
    # λ/ξ is the pull's curvature: consensus up to ξ/λ of the gradients. ρ is between it and theirs.
    strong = {"penalty": 100.0, "xi": 0.5, "a": 3.7}
    together = fit(fpfc(3, lr=0.12, steps=4, rho=5.0, **strong), federation, rounds=60, setting=Setting(engine="loop"))
    ends = states_of(together.clients, "model")
    best = np.linalg.solve(A.sum(0), np.einsum("kij,kj->i", A, a))
    assert ends == pytest.approx(np.tile(best, (4, 1)), abs=0.05)
    assert stationarity(A, a, ends, **strong) == pytest.approx(np.zeros((4, 3)), abs=1e-3)  # measured 7e-5


def test_clusters_are_found_without_their_number():
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 7.0]])
    members = np.array([0, 1, 0, 2, 1, 2, 0])
    a = centres[members] + 0.05 * np.random.default_rng(0).normal(size=(7, 2))
    algorithm = fpfc(2, lr=0.3)
    run = fit(algorithm, federation_of(np.tile(np.eye(2), (7, 1, 1)), a), rounds=30, setting=Setting(engine="loop"))
    found = algorithm.clusters(run.server).numpy()
    assert [list(found).index(label) for label in found] == [list(members).index(label) for label in members]
    assert run.history[-1]["clusters"] == 3
    assert algorithm.clusters(run.server, tolerance=100.0).tolist() == [0] * 7
    assert len(set(algorithm.clusters(run.server, tolerance=0.0).tolist())) == 7
    # the far ones are left alone: clusters lie at their own means
    ends = states_of(run.clients, "model")
    for label in range(3):
        assert ends[members == label].mean(0) == pytest.approx(a[members == label].mean(0), abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_by_choice_clients_end_with_the_means_of_their_clusters(engine):
    a = [[0.0], [0.3], [6.0], [6.1], [0.2]]
    members = [[0, 1, 4], [2, 3]]
    federation = federation_of(np.ones((5, 1, 1)), np.array(a))
    own, merged = (
        fit(fpfc(final=final), federation, rounds=30, setting=Setting(engine=ENGINES[engine]))
        for final in ("own", "clusters")
    )
    before, after = states_of(own.clients, "model")[:, 0], states_of(merged.clients, "model")[:, 0]
    for cluster in members:
        assert len(set(after[cluster])) == 1
        assert len(set(before[cluster])) > 1  # ADMM's own are alike, not equal
        assert after[cluster[0]] == pytest.approx(before[cluster].mean(), abs=1e-12)
        # with equal curvatures a cluster that is left alone lies at the mean of its minima
        assert after[cluster[0]] == pytest.approx(np.mean([a[k] for k in cluster]), abs=1e-5)
    assert merged.server["models"]["theta"][:, 0].tolist() == after.tolist()
    assert [r["downlink"] for r in merged.history[:-1]] == [r["downlink"] for r in own.history[:-1]]
    assert merged.history[-1]["downlink"] - own.history[-1]["downlink"] == 5 * 8  # a model for each


def test_the_means_reach_those_who_did_not_take_part_too():
    A, a = np.ones((4, 1, 1)), np.array([[0.0], [0.1], [5.0], [5.1]])
    *_, (_, server, clients, _) = rounds_of(fpfc(final="clusters"), federation_of(A, a), 60, PAIRS)
    ends = states_of(clients, "model")[:, 0]
    assert ends[0] == ends[1]
    assert ends[2] == ends[3]
    assert server["models"]["theta"][:, 0].tolist() == ends.tolist()


def test_networks_cluster_too(uneven):
    algorithm = FPFC(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=8), penalty=0.3, xi=0.1)
    run = fit(algorithm, uneven, rounds=3)
    assert run.server["pairs"].shape == (6, 4 * (3 + 1) + 3 * (4 + 1))  # 3 inputs, 4 units, 3 classes
    assert len(algorithm.clusters(run.server)) == 4


def test_memory_is_said_before_it_is_taken(caplog, monkeypatch):
    with caplog.at_level(logging.INFO, logger="archipel"):
        fit(fpfc(3), federation_of(*arrays()), rounds=1)
    assert "FPFC keeps a model for each of 6 pairs of 4 clients: 0.0 MB" in caplog.text
    monkeypatch.setattr("os.sysconf", lambda name: 8)
    with pytest.raises(MemoryError, match=r"each of 6 pairs .* the machine has 0 MB. Take fewer clients"):
        fit(fpfc(3), federation_of(*arrays()), rounds=1, setting=Setting(engine="loop"))


def test_what_does_not_fit_is_refused():
    for settings, message in (
        ({"penalty": -1.0}, r"FPFC's penalty must be above 0 and finite; given -1"),
        ({"xi": 0.0}, r"FPFC's xi must be above 0 and finite; given 0"),
        ({"rho": 0.0}, r"FPFC's rho must be above 0"),
        ({"xi": 1.0}, r"FPFC's xi must lie below the penalty; given xi=1.0 and penalty=1.0"),
        ({"a": 2.0}, r"FPFC's a must lie above 1 \+ 1/rho = 2; given 2.0"),
        ({"rho": 0.1}, r"FPFC's a must lie above 1 \+ 1/rho = 11; given 3.7"),
        ({"final": "mean"}, r"FPFC's final must be 'own' or 'clusters'; given 'mean'"),
        ({"pairs": "some"}, r"FPFC's pairs must be 'both' or 'either'; given 'some'"),
    ):
        with pytest.raises(ValueError, match=message):
            fpfc(**settings)
    with pytest.raises(ValueError, match="keep_momentum=False"):
        FPFC(Quadratic(), SGD(steps=1, momentum=0.5, keep_momentum=True))
