"""Components that coincide are a saddle of EM: starts and fits leave it."""

import numpy as np
import pytest
import torch

from archipel import FedEM, Federation, fit
from archipel.em.estimators import (
    FederatedBernoulliMixture,
    FederatedGaussianMixture,
    FederatedLatentClass,
    FederatedPoissonMixture,
    FederatedRegressionMixture,
)
from archipel.em.splitting import coinciding
from archipel.em.starts import KMeansPlusPlus
from archipel.families import BernoulliMixture, GaussianMixture

ROWS = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
"""Every client has these two rows: the mean of its nearest five examples is the same point for all."""


@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("n_init", [1, 5])
def test_clients_that_are_alike_do_not_keep_components_equal(init, n_init):
    """Each component takes one row: a likelihood of 1/2 a row, but for pseudo-counts of 1e-6 in eight probabilities."""
    for kind in (FederatedBernoulliMixture, FederatedLatentClass):
        model = kind(2, init=init, n_init=n_init, random_state=0).fit([ROWS] * 30)
        assert model.converged_
        assert model.lower_bound_ == pytest.approx(-np.log(2), abs=4 * 3e-6)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_poisson_and_gaussian_components_take_a_row_each(init):
    rates = FederatedPoissonMixture(2, init=init, random_state=0).fit([5 * ROWS] * 30).rates_
    np.testing.assert_allclose(sorted(rates.round(2).tolist()), [[0, 0, 5, 5], [5, 5, 0, 0]], atol=0.01)
    means = FederatedGaussianMixture(2, init=init, reg_covar=1e-2, random_state=0).fit([ROWS] * 30).means_
    np.testing.assert_allclose(sorted(means.round(2).tolist()), [[0, 0, 1, 1], [1, 1, 0, 0]], atol=0.01)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_two_lines_are_found(init):
    x = np.array([[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]])
    y = np.array([0.0, 0.0, 1.0, -1.0, 2.0, -2.0])
    model = FederatedRegressionMixture(2, n_init=1, init=init, random_state=0).fit([x] * 30, [y] * 30)
    np.testing.assert_allclose(np.sort(model.coefs_[:, 0]), [-1, 1], atol=1e-3)


@pytest.mark.parametrize("given", ["means", "all"])
def test_equal_components_that_a_user_gives_are_split(given):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-3, 1, (100, 2)), rng.normal(3, 1, (100, 2))])
    weights = [0.5, 0.5] if given == "means" else [0.9, 0.1]
    start = {"weights": weights, "means": np.zeros((2, 2)), "covariances": np.stack([10 * np.eye(2)] * 2)}
    model = FederatedGaussianMixture(2, init=start, random_state=0).fit([x[::2], x[1::2]])
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), [-3, 3], atol=4 / np.sqrt(100))


@pytest.mark.parametrize("n", [100, 10_000])
def test_random_starts_of_many_examples_do_not_stop_beside_the_pooled_data(n):
    """All components start near the pooled data, the nearer the more examples; the likelihood first hardly changes."""
    rng = np.random.default_rng(0)
    clients = [np.concatenate([rng.normal(-3, 1, (n // 2, 2)), rng.normal(3, 1, (n // 2, 2))]) for _ in range(4)]
    model = FederatedGaussianMixture(2, init="random", random_state=0).fit(clients)
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), [-3, 3], atol=4 / np.sqrt(2 * n))


def test_data_that_cannot_be_divided_are_fitted_as_they_are():
    same = np.ones((10, 3), dtype=int)
    model = FederatedBernoulliMixture(2, random_state=0).fit([same] * 3)
    assert model.converged_
    assert model.lower_bound_ == pytest.approx(0.0, abs=1e-5)


def test_the_start_itself_is_split_for_every_user_of_it():
    federation = Federation.from_arrays([(ROWS.astype(float), [0, 1])] * 30, test=0.0)
    family = BernoulliMixture(2, 4)
    theta = fit(FedEM(family, KMeansPlusPlus(family)), federation, rounds=1).server["theta"]
    torch.testing.assert_close(theta["probability"].sum(0), torch.ones(4, dtype=torch.float64), atol=1e-5, rtol=0)
    assert float((theta["probability"][0] - theta["probability"][1]).abs().min()) > 0.99


def test_components_that_differ_are_no_group_however_far_from_zero():
    family = GaussianMixture(3, 1, centre=(1e9,))
    theta = {
        "weight": torch.full((3,), 1 / 3, dtype=torch.float64),
        "mean": torch.tensor([[1e9], [1e9 + 0.5], [1e9]], dtype=torch.float64),
        "covariance": torch.ones(3, 1, 1, dtype=torch.float64),
    }
    assert coinciding(family, theta).tolist() == [0, 1, 0]
    empty = theta | {"weight": torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64)}
    assert coinciding(family, empty).tolist() == [0, 1, 1]


@pytest.mark.parametrize("kind", [FederatedBernoulliMixture, FederatedLatentClass])
@pytest.mark.parametrize("components", [3, 4])
def test_components_do_not_stay_empty(kind, components):
    """Each component takes one of K rows: 1/K a row, but for pseudo-counts of 1e-6 in 2 K probabilities of K rows."""
    rows = np.kron(np.eye(components), np.ones((1, 2)))
    for seed in range(6):
        model = kind(components, random_state=seed).fit([rows] * 10)
        assert model.score(rows) == pytest.approx(-np.log(components), abs=2 * components * 1e-5)
