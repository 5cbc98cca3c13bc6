"""VR-FedEM: SPIDER-EM and FedEM as its limits, a simulation by another hand, and noise that goes to zero."""

import numpy as np
import pytest
import torch
from poissons import SIZES, START, Poissons, counts, em, expect, federation, maximise, numbers, vector
from quadratics import ENGINES, cohorts

from archipel import Bernoulli, FedEM, Full, Sample, VRFedEM, fit
from archipel.compress import Dithering, RandK, TopK
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.engines import Loop
from archipel.engines.setting import Setting

PARTS = counts()
POOL = np.concatenate(PARTS)
RHO = np.array(SIZES) / sum(SIZES)


def drawn(part, client, t, batch, replacement):
    """The rows of a minibatch: which of a client's counts are drawn in a round."""
    key = keys.fold(keys.fold(keys.key(0), "round", t), client)
    drawing = VRFedEM(Poissons(), START, batch=batch, inner=1, replacement=replacement)
    rows, mask = drawing.minibatch(Examples.of({"x": torch.tensor(part)[:, None]}), key)
    return rows["x"][mask, 0].numpy()


def simulation(parts, algorithm, taking_part, rounds):
    """Algorithm 2 in numpy without compression, client by client, as ρ-weighted sums over those who take part.

    V plays no role where all take part; where some don't, it is ρ-weighted and α is 1.
    """
    sizes = np.array([len(part) for part in parts])
    rho, n = sizes / sizes.sum(), len(parts)
    S_hat = expect(numbers(START), np.concatenate(parts))
    theta = maximise(S_hat)
    S = [expect(theta, part) for part in parts]
    stands = [theta] * n
    V_i = [s - S_hat for s in S]
    V = sum(r * v for r, v in zip(rho, V_i, strict=True))
    for t in range(rounds):
        total = np.zeros_like(S_hat)
        for i in taking_part[t]:
            if t % algorithm.inner == 0:
                S[i] = expect(theta, parts[i])
            else:
                B = drawn(parts[i], i, t, algorithm.batch, algorithm.replacement)
                S[i] = S[i] + expect(theta, B) - expect(stands[i], B)
            stands[i] = theta
            delta = S[i] - S_hat - V_i[i]
            V_i[i] = V_i[i] + delta
            total += rho[i] * delta
        H = V + total * n / len(taking_part[t])
        V = V + total
        S_hat = S_hat + algorithm.rate * H
        theta = maximise(S_hat)
    return S_hat, theta, S, V


@pytest.mark.parametrize("replacement", [False, True])
def test_one_client_without_compression_is_spider_em(replacement):
    """SPIDER-EM: an estimate of s̄(T(Ŝ)) that is corrected along the way, and Ŝ ← Ŝ + γ (S − Ŝ)."""
    algorithm = VRFedEM(Poissons(), START, batch=7, inner=4, rate=0.6, replacement=replacement)
    run = fit(algorithm, federation([POOL]), rounds=10, setting=Setting(engine=Loop))
    S_hat = expect(numbers(START), POOL)
    before = S = None
    for t in range(10):
        theta = maximise(S_hat)
        if t % 4 == 0:
            S = expect(theta, POOL)
        else:
            B = drawn(POOL, 0, t, 7, replacement)
            S = S + expect(theta, B) - expect(before, B)
        S_hat, before = S_hat + 0.6 * (S - S_hat), theta
    # rounding of a few dozen sums
    np.testing.assert_allclose(vector(run.server["statistics"]), S_hat, rtol=1e-11)
    np.testing.assert_allclose(vector(run.clients[0]["estimate"]), S, rtol=1e-11)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cohort", [Full(), Sample(count=2)])
def test_rounds_of_uneven_clients_are_those_of_the_paper(cohort, engine):
    islands = federation(PARTS)
    algorithm = VRFedEM(Poissons(), START, batch=5, inner=3, rate=0.2)
    run = fit(algorithm, islands, rounds=8, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    S_hat, theta, S, V = simulation(PARTS, algorithm, cohorts(cohort, islands, 8), 8)
    np.testing.assert_allclose(vector(run.server["statistics"]), S_hat, rtol=1e-10)
    np.testing.assert_allclose(run.server["theta"]["rates"], theta[1], rtol=1e-10)
    np.testing.assert_allclose(vector(run.server["memory"]), V, atol=1e-11)
    for estimate, client in zip(S, run.clients, strict=True):
        np.testing.assert_allclose(vector(client["estimate"]), estimate, rtol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"compressor": Dithering(levels=2), "rate": 0.3}])
def test_with_whole_batches_it_is_fedem(settings):
    islands = federation(PARTS)
    whole = VRFedEM(Poissons(), START, batch=max(SIZES), inner=4, **settings)
    one, other = (
        fit(algorithm, islands, rounds=9, setting=Setting(engine=Loop))
        for algorithm in (whole, FedEM(Poissons(), START, **settings))
    )
    # The corrections telescope, up to rounding; both quantise with the same keys.
    np.testing.assert_allclose(vector(one.server["statistics"]), vector(other.server["statistics"]), rtol=1e-9)


def test_an_outer_loop_of_one_round_is_fedem():
    islands = federation(PARTS)
    one, other = (
        fit(algorithm, islands, rounds=4, setting=Setting(engine=Loop))
        for algorithm in (VRFedEM(Poissons(), START, batch=1, inner=1), FedEM(Poissons(), START))
    )
    np.testing.assert_array_equal(vector(one.server["statistics"]), vector(other.server["statistics"]))


def stationarity(algorithm, islands, rounds, last):
    found = []

    def note(moment):
        if moment.round > rounds - last:
            h = vector(algorithm.field(moment.server, moment.clients))
            found.append(float(h @ h))

    fit(algorithm, islands, rounds=rounds, callbacks=[note], setting=Setting(engine=Loop))
    return np.array(found)


def test_its_noise_goes_to_zero_with_a_constant_step_and_that_of_minibatches_does_not():
    islands, settings = federation(PARTS), {"compressor": Dithering(levels=1), "rate": 0.3}
    reduced = stationarity(VRFedEM(Poissons(), START, batch=2, inner=10, **settings), islands, 60, last=5)
    plain = stationarity(FedEM(Poissons(), START, batch=2, **settings), islands, 60, last=5)
    assert reduced.max() < 1e-7
    assert plain.mean() > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_the_servers_memory_is_the_mean_of_the_clients(engine):
    algorithm = VRFedEM(Poissons(), START, batch=2, inner=3, compressor=RandK(k=2), rate=0.1, participation=0.6)
    settings = {"cohort": Bernoulli(0.6), "answers": lambda t, client: (t + client) % 3 > 0, "seed": 4}
    for rounds in (1, 6):
        run = fit(
            algorithm, federation(PARTS), rounds=6, until=rounds, setting=Setting(engine=ENGINES[engine]), **settings
        )
        mean = sum(rho * vector(client["memory"]) for rho, client in zip(RHO, run.clients, strict=True))
        np.testing.assert_allclose(vector(run.server["memory"]), mean, atol=1e-13)  # rounding of a few sums


def test_whose_reply_is_lost_goes_on_from_where_its_estimate_stands():
    islands, algorithm = federation(PARTS), VRFedEM(Poissons(), START, batch=100, inner=6, rate=0.2)
    before, lost, after = (
        fit(
            algorithm,
            islands,
            rounds=6,
            until=t,
            answers=lambda t, client: (t, client) != (2, 1),
            setting=Setting(engine=Loop),
        )
        for t in (2, 3, 4)
    )
    for name in ("estimate", "theta", "memory"):
        np.testing.assert_array_equal(vector(before.clients[1][name]), vector(lost.clients[1][name]))
    # With whole batches the correction is exact from wherever it starts.
    theta = numbers(lost.server["theta"])
    np.testing.assert_allclose(vector(after.clients[1]["estimate"]), expect(theta, PARTS[1]), rtol=1e-12)


def test_a_fixed_point_of_em_is_kept():
    pi, rates = em(POOL, 300)[-1]
    start = {"weights": torch.tensor(pi), "rates": torch.tensor(rates)}
    algorithm = VRFedEM(Poissons(), start, batch=1, inner=5, compressor=Dithering(levels=1), participation=0.5)
    run = fit(algorithm, federation(PARTS), rounds=12, cohort=Bernoulli(0.5), setting=Setting(engine=Loop))
    np.testing.assert_allclose(run.server["theta"]["rates"], rates, rtol=1e-9)


def test_loops_expectations_and_traffic_are_counted():
    n, q = sum(SIZES), 8 * 4
    run = fit(VRFedEM(Poissons(), START, batch=10, inner=3), federation(PARTS), rounds=5, setting=Setting(engine=Loop))
    assert [r["inner"] for r in run.history] == [0, 1, 2, 0, 1]
    assert (int(run.server["outer"]), int(run.server["inner"])) == (1, 2)
    b = 2 * (3 + 10 + 10 + 10)
    # three passes before the first round: for Ŝ_0, for V_0, and at the clients for their S_i
    assert [r["expectations"] for r in run.history] == [4 * n, b, b, n, b]
    # the parameters of the round before aren't sent again
    assert [r["downlink"] for r in run.history[1:]] == [4 * (q + q)] * 4
    assert [r["uplink"] for r in run.history] == [4 * 3 * q] + [4 * q] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "VRFedEM's batch must be a whole number of at least 1; given 0"),
        ({"inner": 1.5}, "VRFedEM's inner must be a whole number of at least 1; given 1.5"),
        ({"rate": -1.0}, "VRFedEM's rate must be above 0 and finite; given -1.0"),
        ({"compressor": TopK(k=2)}, "VRFedEM needs an unbiased compressor"),
    ],
)
def test_what_cant_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        VRFedEM(Poissons(), START, **({"batch": 5, "inner": 5} | settings))
