"""FedEM: centralised EM and its limits, what memories do under compression, and who takes part."""

import warnings
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
import sklearn.mixture
import torch
from poissons import (
    SIZES,
    START,
    Poissons,
    counts,
    em,
    expect,
    federation,
    maximise,
    numbers,
    objective,
    vector,
)
from quadratics import ENGINES

from archipel import SGD, Bernoulli, DivergenceError, FedAvg, FedEM, fit
from archipel.compress import Dithering, Identity, RandK, TopK
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.trees import PerClient
from archipel.engines import Handle, Ledger, Loop
from archipel.engines.setting import Setting
from archipel.families import GaussianMixture, Ridge
from archipel.learning.quadratic import Quadratic
from archipel.learning.schedules import Decay

Q = 4  # statistics of two components
ROUNDS = 8
PARTS = counts()
POOL = np.concatenate(PARTS)
RHO = np.array(SIZES) / sum(SIZES)
SPLITS = {
    "uneven": PARTS,
    "one": [POOL],
    "singles": list(np.split(POOL[:20], 20)),
    "dealt": [POOL[i::3] for i in range(3)],
}


class Recorder:
    """A callback that keeps the last rounds' servers, ‖h(Ŝ)‖² and F."""

    def __init__(self, first):
        self.first, self.servers, self.stationarity, self.objective = first, [], [], []

    def __call__(self, moment):
        if moment.round < self.first:
            return
        self.servers.append(moment.server)
        field = vector(moment.algorithm.field(moment.server, moment.clients))
        self.stationarity.append(float(field @ field))
        self.objective.append(moment.algorithm.objective(moment.server, moment.clients))


def recorded(algorithm, islands, rounds, last=None, **settings):
    record = Recorder(rounds - (last or rounds) + 1)
    run = fit(algorithm, islands, rounds=rounds, callbacks=[record], **{"setting": Setting(engine=Loop)} | settings)
    return run, record


def handle_on(algorithm, islands, ids=None, answers=None):
    """Enrolled clients without the engine around them, the server's first state, and a way to ask some of them."""
    loop, everyone = Loop(algorithm, islands), torch.arange(len(islands))
    handle = Handle(loop, everyone, islands.sizes, 0, 1, Ledger())
    with torch.no_grad():
        server = algorithm.init_server(handle, keys.key(0))
        handle.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.key(1))
    start = [loop.states[i] for i in everyone.tolist()]

    def ask(ids, answers=None):
        loop.states.load(start)
        cohort = Handle(loop, torch.tensor(ids, dtype=torch.int64), islands.sizes, 0, 1, Ledger(), answers)
        with torch.no_grad():
            after, info = algorithm.round(server, cohort, keys.key(2))
        return after, [loop.states[i] for i in everyone.tolist()], info

    return server, start, ask


# EM on the pool


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("split", SPLITS)
def test_with_all_there_is_it_is_em_on_the_pooled_data(split, engine):
    pool = np.concatenate(SPLITS[split])
    _, record = recorded(
        FedEM(Poissons(), START), federation(SPLITS[split]), ROUNDS, setting=Setting(engine=ENGINES[engine])
    )
    iterates = em(pool, ROUNDS + 1)
    for server, (pi, rates), before in zip(record.servers, iterates[1:], iterates, strict=False):
        # float64, sums over examples in another order
        np.testing.assert_allclose(server["theta"]["weights"], pi, rtol=1e-10)
        np.testing.assert_allclose(server["theta"]["rates"], rates, rtol=1e-10)
        np.testing.assert_allclose(vector(server["statistics"]), expect(before, pool), rtol=1e-10)
    found = [objective(theta, pool) for theta in iterates[1:]]
    np.testing.assert_allclose(record.objective, found, rtol=1e-12)
    assert (np.diff(record.objective) <= 1e-14).all()  # the penalised likelihood never falls, up to its last digit
    assert record.objective[0] - record.objective[-1] > 1e-6


def test_the_field_is_what_centralised_statistics_give():
    run, record = recorded(FedEM(Poissons(), START), federation(PARTS), 3)
    theta = numbers(run.server["theta"])
    h = expect(theta, POOL) - vector(run.server["statistics"])
    assert record.stationarity[-1] == pytest.approx(h @ h, rel=1e-9)
    # ... and the server's own estimate is that of the point before, where everybody sends everything
    assert [r["field"] for r in run.history[1:]] == pytest.approx(record.stationarity[:-1], rel=1e-9)


@pytest.mark.parametrize("settings", [{"memory": "zero"}, {"memory": "off"}, {"alpha": 0.3}, {"alpha": 1.7}])
def test_without_compression_memories_play_no_role(settings):
    islands = federation(PARTS)
    _, plain = recorded(FedEM(Poissons(), START, rate=0.7), islands, ROUNDS)
    _, other = recorded(FedEM(Poissons(), START, rate=0.7, **settings), islands, ROUNDS)
    for one, two in zip(plain.servers, other.servers, strict=True):
        # the same sums, bracketed otherwise
        np.testing.assert_allclose(vector(two["statistics"]), vector(one["statistics"]), rtol=1e-12)


def converged():
    theta = em(POOL, 300)[-1]
    np.testing.assert_allclose(maximise(expect(theta, POOL))[1], theta[1], rtol=1e-12)
    return {"weights": torch.tensor(theta[0]), "rates": torch.tensor(theta[1])}


def test_a_fixed_point_of_em_is_kept_whoever_takes_part_and_however_it_is_compressed():
    algorithm = FedEM(Poissons(), converged(), Dithering(levels=1), rate=0.5, participation=0.5)
    run, record = recorded(algorithm, federation(PARTS), 20, cohort=Bernoulli(0.5))
    assert max(record.stationarity) < 1e-20
    np.testing.assert_allclose(run.server["theta"]["rates"], converged()["rates"], rtol=1e-9)


# Gaussian mixtures


def blobs(seed=0):
    """Three clients of 20, 70 and 50 points in the plane, each mostly of one of three components."""
    rng = np.random.default_rng(seed)
    centres, shares = np.array([[0.0, 0], [6, 0], [0, 6]]), 0.1 + 0.7 * np.eye(3)
    parts = []
    for n, share in zip((20, 70, 50), shares, strict=True):
        z = rng.choice(3, n, p=share)
        parts.append(centres[z] + rng.normal(size=(n, 2)) @ np.array([[1.0, 0.5], [0, 1]]))
    return parts


def planes(parts):
    """A client for each array of points, in float64."""
    made = federation([np.zeros(len(part)) for part in parts])
    tables = [replace(c, train=c.train | {"x": torch.tensor(x)}) for c, x in zip(made.clients, parts, strict=True)]
    return replace(made, clients=tuple(tables))


def test_it_is_scikit_learns_gaussian_mixture_from_the_same_start():
    parts, mean = blobs(), np.array([[1.0, 1], [4, 0], [1, 4]])
    start = {"weight": np.ones(3) / 3, "mean": mean, "covariance": np.stack([np.eye(2)] * 3)}
    algorithm = FedEM(GaussianMixture(3, 2), {name: torch.tensor(value) for name, value in start.items()})
    run = fit(algorithm, planes(parts), rounds=7, setting=Setting(engine=Loop))
    witness = sklearn.mixture.GaussianMixture(
        3, weights_init=start["weight"], means_init=mean, precisions_init=start["covariance"], max_iter=8, tol=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it hasn't converged
        witness.fit(np.concatenate(parts))
    for name, value in (("weight", witness.weights_), ("mean", witness.means_), ("covariance", witness.covariances_)):
        # both in float64, by other formulas; scikit-learn adds 10 eps to the weights
        np.testing.assert_allclose(run.server["theta"][name], value, rtol=1e-9, atol=1e-11)


def test_a_servers_covariance_contains_the_scatter_between_clients():
    rng = np.random.default_rng(0)
    apart = np.array([10.0, 0.0])
    parts = [rng.normal(size=(50, 2)) + apart, rng.normal(size=(150, 2)) - apart]
    start = {"weight": torch.ones(1), "mean": torch.zeros(1, 2), "covariance": torch.eye(2)[None]}
    start = {name: value.double() for name, value in start.items()}
    run = fit(
        FedEM(GaussianMixture(1, 2, shrinkage=Ridge(1e-3)), start),
        planes(parts),
        rounds=1,
        setting=Setting(engine=Loop),
    )
    pooled = np.cov(np.concatenate(parts).T, bias=True)
    assert pooled[0, 0] > 70
    np.testing.assert_allclose(run.server["theta"]["covariance"][0], pooled + 1e-3 * np.eye(2), rtol=1e-12)


# Compression


def test_memories_make_compressed_steps_converge_on_clients_that_differ():
    islands, compressor = federation(PARTS), Dithering(levels=1)
    algorithm = FedEM(Poissons(), START, compressor, rate=0.6)
    assert compressor.omega(Q) == 1  # as rough as dithering gets on four numbers
    _, with_memory = recorded(algorithm, islands, 50, last=5)
    _, from_zero = recorded(replace(algorithm, memory="zero"), islands, 50, last=5)
    _, without = recorded(replace(algorithm, memory="off"), islands, 50, last=5)
    for record in (with_memory, from_zero):
        assert max(record.stationarity) < 1e-8
    # Quantisers err in proportion to what they are given, and ‖h_i‖ doesn't vanish at the root.
    assert np.mean(without.stationarity) > 1e-3
    pi, rates = em(POOL, 300)[-1]
    np.testing.assert_allclose(with_memory.servers[-1]["theta"]["rates"], rates, rtol=1e-4)
    np.testing.assert_allclose(with_memory.servers[-1]["theta"]["weights"], pi, rtol=1e-4)


def test_memories_come_to_be_the_clients_fields():
    algorithm = FedEM(Poissons(), START, Dithering(levels=1), rate=0.6, memory="zero")
    run = fit(algorithm, federation(PARTS), rounds=50, setting=Setting(engine=Loop))
    theta = numbers(run.server["theta"])
    for part, client in zip(PARTS, run.clients, strict=True):
        h = expect(theta, part) - vector(run.server["statistics"])
        assert np.linalg.norm(h) > 0.1
        np.testing.assert_allclose(vector(client["memory"]), h, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", ["start", "zero"])
def test_the_servers_memory_is_the_mean_of_the_clients(memory, engine):
    algorithm = FedEM(
        Poissons(), START, RandK(k=2), rate=0.1, batch=5, memory=memory, participation=0.6, replacement=True
    )
    settings = {"cohort": Bernoulli(0.6), "answers": lambda t, client: (t + client) % 3 > 0, "seed": 4}
    for rounds in (1, 2, 7):
        run = fit(
            algorithm, federation(PARTS), rounds=7, until=rounds, setting=Setting(engine=ENGINES[engine]), **settings
        )
        mean = sum(rho * vector(client["memory"]) for rho, client in zip(RHO, run.clients, strict=True))
        np.testing.assert_allclose(vector(run.server["memory"]), mean, atol=1e-13)  # rounding of a few sums


def test_alpha_is_one_over_one_plus_omega():
    compressor = RandK(k=1)  # ω = q/k − 1 = 3
    _, start, ask = handle_on(FedEM(Poissons(), START, compressor, memory="zero"), federation(PARTS))
    assert not any(vector(client["memory"]).any() for client in start)
    _, clients, _ = ask([0, 1, 2, 3])
    S = expect(numbers(START), POOL)
    for part, client in zip(PARTS, clients, strict=True):
        # Quant(Δ) is 4 Δ at one place, so that V = α Quant(Δ) is Δ there
        delta, (place,) = expect(maximise(S), part) - S, vector(client["memory"]).nonzero()[0]
        assert vector(client["memory"])[place] == pytest.approx(delta[place], rel=1e-12)


# Who takes part


def fields(algorithm, subsets):
    """H for each cohort, and for everybody."""
    server, _, ask = handle_on(algorithm, federation(PARTS))
    before = vector(server["statistics"])

    def field(ids):
        return (vector(ask(list(ids))[0]["statistics"]) - before) / algorithm.rate

    everyone = field(range(4)) if algorithm.participation is None else None
    return [field(ids) for ids in subsets], everyone


@pytest.mark.parametrize("memory", ["zero", "off", "start"])
def test_partial_participation_is_unbiased(memory):
    # Small steps, so that no point has to be projected.
    algorithm = FedEM(Poissons(), START, rate=0.01, memory=memory)
    pairs, full = fields(algorithm, combinations(range(4), 2))
    np.testing.assert_allclose(np.mean(pairs, axis=0), full, rtol=1e-9)
    if memory != "start":
        assert np.ptp(pairs, axis=0).max() > 0.1
    # Bernoulli(p): every cohort by its probability, the empty one among them, divided by n p whoever comes.
    p = 0.3
    subsets = list(chain.from_iterable(combinations(range(4), k) for k in range(5)))
    found, _ = fields(replace(algorithm, participation=p), subsets)
    chances = [p ** len(ids) * (1 - p) ** (4 - len(ids)) for ids in subsets]
    np.testing.assert_allclose(np.average(found, axis=0, weights=chances), full, rtol=1e-9)


def test_a_lost_reply_is_a_client_that_did_not_take_part():
    algorithm = FedEM(Poissons(), START, rate=0.01, memory="zero")
    server, start, ask = handle_on(algorithm, federation(PARTS))
    lost, clients, _ = ask([0, 1, 3], lambda round, client: client != 3)
    there, others, _ = ask([0, 1])
    assert all(torch.equal(clients[3]["memory"][name], start[3]["memory"][name]) for name in start[3]["memory"])
    before = vector(server["statistics"])
    # the same sum, divided by 3/4 and by 2/4
    np.testing.assert_allclose(
        (vector(lost["statistics"]) - before) * 3, (vector(there["statistics"]) - before) * 2, rtol=1e-9
    )
    for i in range(3):
        assert all(torch.equal(clients[i]["memory"][name], others[i]["memory"][name]) for name in start[i]["memory"])


def test_where_nobody_takes_part_the_server_moves_along_its_memory():
    algorithm = FedEM(Poissons(), START, rate=0.3, participation=0.5)
    server, start, ask = handle_on(algorithm, federation(PARTS))
    after, clients, info = ask([])
    V = vector(server["memory"])
    np.testing.assert_allclose(vector(after["statistics"]), vector(server["statistics"]) + 0.3 * V, rtol=1e-15)
    np.testing.assert_array_equal(vector(after["memory"]), V)
    np.testing.assert_allclose(after["theta"]["rates"], maximise(vector(after["statistics"]))[1], rtol=1e-12)
    for now, before in zip(clients, start, strict=True):
        assert all(torch.equal(now["memory"][name], before["memory"][name]) for name in before["memory"])
    assert info["field"] == pytest.approx(V @ V)


def test_runs_go_on_where_nobody_is_drawn():
    cohort, islands = Bernoulli(0.3), federation(PARTS)
    sizes = [len(cohort.draw(islands.sizes, keys.fold(keys.key(0), "cohort", t))) for t in range(40)]
    assert sizes.count(0) >= 3
    algorithm = FedEM(Poissons(), START, rate=0.2, participation=0.3)
    run, record = recorded(algorithm, islands, 40, cohort=cohort)
    assert [r["cohort"] for r in run.history] == sizes
    assert all(torch.isfinite(server["theta"]["rates"]).all() for server in record.servers)
    assert [r["uplink"] for r in run.history[1:]] == [8 * Q * size for size in sizes[1:]]


def test_other_methods_wait_where_nobody_is_drawn(caplog):
    from quadratics import TWO, scalars

    cohort, islands = Bernoulli(0.3), scalars(*TWO)
    sizes = [len(cohort.draw(islands.sizes, keys.fold(keys.key(0), "cohort", t))) for t in range(10)]
    first = sizes.index(0)
    algorithm = FedAvg(Quadratic(), SGD(lr=0.1, steps=1, batch=None))
    before, after = (
        fit(algorithm, islands, rounds=10, cohort=cohort, setting=Setting(engine=Loop), until=t)
        for t in (max(first, 1), first + 1)
    )
    if first:
        assert torch.equal(before.server["model"]["theta"], after.server["model"]["theta"])
    assert f"Nobody was drawn for round {first + 1}. The server keeps its state." in caplog.text
    run = fit(algorithm, islands, rounds=10, cohort=cohort, setting=Setting(engine=Loop))
    assert len(run.history) == 10


# Oracles of the statistics


@pytest.mark.parametrize("replacement", [False, True])
def test_minibatches_are_uniform_and_don_t_see_padding(replacement):
    n, b, padded = 5, 2, 9
    columns = {"x": torch.arange(padded)[:, None]}
    examples = Examples(columns, torch.tensor(n), n)
    cut = Examples({"x": columns["x"][:n]}, torch.tensor(n), n)
    algorithm, drawn = FedEM(Poissons(), START, batch=b, replacement=replacement), []
    for seed in range(1000):
        rows, mask = algorithm.minibatch(examples, keys.key(seed))
        assert mask.all()
        drawn.append(tuple(rows["x"][:, 0].tolist()))
        if seed < 20:
            assert torch.equal(rows["x"], algorithm.minibatch(cut, keys.key(seed))[0]["x"])
    found = np.zeros((n, n))
    np.add.at(found, tuple(np.array(drawn).T), 1)
    expected = np.full((n, n), 1000 / 25) if replacement else np.where(np.eye(n), 0, 1000 / 20)
    assert (found[expected == 0] == 0).all()
    chi = ((found - expected) ** 2 / np.where(expected, expected, 1)).sum()
    assert chi < 55  # χ² of 24 (19) degrees of freedom: above with probability 3e-4 (2e-5)


def test_a_client_with_fewer_examples_than_a_batch_uses_all_it_has():
    examples = Examples({"x": torch.arange(7)[:, None]}, torch.tensor(3), 3)
    rows, mask = FedEM(Poissons(), START, batch=5).minibatch(examples, keys.key(0))
    assert sorted(rows["x"][mask, 0].tolist()) == [0, 1, 2]
    everything, mask = FedEM(Poissons(), START).minibatch(examples, keys.key(0))
    assert everything["x"][mask, 0].tolist() == [0, 1, 2]


def test_minibatch_steps_that_fall_end_at_the_root():
    # Noise of a step γ is of the order γ σ²: a falling step forgets it, a constant one doesn't.
    islands = federation(PARTS)
    algorithm = FedEM(Poissons(), START, batch=4)
    _, constant = recorded(replace(algorithm, rate=0.5), islands, 80, last=15)
    _, falling = recorded(replace(algorithm, rate=Decay(0.5, 1.0, 5)), islands, 80, last=15)
    # 0.5 · 5/85 is 1/17 of the constant step
    assert np.mean(falling.stationarity) < np.mean(constant.stationarity) / 5


def test_decay_falls_as_its_formula_says():
    schedule = Decay(rate=0.8, power=0.5, delay=4)
    assert [schedule(k) for k in (0, 12, 60)] == pytest.approx([0.8, 0.4, 0.2])


def test_points_outside_of_the_domain_are_projected_and_counted():
    # A step of 3 along the field overshoots.
    run, record = recorded(FedEM(Poissons(), START, rate=3.0), federation(PARTS), 30)
    projected = [r["projected"] for r in run.history]
    assert projected[-1] > 0
    assert run.server["projected"] == projected[-1]
    assert set(np.diff(projected)) <= {0, 1}
    for server in record.servers:
        assert (vector(server["statistics"]) >= 0).all()
        assert np.isfinite(vector(server["theta"])).all()


# What it costs


def test_traffic_is_counted():
    islands, dithering = federation(PARTS), Dithering(levels=3)
    for compressor, bits in ((Identity(), 64 * Q), (dithering, dithering.bits(Q, torch.float64))):
        run = fit(FedEM(Poissons(), START, compressor), islands, rounds=3, setting=Setting(engine=Loop))
        up, down = ([r[name] for r in run.history] for name in ("uplink", "downlink"))
        each = -(-bits // 8)
        # before the first round: s̄_i(θ_0) and s̄_i(T(Ŝ_0)) from everybody
        assert up == [4 * (each + 2 * 8 * Q), 4 * each, 4 * each]
        assert down[1:] == [4 * 8 * (Q + Q)] * 2  # Ŝ and T(Ŝ), as many parameters as statistics
    run = fit(FedEM(Poissons(), START, memory="zero"), islands, rounds=1, setting=Setting(engine=Loop))
    assert run.history[0]["uplink"] == 4 * 2 * 8 * Q


def test_expectations_are_counted():
    islands, n = federation(PARTS), sum(SIZES)

    def computed(**settings):
        run = fit(FedEM(Poissons(), START, **settings), islands, rounds=2, setting=Setting(engine=Loop))
        return [r["expectations"] for r in run.history]

    assert computed() == [4 * n, n]
    assert computed(memory="off") == [2 * n, n]
    assert computed(batch=10, memory="zero") == [n + 33, 33]  # 3 + 10 + 10 + 10
    assert computed(batch=10, memory="zero", replacement=True) == [n + 40, 40]


def test_a_run_from_another_start_is_another_run(tmp_path):
    islands, folder = federation(PARTS), tmp_path / "run"
    fit(FedEM(Poissons(), START), islands, rounds=3, until=1, folder=folder)
    with pytest.raises(ValueError, match="another algorithm"):
        fit(FedEM(Poissons(), START | {"rates": START["rates"] + 1}), islands, rounds=3, folder=folder)
    on, straight = (fit(FedEM(Poissons(), START), islands, rounds=3, folder=f) for f in (folder, None))
    np.testing.assert_array_equal(vector(on.server["statistics"]), vector(straight.server["statistics"]))


class Drawn:
    """A start that draws: rates from the key."""

    def __call__(self, clients, key):
        assert clients.population == 4
        return START | {"rates": 1 + 10 * keys.uniform(key, 2, dtype=torch.float64)}


def test_a_start_may_be_a_strategy():
    one, same, other = (fit(FedEM(Poissons(), Drawn()), federation(PARTS), rounds=1, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.server["theta"]["rates"], same.server["theta"]["rates"])
    assert not torch.equal(one.server["theta"]["rates"], other.server["theta"]["rates"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, "FedEM's rate must be above 0 and finite; given 0.0"),
        ({"alpha": -1.0}, "FedEM's alpha must be above 0 and finite, or None; given -1.0"),
        ({"alpha": 0.5, "memory": "off"}, "alpha moves the memories, and memory='off' keeps none"),
        ({"memory": True}, "FedEM's memory must be 'start', 'zero' or 'off'; given True"),
        ({"batch": 0}, "FedEM's batch must be a whole number of at least 1; given 0"),
        ({"participation": 0.0}, r"participation must lie in \(0, 1\], or None; given 0.0"),
        ({"participation": 1.5}, "given 1.5"),
        ({"participation": "all"}, "FedEM's participation must be a number; given 'all'"),
        ({"rate": "0.5"}, "FedEM's rate must be a number; given '0.5'"),
        ({"compressor": TopK(k=2)}, "FedEM needs an unbiased compressor.*TopK is biased. Identity, Dithering"),
    ],
)
def test_what_cant_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FedEM(Poissons(), START, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"family": GaussianMixture},
            "family must be a model of archipel.families, such as GaussianMixture.*given the class GaussianMixture",
        ),
        ({"start": torch.zeros(2)}, "start must be a dict of the family's parameters.*given a Tensor"),
        (
            {"compressor": Dithering},
            "compressor must be a compressor of archipel.compress, such as.*given the class Dithering",
        ),
        ({"compressor": None}, "compressor must be a compressor.*given a NoneType"),
    ],
)
def test_what_is_of_another_kind_is_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        FedEM(**({"family": Poissons(), "start": START} | settings))


def test_a_run_that_fits_a_distribution_does_not_predict():
    run = fit(FedEM(Poissons(), START), federation(PARTS), rounds=1, setting=Setting(engine=Loop))
    with pytest.raises(TypeError, match=r"FedEM has no model that answers queries.*family\.posterior"):
        run.predict(torch.zeros(2, 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_data_without_a_density_are_refused_at_the_start(engine):
    with pytest.raises(ValueError, match="counts are 0 or above"):
        fit(
            FedEM(Poissons(), START),
            federation([[1, 2], [3, -1, 2]]),
            rounds=1,
            setting=Setting(engine=ENGINES[engine]),
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_who_holds_nan_is_named_at_the_start(engine):
    parts = [np.array([1.0, 2.0]), np.array([3.0, np.nan, 1.0]), np.array([2.0] * 5)]
    with pytest.raises(DivergenceError, match="holds NaN or infinities at client-1"):
        fit(FedEM(Poissons(), START), federation(parts), rounds=1, setting=Setting(engine=ENGINES[engine]))


def test_a_schedule_must_stay_above_zero():
    with pytest.raises(ValueError, match="FedEM's rate in round 1 must be above 0 and finite; given -1"):
        fit(
            FedEM(Poissons(), START, rate=lambda k: 1 - 2 * k),
            federation(PARTS),
            rounds=3,
            setting=Setting(engine=Loop),
        )
