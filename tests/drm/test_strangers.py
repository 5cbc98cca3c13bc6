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


def test_scores_are_the_largest_normal_log_density(trained):
    run, federation = trained
    watch = Watch.of(run, federation, embed=lambda x: x)
    x = torch.tensor([[0.5, 0.2], [3.0, 1.0]])
    own = [client.train["x"].double().numpy() for client in federation.clients]
    scatter = [(z - z.mean(0)).T @ (z - z.mean(0)) for z in own]
    n = np.array([len(z) for z in own])
    within = sum(scatter) / n.sum()
    expected = [
        multivariate_normal(z.mean(0), (s + 2 * within) / (len(z) + 2) + 1e-6 * np.trace(within) / 2 * np.eye(2))
        for z, s in zip(own, scatter, strict=True)
    ]
    found = np.max([normal.logpdf(x.numpy()) for normal in expected], axis=0)
    np.testing.assert_allclose(watch.scores(x), found, rtol=1e-9)


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
