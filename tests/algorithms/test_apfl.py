"""APFL: the trajectory on paper, mixtures that end at the clients' own optima, and the limits of α."""

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
    power,
    scalars,
    shares,
    times,
    vectors,
)
from torch import nn

from archipel import APFL, SGD, FedAvg, Local, Sample, classification, fit
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation


def mixtures(run):
    x = torch.zeros(1, 1, 1)
    return np.stack([run.algorithm.predict(run.server, client, x)[0].numpy() for client in run.clients])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trajectory_on_paper(engine):
    algorithm = APFL(Quadratic(), SGD(lr=0.1, steps=1, batch=None), alpha=0.25)
    run = fit(algorithm, scalars(*THREE), rounds=3, setting=Setting(engine=ENGINES[engine]))
    assert of_server(run) == pytest.approx(1.09874074, abs=1e-8)  # docs/methods/personalised.md
    assert mixtures(run)[:, 0] == pytest.approx((0.81801714, 0.84903928, 1.01948785), abs=1e-8)


@pytest.mark.parametrize(
    ("problem", "alpha", "steps", "lr"),
    [(TWO, 0.5, 1, 0.6), (THREE, 0.6, 1, 0.45), (THREE, 1.0, 1, 0.45), (THREE, 0.6, 4, 0.3)],
)
def test_the_fixed_points(problem, alpha, steps, lr):
    rounds = 90 // steps
    algorithm = APFL(Quadratic(), SGD(lr=lr, steps=steps, batch=None), alpha=alpha)
    run = fit(algorithm, scalars(*problem), rounds=rounds, setting=Setting(engine=Loop))
    A, a = map(np.array, problem)
    # Between two exchanges θ_k − a shrinks by B a step, and ω − a by C but for what the mixture has of θ_k:
    # v ← C v − ηα(1 − α) A B^s (θ − a). A round leaves ω where it is.
    B, C = 1 - lr * A, 1 - lr * alpha**2 * A
    theta = (1 - B**steps) @ a / (1 - B**steps).sum()
    pull = lr * alpha * (1 - alpha) * A * sum(C ** (steps - 1 - s) * B**s for s in range(steps))
    omega = a - pull / (1 - C**steps) * (theta - a)
    assert of_server(run) == pytest.approx(theta, abs=1e-9)
    # 90 steps with C below 0.97 for A = 1 leave 1e-6 to 1e-7 of the way, 5e-5 for the smallest rate.
    tolerance = 3e-4 if steps > 1 else 1e-5
    assert of_clients(run, "omega")[:, 0] == pytest.approx(omega, abs=tolerance)
    if steps == 1:  # every mixture ends at its client's own optimum, whatever α is
        assert mixtures(run)[:, 0] == pytest.approx(a, abs=1e-5)
        assert omega == pytest.approx((a - (1 - alpha) * theta) / alpha)
    if problem is TWO:
        assert (theta, *omega) == pytest.approx((0.8, -0.8, 1.2))  # docs/methods/personalised.md


def simulated(A, a, rho, ids_of_rounds, *, lr, steps, alpha, adaptive=False, averaging=None):
    """Both gradients at the old ω, θ_k and α: (θ, mixtures, α), or the weighted means of the first two."""
    theta, omega, mixing = np.zeros(A.shape[-1]), np.zeros(a.shape), np.full(len(a), alpha)
    sums, totals = [0 * theta, 0 * omega], [0.0, np.zeros(len(a))]
    for t, ids in enumerate(ids_of_rounds):
        if averaging is not None and t:  # the mixture is known at a client once θ has arrived there
            weight = (t * steps + averaging) ** 2
            sums[1][ids] += weight * (mixing[:, None] * omega + (1 - mixing[:, None]) * theta)[ids]
            totals[1][ids] += weight
        local = np.tile(theta, (len(a), 1))
        for _ in range(steps):
            mixture = mixing[:, None] * omega + (1 - mixing[:, None]) * local
            gradient = times(A, mixture - a)
            slope = np.einsum("ki,ki->k", omega - local, gradient)
            local, old = local - lr * times(A, local - a), mixing
            omega = np.where(np.isin(np.arange(len(a)), ids)[:, None], omega - lr * old[:, None] * gradient, omega)
            if adaptive:
                moved = np.clip(mixing - lr * slope, 0, 1)
                mixing = np.where(np.isin(np.arange(len(a)), ids), moved, mixing)
        theta = np.average(local[ids], axis=0, weights=rho[ids])
        if averaging is not None:
            weight = ((t + 1) * steps + averaging) ** 2
            sums[0], totals[0] = sums[0] + weight * theta, totals[0] + weight
    mixture = mixing[:, None] * omega + (1 - mixing[:, None]) * theta
    if averaging is not None:
        return sums[0] / totals[0], (sums[1] + weight * mixture) / (totals[1] + weight)[:, None], mixing
    return theta, mixture, mixing


SETTINGS = {
    "fixed": {"alpha": 0.3},
    "adaptive": {"alpha": 0.3, "adaptive": True},
    "averaged": {"alpha": 0.3, "averaging": 2.5},
}


@pytest.mark.parametrize(("engine", "weights"), [("loop", "uniform"), ("batched", "examples")])
@pytest.mark.parametrize("setting", SETTINGS)
def test_vector_clients_by_hand_with_partial_participation(setting, weights, engine):
    (A, a), cohort = vectors(), Sample(count=3)
    federation = quadratic_federation(A, 3 * a, SIZES)
    algorithm = APFL(Quadratic(3), SGD(lr=0.12, steps=2, batch=None), weights=weights, **SETTINGS[setting])
    run = fit(algorithm, federation, rounds=5, cohort=cohort, setting=Setting(engine=ENGINES[engine]))
    theta, mixture, alpha = simulated(
        A.numpy(),
        3 * a.numpy(),
        shares(weights, SIZES),
        cohorts(cohort, federation, 5),
        lr=0.12,
        steps=2,
        **SETTINGS[setting],
    )
    x = torch.zeros(1, 1, 1)
    assert run.algorithm.predict_global(run.server, x)[0].numpy() == pytest.approx(theta, abs=1e-12)
    assert mixtures(run) == pytest.approx(mixture, abs=1e-12)
    found = [client["alpha"].item() for client in run.clients]
    assert found == pytest.approx(alpha, abs=1e-12)
    if setting == "adaptive":
        assert all(0 <= value <= 1 for value in found)
        assert 1.0 in found  # it was clipped
        assert run.history[-1]["alpha"] == pytest.approx(
            np.average(alpha[(ids := cohorts(cohort, federation, 5)[-1])], weights=shares(weights, SIZES)[ids])
        )
    else:
        assert found == [0.3] * 4


def test_alpha_is_clipped_at_0_too():
    # f = ½ θ², ω and θ at 1 and 2 by hand: ⟨ω − θ, ∇f(ω̄)⟩ < 0 lets α grow; with ω beyond θ it falls below 0.
    algorithm = APFL(Quadratic(), SGD(lr=0.5, steps=1, batch=None), alpha=0.1, adaptive=True)
    run = fit(algorithm, scalars([1.0], [1.0]), rounds=1, setting=Setting(engine=Loop))
    client = run.clients[0] | {"omega": {"theta": torch.tensor([9.0], dtype=torch.float64)}}
    one = Loop(algorithm, scalars([1.0], [1.0]))
    one.states.load([client])
    message = {"model": {"theta": torch.tensor([2.0], dtype=torch.float64)}, "lr": torch.tensor(0.5)}
    list(one.run(algorithm.train, message, [0], torch.tensor(0), training=True))
    # ω̄ = 2.7: α − 0.5 · (9 − 2) · 1.7 = −5.85, and ω − 0.5 · 0.1 · 1.7
    assert one.states[0]["alpha"].item() == 0
    assert one.states[0]["omega"]["theta"].item() == pytest.approx(9 - 0.085)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_the_shared_model_ends_where_fedavg_does(weights):
    A, a = vectors()
    algorithm = APFL(Quadratic(3), SGD(lr=0.25, steps=4, batch=None), alpha=0.8, weights=weights)
    run = fit(algorithm, quadratic_federation(A, a, SIZES), rounds=20, setting=Setting(engine=Loop))
    N = np.eye(3) - power(np.eye(3) - 0.25 * A.numpy(), 4)
    assert of_server(run) == pytest.approx(meeting(N, a, shares(weights, SIZES)), abs=1e-5)


@pytest.fixture(scope="module")
def task(uneven):
    return classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)


BLOCK = SGD(lr=0.2, steps=3, batch=4, momentum=0.9, keep_momentum=True, schedule="cosine")


@pytest.mark.parametrize("engine", ENGINES)
def test_alpha_one_is_training_alone_and_alpha_zero_the_shared_model(uneven, task, engine):
    def train(algorithm):
        return fit(algorithm, uneven, rounds=3, setting=Setting(engine=ENGINES[engine]))

    alone, shared = train(Local(task, BLOCK)), train(FedAvg(task, BLOCK, weights="uniform"))
    one, zero = train(APFL(task, BLOCK, alpha=1.0)), train(APFL(task, BLOCK, alpha=0.0))
    same = torch.equal if engine == "loop" else lambda a, b: torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    for run in (one, zero):
        pairs = zip(flatten(run.server["model"]).values(), flatten(shared.server["model"]).values(), strict=True)
        assert all(same(a, b) for a, b in pairs)
    for client, other in zip(one.clients, alone.clients, strict=True):
        pairs = zip(flatten(client["omega"]).values(), flatten(other["model"]).values(), strict=True)
        assert all(same(a, b) for a, b in pairs)
    x = uneven.clients[0].train["x"]
    for client in zero.clients:
        assert torch.equal(
            zero.algorithm.predict(zero.server, client, x), zero.algorithm.predict_global(zero.server, x)
        )
    assert one.metrics["average_accuracy"] == alone.metrics["average_accuracy"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": -0.1}, r"APFL's alpha must lie in \[0, 1\]; given -0\.1"),
        ({"alpha": 1.1}, r"APFL's alpha must lie in \[0, 1\]"),
        ({"averaging": -1.0}, r"APFL's averaging must be 0 or above and finite, or None; given -1\.0"),
        ({"adaptive": True, "local": SGD(steps=1, weight_decay=0.1)}, "give APFL's local solver weight_decay=0"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        APFL(**({"task": Quadratic(), "local": SGD(steps=1)} | setting))


def test_a_gap_below_one_is_refused():
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1; given 0"):
        APFL(Quadratic(), SGD(steps=0))
