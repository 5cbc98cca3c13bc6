"""pFedMac: its limits on paper, dense, sparse and in three tiers; and an error where its objective has no minimum."""

import numpy as np
import pytest
import torch
from quadratics import SIZES, THREE, meeting, power, scalars, shares
from scipy.optimize import minimize
from stepwise import PAIRS, arrays, federation_of, rounds_of, states_of, theta, unreliable
from torch import nn

from archipel import SGD, DivergenceError, PFedMac, classification, fit
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic

# Heavy-ball's best for curvatures from 1 to 4: it shrinks by 1/3 a step.
EXACT = SGD(lr=4 / 9, momentum=1 / 9, steps=25, batch=None, tolerance=1e-10)


def curved():
    """``arrays`` with curvatures from 2 up, and heavy-ball's best solver for them: a step leaves a quarter."""
    A, a = arrays()
    A = A + 1.5 * np.eye(3)
    low, high = (np.sqrt(f(np.linalg.eigvalsh(A))) for f in (np.min, np.max))
    assert (high - low) / (high + low) < 0.26
    lr, momentum = 4 / (low + high) ** 2, ((high - low) / (high + low)) ** 2
    return A, a, SGD(lr=lr, momentum=momentum, steps=25, batch=None, tolerance=1e-10)


def mac(d=1, local=EXACT, *, penalty=0.5, rate=2.0, local_rounds=1, **settings):
    return PFedMac(Quadratic(d), local, penalty=penalty, rate=rate, local_rounds=local_rounds, **settings)


def limit(A, a, rho, penalty, rate, rounds):
    """Σ ρN (θ − c) = 0, with c = B⁻¹ a, B = I − λA⁻¹ and N = I − (I − ηλB)^R."""
    one = np.eye(A.shape[-1])
    B = one - penalty * np.linalg.inv(A)
    return meeting(one - power(one - rate * penalty * B, rounds), np.linalg.solve(B, a[..., None])[..., 0], rho)


@pytest.mark.parametrize(("engine", "rounds"), [("loop", 16), ("batched", 6)])
def test_one_local_round(engine, rounds):
    run = fit(mac(), scalars(*THREE), rounds=rounds, setting=Setting(engine=engine))
    left = 10 * (7 / 24) ** (rounds - 1)  # ηλ = 1: θ ← mean ω, which shrinks by λ mean A⁻¹
    assert run.server["model"]["theta"].item() == pytest.approx(32 / 17, abs=left)  # docs/methods/personalised.md
    assert states_of(run.clients, "personal")[:, 0] == pytest.approx(np.array([16, 25, 55]) / 17, abs=left)


def test_several_local_rounds():
    A, a = (np.array(values) for values in THREE)
    expected = limit(A[:, None, None], a[:, None], np.ones(3), 0.5, 0.5, 5)
    assert expected[0] == pytest.approx(1.787192, abs=1e-6)  # docs/methods/personalised.md
    run = fit(mac(rate=0.5, local_rounds=5), scalars(*THREE), rounds=14, setting=Setting(engine="loop"))
    # what a round leaves is the mean of (I − ηλB)⁵: 0.38, and 0.38^14 = 1e-6
    assert run.server["model"]["theta"].item() == pytest.approx(expected[0], abs=1e-5)


def test_sparse_models_are_soft_thresholded():
    # θ ← mean ω shrinks as without sparsity; the inner steps shrink by 0.6 each, 0.6^40 = 1e-9
    run = fit(
        mac(local=SGD(lr=0.4, steps=40, batch=None), sparsity=0.5),
        scalars(*THREE),
        rounds=14,
        setting=Setting(engine="loop"),
    )
    assert run.server["model"]["theta"].item() == pytest.approx(25 / 17, abs=1e-6)  # docs/methods/personalised.md
    assert states_of(run.clients, "personal")[:, 0] == pytest.approx(np.array([4, 19, 52]) / 17, abs=1e-6)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_vector_clients_of_unequal_weight(weights):
    (A, a, local), rho = curved(), shares(weights, SIZES)
    algorithm = mac(3, local, penalty=0.6, rate=2.0, local_rounds=2, weights=weights)
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=8, setting=Setting(engine="loop"))
    B = np.eye(3) - 0.6 * np.linalg.inv(A)
    left = abs(np.linalg.eigvalsh(np.einsum("k,kij->ij", rho, power(np.eye(3) - 1.2 * B, 2)))).max() ** 8
    assert left < 1e-5
    assert theta(run.server["model"]) == pytest.approx(limit(A, a, rho, 0.6, 2.0, 2), abs=10 * left + 1e-9)


def test_it_is_the_minimum_of_its_objective_found_by_brute_force():
    A, a, _ = curved()
    lam, gamma = 0.6, 1.0

    def inner(k, shared):
        """Min over ω, by coordinate descent on the exact one-dimensional minima."""
        omega = np.zeros(3)
        for _ in range(30):
            for j in range(3):
                force = A[k][j] @ (omega - a[k]) - A[k][j, j] * omega[j] - lam * shared[j]
                omega[j] = -np.sign(force) * max(abs(force) - gamma, 0) / A[k][j, j]
        gap = omega - a[k]
        return gap @ A[k] @ gap / 2 - lam * omega @ shared + gamma * abs(omega).sum() + lam / 2 * shared @ shared, omega

    assert np.linalg.eigvalsh(A).max() < 6  # so that inner steps of 1/4 shrink by 1/2: 2^-25 = 3e-8
    best = minimize(lambda shared: np.mean([inner(k, shared)[0] for k in range(4)]), np.zeros(3), tol=1e-10)
    local = SGD(lr=0.25, steps=25, batch=None)
    run = fit(
        mac(3, local, penalty=lam, rate=1 / lam, sparsity=gamma),
        federation_of(A, a),
        rounds=10,
        setting=Setting(engine="loop"),
    )
    assert theta(run.server["model"]) == pytest.approx(best.x, abs=1e-4)  # finite differences
    expected = np.stack([inner(k, best.x)[1] for k in range(4)])
    found = states_of(run.clients, "personal")
    assert found == pytest.approx(expected, abs=1e-4)
    assert ((found == 0) == (expected == 0)).all()  # exactly 0, and where it should be
    assert (found == 0).any()


def test_rounds_are_those_of_the_page_whoever_takes_part():
    A, a, local = curved()
    lam, rate, rounds, beta = 0.6, 1.5, 2, 0.7
    shared, personal = np.zeros(3), np.zeros((4, 3))
    algorithm = mac(3, local, penalty=lam, rate=rate, local_rounds=rounds, mixing=beta)
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a), 6, PAIRS, unreliable):
        ends = np.tile(shared, (4, 1))
        for k in asked:
            for _ in range(rounds):
                personal[k] = a[k] + lam * np.linalg.solve(A[k], ends[k])
                ends[k] -= rate * lam * (ends[k] - personal[k])
        shared = (1 - beta) * shared + beta * ends[asked].mean(0)
        assert theta(server["model"]) == pytest.approx(shared, abs=1e-9)
        assert states_of(clients, "personal") == pytest.approx(personal, abs=1e-9)


def test_without_a_penalty_clients_train_alone():
    A, a, local = curved()
    run = fit(mac(3, local, penalty=0.0), federation_of(A, a), rounds=1, setting=Setting(engine="loop"))
    assert states_of(run.clients, "personal") == pytest.approx(a, abs=1e-9)
    assert theta(run.server["model"]) == pytest.approx(np.zeros(3), abs=0)


class TestThreeTiers:
    """min over θ of mean_e min_φ mean_{k∈e} F_k(φ) − λ_e ⟨φ, θ⟩ + λ_e/2 ‖θ‖². With quadratics ∇F_k(φ) = λ (B_k φ − a_k)
    and B_k = I − λA_k⁻¹, so that an edge's φ = (λ mean B)⁻¹ (λ mean a + λ_e θ), and θ is the mean of the φ.
    """

    edges = ((0, 1, 2), (3,))

    def solution(self, A, a, lam, edge, rho):
        B = np.eye(3) - lam * np.linalg.inv(A)
        maps, rights, weights = [], [], []
        for members in map(list, self.edges):
            mean_B = np.average(B[members], axis=0, weights=rho[members])
            mean_a = np.average(a[members], axis=0, weights=rho[members])
            maps.append(np.linalg.inv(mean_B) * edge / lam)
            rights.append(np.linalg.solve(mean_B, mean_a))
            weights.append(rho[members].sum())
        share = np.array(weights) / sum(weights)
        slope = np.einsum("e,eij->ij", share, np.stack(maps))
        assert abs(np.linalg.eigvals(slope)).max() < 0.5  # the outer problem is convex
        shared = np.linalg.solve(np.eye(3) - slope, share @ np.stack(rights))
        return shared, [right + matrix @ shared for right, matrix in zip(rights, maps, strict=True)]

    @pytest.mark.parametrize("weights", ["uniform", "examples"])
    def test_edges_end_between_their_clients_and_the_centre(self, weights):
        A, a, local = curved()
        lam, edge = 0.6, 0.15
        tiers = {"edge_penalty": edge, "edge_rate": 1 / edge, "edge_rounds": 2}
        algorithm = mac(3, local, penalty=lam, rate=1.2 / lam, weights=weights, **tiers)
        sizes = SIZES if weights == "examples" else None
        run = fit(algorithm, federation_of(A, a, sizes), rounds=12, setting=Setting(engine="loop"), groups=self.edges)
        # the mean over edges is uniform where that over clients is
        rho = np.array(SIZES) if sizes else np.array([1 / 3, 1 / 3, 1 / 3, 1])
        shared, phi = self.solution(A, a, lam, edge, rho)
        # ηλB lies between 0.8 and 1.2, so that two steps of an edge leave 0.04; the centre then shrinks by λ_e/λ · B⁻¹,
        # 0.4 at most: 0.4^12 = 2e-5
        assert theta(run.server["model"]) == pytest.approx(shared, abs=1e-4)
        assert run.server["edges"]["theta"].numpy() == pytest.approx(np.stack(phi), abs=1e-4)
        personal = np.stack([a[k] + lam * np.linalg.solve(A[k], phi[e]) for e, m in enumerate(self.edges) for k in m])
        assert states_of(run.clients, "personal") == pytest.approx(personal, abs=1e-3)  # from φ before its last step

    @pytest.mark.parametrize(("rounds", "edge_rounds"), [(1, 1), (3, 1), (1, 3), (3, 2)])
    def test_rounds_are_those_on_paper_for_several_local_rounds_and_steps_of_edges(self, rounds, edge_rounds):
        A, a, local = curved()
        lam, rate, beta, pull, step = 0.5, 0.7, 0.8, 0.3, 0.9
        tiers = {"edge_penalty": pull, "edge_rate": step, "edge_rounds": edge_rounds}
        algorithm = mac(3, local, penalty=lam, rate=rate, local_rounds=rounds, mixing=beta, **tiers)
        phi, shared = [np.zeros(3), np.zeros(3)], np.zeros(3)
        edges = tuple(map(torch.tensor, self.edges))
        for _, server, _, _ in rounds_of(algorithm, federation_of(A, a), 3, edges=edges):
            for e, members in enumerate(self.edges):
                for _ in range(edge_rounds):
                    ends = dict.fromkeys(members, phi[e])
                    for k in members:
                        for _ in range(rounds):
                            omega = a[k] + lam * np.linalg.solve(A[k], ends[k])
                            ends[k] = ends[k] - rate * lam * (ends[k] - omega)
                    change = np.mean(list(ends.values()), axis=0) - phi[e]
                    phi[e] = phi[e] + beta * (change + rounds * rate * pull * shared)
            shared = shared - step * pull * (shared - np.mean(phi, axis=0))
            # inner solves end where gradients are below 1e-10
            assert server["edges"]["theta"].numpy() == pytest.approx(np.stack(phi), abs=1e-8)
            assert theta(server["model"]) == pytest.approx(shared, abs=1e-8)

    def test_an_edge_of_which_nobody_takes_part_stays(self):
        A, a, local = curved()
        algorithm, edges = mac(3, local), tuple(map(torch.tensor, self.edges))
        answers = lambda round, client: client != 3 or round == 0  # noqa: E731
        servers = [
            server for _, server, _, _ in rounds_of(algorithm, federation_of(A, a), 2, answers=answers, edges=edges)
        ]
        first, second = (server["edges"]["theta"] for server in servers)
        assert (first[1] == second[1]).all()
        assert (first[0] != second[0]).all()

    def test_without_groups_there_are_two_tiers(self):
        A, a, local = curved()
        run = fit(mac(3, local, edge_penalty=5.0), federation_of(A, a), rounds=1)
        assert "edges" not in run.server


@pytest.mark.parametrize(("penalty", "rate"), [(2.5, 2.0), (1.8, 20.0)])
def test_where_there_is_no_minimum_the_run_ends_with_an_error(penalty, rate):
    # λ · mean A⁻¹ is 7/12 λ: above 1 from λ = 12/7 on
    local = SGD(lr=0.4, steps=10, batch=None)
    with pytest.raises(DivergenceError, match=r"pFedMac diverges: .* lower the penalty .* below 1/λmax\(mean A⁻¹\)"):
        fit(mac(local=local, penalty=penalty, rate=rate), scalars(*THREE), rounds=100, setting=Setting(engine="loop"))


def test_just_inside_there_is_a_minimum():
    run = fit(mac(penalty=1.5, rate=1 / 1.5), scalars(*THREE), rounds=15, setting=Setting(engine="loop"))
    # ηλ = 1: θ ← ā + 7/8 θ, on the way to 8 ā
    expected = 8 * (4 / 3) * (1 - (7 / 8) ** 15)
    assert run.server["model"]["theta"].item() == pytest.approx(expected, abs=1e-7)


def test_diverging_rounds_leave_a_checkpoint(tmp_path):
    algorithm = mac(local=SGD(lr=0.4, steps=5, batch=None), penalty=2.5, rate=2.0)
    with pytest.raises(DivergenceError, match=r"The state before this round is in"):
        fit(algorithm, scalars(*THREE), rounds=200, setting=Setting(engine="loop"), folder=tmp_path)
    assert (tmp_path / "diverged").exists()


def test_sparse_networks_have_zeros(uneven):
    task = classification(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), uneven)
    dense, sparse = (
        fit(PFedMac(task, SGD(lr=0.2, steps=5, batch=8), local_rounds=3, sparsity=gamma), uneven, rounds=4)
        for gamma in (0.0, 0.05)
    )
    zeros = [
        [(client["personal"]["encoder"]["0"]["weight"] == 0).sum().item() for client in run.clients]
        for run in (dense, sparse)
    ]
    assert zeros[0] == [0] * 4
    assert min(zeros[1]) > 0


def test_what_does_not_fit_is_refused():
    for settings, message in (
        ({"penalty": -0.5}, r"PFedMac's penalty must be 0 or above and finite; given -0.5"),
        ({"sparsity": -1.0}, r"PFedMac's sparsity must be 0 or above"),
        ({"edge_penalty": float("nan")}, r"PFedMac's edge_penalty must be 0 or above"),
        ({"rate": 0.0}, r"PFedMac's rate must be above 0"),
        ({"mixing": 0.0}, r"PFedMac's mixing must be above 0"),
        ({"local_rounds": 0}, r"PFedMac's local_rounds must be a whole number of at least 1; given 0"),
    ):
        with pytest.raises(ValueError, match=message):
            mac(**settings)
    with pytest.raises(ValueError, match="keep_momentum=False"):
        mac(local=SGD(steps=1, momentum=0.5, keep_momentum=True))
