"""Parameters to start from must lie in their domain, at an estimator's door and at the algorithm's."""

import numpy as np
import pytest
import torch

from archipel import FedEM, Federation, fit
from archipel.em.estimators import FederatedBernoulliMixture, FederatedGaussianMixture, FederatedPoissonMixture
from archipel.families import CategoricalMixture, FactorModel, GaussianMixture, RegressionMixture
from archipel.families.covariance import solve
from archipel.families.parameters import check_parameters

X = np.random.default_rng(0).normal(size=(40, 2))
SOUND = {"weights": [0.5, 0.5], "means": [[0.0, 0.0], [1.0, 1.0]], "covariances": np.stack([np.eye(2)] * 2)}


@pytest.mark.parametrize(
    ("matrix", "what"),
    [
        ([[1.0, 0.0], [0.5, 1.0]], r"init's covariances 1 isn't symmetric: \[\[1.0, 0.0\], \[0.5, 1.0\]\]"),
        ([[1.0, 2.0], [2.0, 1.0]], "covariances 1 isn't positive definite: its lowest eigenvalue is -1"),
        ([[1.0, 1.0], [1.0, 1.0]], "isn't positive definite"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN"),
    ],
)
def test_covariances_that_are_none_are_refused(matrix, what):
    start = SOUND | {"covariances": np.stack([np.eye(2), matrix])}
    with pytest.raises(ValueError, match=what):
        FederatedGaussianMixture(2, init=start).fit(X)
    theta = {
        "weight": torch.full((2,), 0.5),
        "mean": torch.tensor(SOUND["means"]),
        "covariance": torch.tensor(start["covariances"]),
    }
    federation = Federation.from_arrays([(X, np.zeros(len(X)))], test=0.0)
    with pytest.raises(ValueError, match="FedEM's start"):
        fit(FedEM(GaussianMixture(2, 2), theta), federation, rounds=1)


def test_rounding_makes_no_covariance_asymmetric():
    almost = np.stack([np.eye(2), [[1.0, 0.5], [0.5 + 1e-9, 1.0]]])
    FederatedGaussianMixture(2, init=SOUND | {"covariances": almost}, random_state=0).fit(X)


@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_variances_must_be_above_0(kind):
    variances = np.ones((2, 2) if kind == "diag" else 2)
    variances[1] = -1
    with pytest.raises(ValueError, match="variances must be above 0"):
        FederatedGaussianMixture(2, covariance_type=kind, init=SOUND | {"covariances": variances}).fit(X)


def test_probabilities_rates_and_noise_have_their_domains():
    yes = {"weights": [0.5, 0.5], "probabilities": [[0.5, 1.5], [0.5, 0.5]]}
    with pytest.raises(ValueError, match="probabilities must lie between 0 and 1"):
        FederatedBernoulliMixture(2, init=yes).fit([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="rates must be 0 or above"):
        FederatedPoissonMixture(2, init={"weights": [0.5, 0.5], "rates": [[1, -1], [1, 1]]}).fit([[0, 1], [1, 0]])
    answers = {"weight": torch.ones(1), "probability": torch.tensor([[0.5, 0.5, 0.5, 0.6]])}
    with pytest.raises(ValueError, match="of column 1 must sum to 1"):
        check_parameters("start", CategoricalMixture(1, (2, 2)), answers)
    for family in (RegressionMixture(1, 1), FactorModel(2, 1)):
        with pytest.raises(ValueError, match="above 0"):
            check_parameters("start", family, {"noise": torch.zeros(1)})


def test_singular_systems_are_solved_by_least_squares():
    """Whether elimination meets a zero pivot depends on the processor; the shortest solution doesn't."""
    matrix = torch.tensor([[4.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    found = solve(matrix, torch.tensor([8.0, 4.0], dtype=torch.float64))
    torch.testing.assert_close(matrix @ found, torch.tensor([8.0, 4.0], dtype=torch.float64))
    torch.testing.assert_close(solve(torch.zeros(2, 2), torch.zeros(2)), torch.zeros(2))
    huge = 1e200 * matrix
    torch.testing.assert_close(solve(huge, 1e200 * torch.tensor([8.0, 4.0]).double()), found, rtol=1e-8, atol=0)
    both = torch.stack([matrix, torch.eye(2, dtype=torch.float64)])
    together = torch.func.vmap(solve)(both, torch.ones(2, 2, dtype=torch.float64))
    torch.testing.assert_close(together, torch.stack([solve(m, torch.ones(2).double()) for m in both]))
    assert bool(solve(torch.full((2, 2), torch.nan), torch.ones(2)).isnan().all())


def test_models_of_singular_moments_are_finite():
    big = torch.tensor(1e200, dtype=torch.float64)
    moments = {"latent": big.expand(2, 3), "cross": big.expand(2, 2), "square": big.expand(2)}
    theta = FactorModel(2, 1).maximise(moments)
    assert all(bool(t.isfinite().all()) for t in theta.values())
