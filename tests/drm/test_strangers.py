"""Strangers: exact p-values, the promised rate of false alarms, and queries that are far from everybody."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from archipel import SGD, FedAvg, Federation, FedSPM, Network, classification, fit
from archipel.data import GaussianClients
from archipel.drm.strangers import Watch, p_values


def clients():
    """Two clients N(±3, I) in the plane, with labels by the second coordinate's centre."""
    means = torch.tensor([[3.0, 1.0], [3.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]]).reshape(2, 1, 2, 2)
    return GaussianClients(torch.tensor([0.6, 0.4]), torch.ones(2, 1), torch.full((2, 1, 2), 0.5), means, std=1.0)


@pytest.fixture(scope="module")
def trained():
    federation = clients().sample([1500, 1000], test=0.4, validation=0.3, seed=0)
    plain = torch.nn.Identity()
    block = SGD(lr=0.2, steps=5, batch=32)
    spm = FedSPM(classification(plain, federation), Network(plain, federation.inputs), 1, block, block)
    return fit(spm, federation, rounds=2), federation


def test_p_values_of_exchangeable_scores_are_uniform():
    """Five scores, one of them the query's: whichever it is, its rank decides, and all are equally likely."""
    scores = torch.tensor([0.3, -1.0, 2.0, 0.7, 5.0])
    found = sorted(
        float(p_values(torch.cat([scores[:i], scores[i + 1 :]]), scores[i : i + 1])) for i in range(len(scores))
    )
    np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8, 1.0])
    # with ties p-values only get larger
    for tied in itertools.product([0.0, 1.0], repeat=4):
        values = [
            float(p_values(torch.tensor(tied[:i] + tied[i + 1 :]), torch.tensor(tied[i : i + 1]))) for i in range(4)
        ]
        for u in (0.25, 0.5, 0.75):
            assert np.mean(np.array(values) <= u) <= u


@pytest.mark.parametrize("level", [0.02, 0.1, 0.3])
def test_false_alarms_come_at_the_promised_rate(trained, level):
    run, federation = trained
    watch = Watch.of(run, federation)
    fresh = clients().sample([6000, 4000], test=0.0, seed=1)
    alarms = torch.cat([watch.strangers(client.train["x"], level) for client in fresh.clients])
    # 4 standard errors: of the rate among 10,000 queries, and of the quantile of 750 held-out scores
    N = len(watch.held_out)
    assert N == 750
    assert abs(float(alarms.double().mean()) - level) < 4 * np.sqrt(level * (1 - level) * (1 / 10_000 + 1 / N))


def test_whoever_is_far_from_all_clients_is_a_stranger_and_between_clients_too(trained):
    run, federation = trained
    watch = Watch.of(run, federation)
    far = torch.tensor([[0.0, 0.0], [12.0, 0.0], [3.0, 9.0], [-12.0, 1.0]])
    assert bool(watch.strangers(far, 0.01).all())
    # a posterior alone is sure of the far ones: the reason for a density
    assert bool((run.route(far[[1, 3]]).probabilities.max(1).values > 0.95).all())
    own = torch.tensor([[3.0, 1.0], [-3.0, -1.0]])
    assert not bool(watch.strangers(own, 0.1).any())
    assert bool((watch.p_values(own) > 0.5).all())


def test_scores_are_the_largest_normal_log_density_of_features_and_standardised_columns(trained):
    run, federation = trained
    watch = Watch.of(run, federation, embed=lambda x: x[:, :1].square())
    x = torch.tensor([[0.5, 0.2], [3.0, 1.0]])
    pooled = torch.cat([client.train["x"] for client in federation.clients]).double().numpy()

    def features(x):
        return np.concatenate([x[:, :1] ** 2, (x - pooled.mean(0)) / pooled.std(0)], axis=1)

    own = [features(client.train["x"].double().numpy()) for client in federation.clients]
    scatter = [(z - z.mean(0)).T @ (z - z.mean(0)) for z in own]
    n = np.array([len(z) for z in own])
    within = sum(scatter) / n.sum()
    expected = [
        multivariate_normal(z.mean(0), (s + 3 * within) / (len(z) + 3) + 1e-6 * np.trace(within) / 3 * np.eye(3))
        for z, s in zip(own, scatter, strict=True)
    ]
    found = np.max([normal.logpdf(features(x.double().numpy())) for normal in expected], axis=0)
    # The embedding squares in float32, 6e-8 of it, and the federation's mean and deviation are those of float32 values.
    np.testing.assert_allclose(watch.scores(x), found, rtol=1e-6)


class Forgetful(torch.nn.Module):
    """An encoder with LayerNorm first: it sees no scale, so that impossible values look usual."""

    def __init__(self, columns):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.LayerNorm(columns), torch.nn.Linear(columns, 4), torch.nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def patients(seed, n=400):
    """Three clients' tables: age, blood pressure, a yes-or-no column, a skewed laboratory value and a constant."""
    rng = np.random.default_rng(seed)
    tables = []
    for site in range(3):
        age = rng.normal(50 + 8 * site, 12, n)
        pressure = 90 + 0.6 * age + rng.normal(0, 10, n)
        table = np.stack([age, pressure, rng.integers(0, 2, n), rng.lognormal(0, 1, n), np.full(n, 7.0)], axis=1)
        tables.append((table, (age + rng.normal(0, 10, n) > 55).astype(int)))
    return tables


def test_a_column_that_is_moved_by_100_deviations_is_told_and_false_alarms_stay_as_promised():
    federation = Federation.from_arrays(patients(0), test=0.2, validation=0.2)
    block = SGD(lr=0.1, steps=5, batch=32)
    encoders = Forgetful(5), Forgetful(5)
    spm = FedSPM(classification(encoders[0], federation), Network(encoders[1], federation.inputs), 1, block, block)
    watch = Watch.of(fit(spm, federation, rounds=3), federation)
    fresh = np.concatenate([table for table, _ in patients(1, n=1000)])
    deviation = np.array(federation.inputs.std)
    for column in range(5):
        moved = fresh.copy()
        moved[:, column] += 100 * deviation[column]
        assert float(watch.strangers(moved).double().mean()) >= 0.95, column
    # Four standard errors: of the rate among 3,000 queries, and of the quantile of 240 held-out scores.
    alarms = float(watch.strangers(fresh, 0.05).double().mean())
    assert len(watch.held_out) == 240
    assert abs(alarms - 0.05) < 4 * np.sqrt(0.05 * 0.95 * (1 / 3000 + 1 / 240))


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", ">f4", ">i2"])
def test_queries_of_any_dtype_are_scored_as_their_values(trained, dtype):
    run, federation = trained
    watch = Watch.of(run, federation)
    values = [[3, 1], [0, 12]]
    torch.testing.assert_close(watch.scores(np.array(values, dtype=dtype)), watch.scores(torch.tensor(values).float()))


def test_a_print_shows_no_score(trained):
    run, federation = trained
    assert repr(Watch.of(run, federation)) == "Watch(a FedSPM, 2 clients, 6 features, 750 held-out scores)"


def test_features_that_repeat_or_do_not_vary_are_no_trouble(trained):
    run, federation = trained
    watch = Watch.of(run, federation, embed=lambda x: torch.cat([x, x, torch.ones(len(x), 3)], 1))
    assert bool(watch.held_out.isfinite().all())
    assert bool(watch.strangers(torch.tensor([[0.0, 9.0]])))


def test_what_cannot_be_watched_is_said(trained, uneven):
    run, federation = trained
    watch = Watch.of(run, federation)
    for level in (0.0, 1.0, 1e-4):
        with pytest.raises(ValueError, match="level"):
            watch.strangers(torch.zeros(1, 2), level)
    with pytest.raises(ValueError, match=r"validation.*test"):
        Watch.of(run, federation, held_out="train")
    with pytest.raises(ValueError, match=r"validation=0\.1"):
        Watch.of(run, Federation.from_arrays([(np.eye(4), [0, 1, 0, 1])] * 2, test=0.25))
    averaged = fit(FedAvg(classification(torch.nn.Identity(), uneven), SGD(steps=1)), uneven, rounds=1)
    with pytest.raises(TypeError, match="embed"):
        Watch.of(averaged, uneven, held_out="test")
