"""Bridge errors along a run: numpy and scipy with all data at hand, finite differences, linear programming, by hand."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from scipy.special import log_softmax, logsumexp

from archipel import SGD, FedAvg, Federation, Network, classification, fit
from archipel.algorithms.fedspm import FedSPM
from archipel.drm.bridge.errors import BridgeErrors, estimates, measure
from archipel.drm.bridge.exchanges import ClientSums, Exchange, RatioCache
from archipel.engines.setting import Setting

C, ROUNDS = 2, 9
NETWORK = torch.nn.Identity()


def islands():
    """Three Gaussian clients of unequal sizes in the plane."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for n, mean in ((40, -1.5), (25, 0.5), (31, 2.0)):
        x = torch.randn(n, 2, generator=draw) + mean
        parts.append((x, (x[:, 0] > mean).long()))
    return Federation.from_arrays(parts, test=0.0)


def semiparametric(federation, **more):
    block = SGD(lr=0.5, steps=6, batch=8, momentum=0.5)
    router = Network(NETWORK, federation.inputs)
    return FedSPM(classification(NETWORK, federation), router, components=C, local=block, routing=block, **more)


def watched(federation, algorithm, **more):
    """A run with bridge errors, and what the server and the clients held after each round."""
    states = []

    def keep(moment):
        clients = [copy.deepcopy(moment.clients.carrier.states[i]) for i in range(len(federation))]
        states.append((copy.deepcopy(moment.server), clients))

    run = fit(
        algorithm, federation, rounds=ROUNDS, callbacks=[BridgeErrors(), keep], setting=Setting(engine="loop"), **more
    )
    return run, states


@pytest.fixture(scope="module")
def measured():
    federation = islands()
    run, states = watched(federation, semiparametric(federation))
    return federation, run, states


class Central:
    """All examples in one place, in numpy: the same objectives by their definitions."""

    def __init__(self, federation, clients):
        x = [federation.inputs.normalise(client.train["x"]).double().numpy() for client in federation.clients]
        self.h, self.n, m = np.concatenate(x), sum(map(len, x)), len(x)
        self.w = np.zeros((self.n, m * C))
        start = 0
        for i, rows in enumerate(x):
            w = clients[i]["responsibilities"].values.double().numpy()
            self.w[start : start + len(rows), i * C : (i + 1) * C] = w
            start += len(rows)
        self.tau = self.w.sum(0)

    def ratios(self, phi):
        return phi[:, 0] + self.h @ phi[:, 1:].T

    def surrogate(self, phi):
        a = self.ratios(phi)
        return (logsumexp(np.log(self.tau) + a, axis=1).sum() - (self.w * a).sum()) / self.n

    def normalised(self, phi):
        shifted = phi.copy()
        shifted[:, 0] += logsumexp(-logsumexp(np.log(self.tau) + self.ratios(phi), axis=1))
        return shifted

    def balanced(self, phi):
        """γ by scipy's minimiser of the surrogate, and then the common constant."""

        def moved(gamma):
            return np.column_stack([phi[:, 0] + gamma, phi[:, 1:]])

        def slope(gamma):
            logits = np.log(self.tau) + self.ratios(moved(gamma))
            p = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
            return (p.sum(0) - self.tau) / self.n

        options = {"gtol": 1e-11}
        found = minimize(lambda g: self.surrogate(moved(g)), np.zeros(len(phi)), jac=slope, options=options).x
        assert np.abs(slope(found)).max() < 1e-8
        return self.normalised(moved(found))

    def feasible(self, phi):
        """Whether weights with Σ r = 1 and Σ r exp(a) = 1 exist, all above something: a linear programme."""
        A = np.exp(self.ratios(phi))
        equalities = np.vstack([np.column_stack([A.T, np.zeros(A.shape[1])]), np.r_[np.ones(self.n), 0.0]])
        below = np.column_stack([-np.eye(self.n), np.ones(self.n)])  # least − r_j ≤ 0
        cost = np.r_[np.zeros(self.n), -1.0]
        found = linprog(cost, below, np.zeros(self.n), equalities, np.ones(A.shape[1] + 1), [(0, None)] * (self.n + 1))
        return found.status == 0 and -found.fun > 1e-9

    def multipliers(self, phi):
        """λ by Newton steps on eq. (6) from τ/n, halved while a weight would be negative."""
        g = np.exp(self.ratios(phi)) - 1
        here = self.tau / self.n
        for _ in range(200):
            rows = g / (1 + g @ here)[:, None]
            step = np.linalg.lstsq(rows, np.ones(self.n), rcond=None)[0]
            length = 1.0
            while (1 + g @ (here + length * step)).min() <= 0 or (
                np.log(1 + g @ (here + length * step)).sum() < np.log(1 + g @ here).sum() - 1e-12
            ):
                length /= 2
                if length < 1e-12:
                    break
            here = here + length * step
        assert np.abs((g / (1 + g @ here)[:, None]).sum(0)).max() < 1e-6 * self.n
        return here

    def exact(self, phi):
        """−Q₂/n, eq. (6) solved here and now."""
        a = self.ratios(phi)
        return (np.log(1 + np.expm1(a) @ self.multipliers(phi)).sum() - (self.w * a).sum()) / self.n


def phi_of(server):
    ratio = server["ratio"]
    return np.column_stack([ratio["gamma"].flatten().double(), ratio["xi"].flatten(0, 1).double()])


def square_of_finite_differences(function, phi, step=1e-5):
    found = np.zeros_like(phi)
    for place in np.ndindex(*phi.shape):
        move = np.zeros_like(phi)
        move[place] = step
        found[place] = (function(phi + move) - function(phi - move)) / (2 * step)
    return (found**2).sum()


def entries(run):
    return {record["bridge"]["t"]: record["bridge"] for record in run.history if "bridge" in record}


def test_every_number_is_what_all_data_in_one_place_give(measured):
    federation, run, states = measured
    found = entries(run)
    assert list(found) == list(range(1, ROUNDS))
    solved = [t for t, entry in found.items() if None not in entry["normalised"].values()]
    assert len(solved) >= 2
    # One of them, since differences are slow; float32 log-ratios are good to 1e-6, their gradients to 1e-5
    t = solved[-1]
    central, before, after = Central(federation, states[t][1]), phi_of(states[t - 1][0]), phi_of(states[t][0])
    for name, value, place in (
        ("surrogate", central.surrogate, lambda phi: phi),
        ("normalised", central.exact, central.normalised),
        ("balanced", central.exact, central.balanced),
    ):
        entry = found[t][name]
        assert entry["before"] == pytest.approx(value(place(before)), abs=3e-6)
        assert entry["after"] == pytest.approx(value(place(after)), abs=3e-6)
        assert entry["gradient"] == pytest.approx(square_of_finite_differences(value, place(before)), rel=1e-3)


def test_gaps_are_where_a_linear_programme_finds_no_weights(measured):
    federation, run, states = measured
    told, true = [], []
    for t, entry in entries(run).items():
        central = Central(federation, states[t][1])
        told += [entry["normalised"]["before"] is not None, entry["normalised"]["after"] is not None]
        true += [central.feasible(central.normalised(phi_of(states[s][0]))) for s in (t - 1, t)]
    assert told == true
    assert True in told
    assert False in told


def test_lemma_2_the_gradient_is_that_of_the_profile_likelihood(measured):
    federation, run, states = measured
    t = [t for t, entry in entries(run).items() if None not in entry["normalised"].values()][-1]
    server, clients = states[t - 1]  # ζ^(t)
    central = Central(federation, states[t][1])
    shares = np.full_like(central.w, -np.inf)  # log π_ic + log P_ic(y|x) of the old state
    start = 0
    for i, client in enumerate(federation.clients):
        x = federation.inputs.normalise(client.train["x"]).double().numpy()
        heads = clients[i]["predictive"]["heads"]
        for c in range(C):
            scores = x @ heads["weight"][c].double().numpy().T + heads["bias"][c].double().numpy()
            likelihood = log_softmax(scores, axis=1)[np.arange(len(x)), client.train["y"]]
            shares[start : start + len(x), i * C + c] = math.log(clients[i]["pi"][c]) + likelihood
        start += len(x)

    def objective(phi):
        """F = −pℓ/n, but for a constant."""
        a = central.ratios(phi)
        joint = logsumexp(shares + a, axis=1).sum()
        return -(joint - np.log(1 + np.expm1(a) @ central.multipliers(phi)).sum()) / central.n

    phi = central.normalised(phi_of(server))
    # the responsibilities are eq. (7)'s, in float32
    joint = shares + central.ratios(phi)
    np.testing.assert_allclose(central.w, np.exp(joint - logsumexp(joint, axis=1, keepdims=True)), atol=1e-5)
    expected = square_of_finite_differences(objective, phi)
    assert entries(run)[t]["normalised"]["gradient"] == pytest.approx(expected, rel=1e-3)


def test_the_exact_objective_is_never_below_the_surrogate_and_least_when_balanced(measured):
    federation, run, _ = measured
    log_n = math.log(int(federation.sizes.sum()))
    for entry in entries(run).values():
        for when in ("before", "after"):
            lowest, surrogate = entry["balanced"][when], entry["surrogate"][when] - log_n
            assert lowest < surrogate  # γ of an iterate never is the best
            if (value := entry["normalised"][when]) is not None:
                assert value > surrogate
                assert lowest < value


def test_training_is_not_changed_in_one_bit(measured):
    federation, run, _ = measured
    alone = fit(semiparametric(federation), federation, rounds=ROUNDS, setting=Setting(engine="loop"))
    for one, other in ((run.server, alone.server), *zip(run.clients, alone.clients, strict=True)):
        torch.utils._pytree.tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), one, other)
    assert [r["loss"] for r in run.history] == [r["loss"] for r in alone.history]


@pytest.mark.parametrize("setting", [Setting(engine="batched"), Setting(engine="loop", workers=2)], ids=str)
def test_other_engines_measure_the_same(measured, setting):
    federation, run, _ = measured
    other = fit(semiparametric(federation), federation, rounds=3, callbacks=[BridgeErrors()], setting=setting)
    for t, entry in entries(other).items():
        for name in ("surrogate", "normalised", "balanced"):
            for what, value in entries(run)[t][name].items():
                there = entry[name][what]
                # float32, three rounds on
                assert there is value is None or there == pytest.approx(value, rel=1e-3)


def test_every_second_round_and_a_resumption(tmp_path):
    federation = islands()
    algorithm = semiparametric(federation, expectation="incremental")

    def go(every, **more):
        return fit(
            algorithm, federation, rounds=5, callbacks=[BridgeErrors(every)], setting=Setting(engine="loop"), **more
        )

    go(2, until=3, folder=tmp_path)
    assert list(entries(go(1, folder=tmp_path))) == [2, 4]  # 3 would need what was before the resumption


def test_a_population_that_has_died_has_no_constraint(measured):
    from archipel.core.trees import PerExample
    from archipel.engines import Handle, Ledger, Loop

    federation, run, states = measured
    server, clients = copy.deepcopy(states[-1])
    w = clients[0]["responsibilities"].values
    clients[0]["responsibilities"] = PerExample(torch.stack([torch.ones(len(w)), torch.zeros(len(w))], 1))
    server["ratio"]["gamma"][0, 1] = -50.0  # its ratio is above one nowhere: with a constraint there are no weights
    loop = Loop(run.algorithm, federation)
    loop.states.load(clients)
    everyone = Handle(loop, torch.arange(3), federation.sizes, 0, 1, Ledger())
    found = measure(*(Exchange(everyone, ClientSums(run.algorithm), server["ratio"]) for _ in range(2)))
    central, phi = Central(federation, clients), phi_of(server)
    alive = [0, 2, 3, 4, 5]
    central.w, central.tau = central.w[:, alive], central.tau[alive]
    assert found["balanced"]["before"] == pytest.approx(central.exact(central.balanced(phi[alive])), abs=3e-6)
    assert central.feasible(central.normalised(phi[alive]))
    expected = central.exact(central.normalised(phi[alive]))
    assert found["normalised"]["before"] == pytest.approx(expected, abs=3e-6)
    assert all(math.isfinite(value) for value in found["surrogate"].values())


def entry(t, surrogate, exact):
    names = ("before", "after", "gradient")
    parts = {"surrogate": surrogate, "normalised": exact}
    return {"bridge": {"t": t} | {name: dict(zip(names, values, strict=True)) for name, values in parts.items()}}


def test_estimates_by_hand():
    history = [
        {"loss": 1.0},
        entry(1, (1.0, 0.5, 2.0), (1.0, 0.75, 2.0)),  # ratio 1, δ = −0.25 + 0.5
        entry(2, (1.0, 0.5, 2.0), (1.0, 0.25, 6.0)),  # ratio 3, δ = 0
        entry(3, (1.0, 0.5, 1e-10), (1.0, None, None)),  # a gap
        entry(4, (1.0, 0.5, 1e-10), (1.0, 1.0, 1.0)),  # its ratio doesn't count; δ = 0.5
    ]
    found = estimates(history)
    assert found.t == [1, 2, 4]
    assert found.gaps == [3]
    assert found.gamma2 == pytest.approx(1 + 0.95 * 2)  # linear between the two ratios
    assert found.epsilon == pytest.approx([0, 6 - 2.9 * 2, 1 - 2.9e-10])
    assert found.delta == pytest.approx([0.25, 0, 0.5])
    assert found.gradient == pytest.approx([2, 4, 3])
    assert found.epsilon_sum == pytest.approx([0, 0.1, 1.2 / 3])
    assert found.delta_sum == pytest.approx([0.25, 0.25 / 2**0.5, 0.75 / 3**0.5])


def test_all_gaps_and_nothing_measured():
    found = estimates([entry(1, (1.0, 0.5, 2.0), (None, None, None))])
    assert found.t == found.gradient == []
    assert found.gaps == [1]
    assert math.isnan(found.gamma2)
    with pytest.raises(ValueError, match="BridgeErrors"):
        estimates([{"loss": 1.0}])
    with pytest.raises(ValueError, match="'normalised' or 'balanced'"):
        estimates([entry(1, (1.0, 0.5, 2.0), (1.0, 0.5, 2.0))], "raw")


def test_other_algorithms_are_refused():
    federation = islands()
    algorithm = FedAvg(classification(NETWORK, federation), SGD(lr=0.1, steps=1))
    with pytest.raises(TypeError, match="FedSPM; given a FedAvg"):
        fit(algorithm, federation, rounds=1, callbacks=[BridgeErrors()])


def test_memory_is_shared_by_threads_and_never_sent():
    memory = RatioCache()
    assert memory.recall(torch.tensor(3), lambda: torch.ones(1)) == 1
    assert copy.deepcopy(memory) is memory
    assert memory.recall(torch.tensor(3), lambda: torch.zeros(1)) == 1
    assert pickle.loads(pickle.dumps(memory)).recall(torch.tensor(3), lambda: torch.zeros(1)) == 0
