"""Free parameters and examples are counted right: against ranks of Jacobians and closed forms."""

import math

import numpy as np
import pytest
import torch
from em_cases import CASES

from archipel.em.estimators import (
    FederatedBernoulliMixture,
    FederatedFactorModel,
    FederatedGaussianMixture,
    FederatedLatentClass,
)
from archipel.families import BernoulliMixture, CategoricalMixture, FactorModel


def rank(function, free, seed=0):
    """The rank of a function's Jacobian at random numbers; singular values below 1e-9 of the first are rounding."""
    u = torch.randn(free, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 2
    jacobian = torch.autograd.functional.jacobian(function, u)
    return int(torch.linalg.matrix_rank(jacobian, rtol=1e-9))


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_the_rank_of_the_densitys_jacobian(name):
    case = CASES[name]
    batch = case.batch(400)
    found = rank(lambda u: case.family.log_likelihood(case.theta(u), batch), case.free)
    assert case.family.parameters() == found


@pytest.mark.parametrize("noise", ["isotropic", "diagonal"])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_factor_models_have_no_more_parameters_than_all_covariances(d, noise):
    for q in range(1, d + 1):
        width = 1 if noise == "isotropic" else d

        def covariance(u, q=q, width=width):
            loading = u[: d * q].reshape(d, q)
            return (loading @ loading.T + torch.diag(u[d * q :].exp().expand(d))).flatten()

        expected = d + rank(covariance, d * q + width)
        assert FactorModel(d, q, noise).parameters() == expected <= d + d * (d + 1) // 2


def cells(levels, K):
    """The probabilities of all answers, a function of free numbers."""
    free = K - 1 + K * sum(c - 1 for c in levels)

    def probabilities(u):
        weight = torch.softmax(torch.cat([u[: K - 1], u.new_zeros(1)]), 0)
        rest, tables = u[K - 1 :], []
        for k in range(K):
            table = weight[k][None]
            for c in levels:
                p, rest = torch.softmax(torch.cat([rest[: c - 1], rest.new_zeros(1)]), 0), rest[c - 1 :]
                table = torch.outer(table, p).flatten()
            tables.append(table)
        return torch.stack(tables).sum(0)

    return probabilities, free


@pytest.mark.parametrize("K", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "levels",
    [(2,), (2, 2), (2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2, 2), (3, 3), (3, 2, 4), (3, 3, 3), (4, 4, 2), (2, 5, 2)],
)
def test_latent_classes_have_the_dimension_of_their_tables(levels, K):
    found = rank(*cells(levels, K))
    assert CategoricalMixture(K, levels).parameters() == found
    if set(levels) == {2}:
        assert BernoulliMixture(K, len(levels)).parameters() == found


def test_many_columns_have_as_many_parameters_as_are_written():
    assert BernoulliMixture(10, 50).parameters() == 9 + 500
    assert CategoricalMixture(4, (5,) * 20).parameters() == 3 + 4 * 80


def test_answers_that_nobody_gives_are_no_parameters():
    """Codes 1 and 2 in three columns: three proportions, with their closed-form likelihood."""
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 3, size=(40, 3))
    model = FederatedLatentClass(1).fit([codes[:15], codes[15:]])
    p = (codes == 2).mean(0)
    log_likelihood = 40 * (p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
    assert model.n_parameters_ == 3
    # The pseudo-count takes 1e-6 of an example from each answer: its logarithm moves by as much.
    assert model.bic([codes[:15], codes[15:]]) == pytest.approx(-2 * log_likelihood + 3 * math.log(40), abs=1e-3)
    assert FederatedLatentClass(1, levels=(3, 3, 3)).fit(codes).n_parameters_ == 6  # levels that are given count
    constant = FederatedLatentClass(2).fit(np.array([[0, 0, 1], [1, 0, 2], [0, 0, 0]] * 5))
    assert constant.n_parameters_ == rank(*cells((2, 3), 2))


def test_rows_without_any_value_are_no_examples():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3))
    x[rng.random(x.shape) < 0.1] = np.nan
    x[np.isnan(x).all(1)] = 0.0
    model = FederatedFactorModel(1, random_state=0).fit([x[:20], x[20:]])
    empty = np.full((30, 3), np.nan)
    padded = [x[:20], np.concatenate([x[20:], empty])]
    assert model.bic(padded) == pytest.approx(model.bic([x[:20], x[20:]]), rel=1e-12)
    assert model.aic(padded) == pytest.approx(model.aic([x[:20], x[20:]]), rel=1e-12)
    with pytest.raises(ValueError, match="all are missing"):
        model.bic(empty)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_gaussian_mixtures_have_scikit_learns_count(kind):
    from sklearn.mixture import GaussianMixture

    x = np.random.default_rng(0).normal(size=(50, 3))
    witness = GaussianMixture(2, covariance_type=kind, random_state=0).fit(x)
    assert (
        FederatedGaussianMixture(2, covariance_type=kind, random_state=0).fit(x).n_parameters_
        == witness._n_parameters()
    )


def test_personal_weights_are_parameters_of_each_client():
    x = [np.random.default_rng(i).integers(0, 2, size=(20, 6)) for i in range(3)]
    shared = FederatedBernoulliMixture(2, random_state=0).fit(x).n_parameters_
    assert FederatedBernoulliMixture(2, personal_weights=True, random_state=0).fit(x).n_parameters_ == shared + 2
