"""Factor models: the closed form of probabilistic PCA, scikit-learn's factor analysis, and Gaussian conditioning."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA, FactorAnalysis

from archipel.core import keys
from archipel.core.trees import leaves
from archipel.families import FactorModel, InverseWishart

D, Q, N = 4, 2, 120
MODEL = {"ridge": 1e-12, "prior": InverseWishart(1e-12)}


def rows(n):
    return torch.ones(n, dtype=torch.bool)


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(2)
    return rng.normal(size=(N, Q)) @ (2 * rng.normal(size=(Q, D))) + rng.normal(size=(N, D)) + [1, 2, 3, -9]


def gaps(x):
    """A third of the values go, of one row all, of another none."""
    holes = np.where(np.random.default_rng(0).random(x.shape) < 0.33, np.nan, x)
    holes[0], holes[1] = np.nan, x[1]
    return torch.tensor(holes)


def fitted(family, x, steps, start=None):
    theta = start or family.initial(keys.key(0))
    for _ in range(steps):
        theta = family.maximise(family.statistics(theta, {"x": torch.as_tensor(x)}, rows(len(x))))
    return theta


def covariance(theta):
    return (theta["loading"] @ theta["loading"].T + torch.diag(theta["noise"].expand(D))).numpy()


def test_probabilistic_pca_ends_at_the_eigenvectors(x):
    family = FactorModel(D, Q, **MODEL)
    theta = fitted(family, x, 700)
    # Tipping and Bishop: noise is the mean of the lost eigenvalues, the model covariance keeps the others.
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    noise = values[: D - Q].mean()
    kept = np.concatenate([np.full(D - Q, noise), values[D - Q :]])
    # EM has contracted to 1e-7 by then
    assert theta["noise"].item() == pytest.approx(noise, rel=1e-6)
    assert theta["mean"].numpy() == pytest.approx(x.mean(0), abs=1e-6)
    assert covariance(theta) == pytest.approx(vectors @ np.diag(kept) @ vectors.T, abs=1e-5)
    # scikit-learn's score is of the same model, with its unbiased covariance: compare the spans
    span = np.linalg.qr(theta["loading"].numpy())[0]
    principal = PCA(Q).fit(x).components_.T
    assert np.linalg.svd(span.T @ principal)[1] == pytest.approx(1, abs=1e-9)


def test_factor_analysis_is_scikit_learns(x):
    family = FactorModel(D, 1, "diagonal", **MODEL)
    witness = FactorAnalysis(1, tol=1e-12, max_iter=5000, svd_method="lapack").fit(x)
    theta = fitted(family, x, 400)
    assert family.log_likelihood(theta, {"x": torch.tensor(x)}).mean().item() == pytest.approx(
        witness.score(x), abs=1e-8
    )
    assert covariance(theta) == pytest.approx(witness.get_covariance(), abs=1e-3)  # a flat maximum


def conditioned(theta, row):
    """What numpy's conditioning of N(μ, C) says of a row with NaN: the completed row, the density of what is there."""
    mean, C, o = theta["mean"].numpy(), covariance(theta), ~np.isnan(row)
    done = row.copy()
    if not o.any():
        return mean, 0.0
    done[~o] = mean[~o] + C[np.ix_(~o, o)] @ np.linalg.solve(C[np.ix_(o, o)], (row - mean)[o])
    return done, multivariate_normal(mean[o], C[np.ix_(o, o)]).logpdf(row[o])


@pytest.mark.parametrize("noise", ["isotropic", "diagonal"])
def test_missing_values_are_conditioned_on_what_is_there(x, noise):
    family, holes = FactorModel(D, Q, noise), gaps(x)
    theta = fitted(family, holes, 7)
    filled, likelihood = zip(*(conditioned(theta, row) for row in holes.numpy()), strict=True)
    assert family.impute(theta, {"x": holes}).numpy() == pytest.approx(np.stack(filled), abs=1e-9)
    assert family.log_likelihood(theta, {"x": holes}).numpy() == pytest.approx(np.array(likelihood), abs=1e-9)
    # E[z | x_o] = Λ_oᵀ C_oo⁻¹ (x_o − μ_o)
    L, mean, C = theta["loading"].numpy(), theta["mean"].numpy(), covariance(theta)
    for row, z in zip(holes.numpy(), family.posterior(theta, {"x": holes}).numpy(), strict=True):
        o = ~np.isnan(row)
        assert z == pytest.approx(L[o].T @ np.linalg.solve(C[np.ix_(o, o)], (row - mean)[o]), abs=1e-9)


def test_nothing_missing_is_what_a_mask_of_nothing_says(x):
    # A row that is missing altogether teaches nothing, but counts as an example.
    family = FactorModel(D, Q)
    theta = fitted(family, x, 3)
    s = family.statistics(theta, {"x": torch.tensor(x)}, rows(N))
    more = torch.cat([torch.tensor(x), torch.full((N, D), torch.nan).double()])
    halved = family.statistics(theta, {"x": more}, rows(2 * N))
    assert all(torch.allclose(a, 2 * b, rtol=1e-13) for a, b in zip(leaves(s), leaves(halved), strict=True))


def test_imputation_beats_the_mean(x):
    holes = gaps(x)
    theta = fitted(family := FactorModel(D, Q), holes, 100)
    gone = np.isnan(holes.numpy())
    means = np.broadcast_to(np.nanmean(holes.numpy(), 0), x.shape)
    ours = ((family.impute(theta, {"x": holes}).numpy() - x)[gone] ** 2).mean()
    # Two factors explain most of the variance, 8 of 9 a column on average, where enough of a row is left.
    assert ours < 0.6 * ((means - x)[gone] ** 2).mean()


def test_a_column_that_nobody_has_is_told_and_harmless(x):
    family = FactorModel(D, Q, "diagonal", prior=InverseWishart(1e-6, 2.0), centre=(0.0, 0.0, 0.0, 5.0))
    holes = torch.tensor(x)
    holes[:, 3] = torch.nan
    start = family.initial(keys.key(1))
    s = family.statistics(start, {"x": holes}, rows(N))
    raw = family.maximise(s)
    projected, outside = family.project(s)
    theta = family.maximise(projected)
    assert outside
    for found in (raw, theta):
        # At the centre, with the prior's noise and no loading
        assert found["mean"][3].item() == pytest.approx(5.0)
        assert found["noise"][3].item() == pytest.approx(2.0, rel=1e-3)
        assert found["loading"][3].abs().max() < 1e-6
    assert family.impute(theta, {"x": holes})[:, 3].numpy() == pytest.approx(5.0, abs=1e-4)


def test_a_centre_keeps_far_data_accurate(x):
    near, far = FactorModel(D, Q), FactorModel(D, Q, centre=(1e4,) * D)
    start = near.initial(keys.key(0))
    one = fitted(near, x, 20, start)
    other = fitted(far, x + 1e4, 20, start | {"mean": start["mean"] + 1e4})
    # x + 1e4 is rounded at 1e-12
    assert (other["mean"] - 1e4).numpy() == pytest.approx(one["mean"].numpy(), abs=1e-8)
    assert covariance(other) == pytest.approx(covariance(one), abs=1e-8)


def test_what_cant_be_is_refused():
    with pytest.raises(ValueError, match="factors must be at most its dimension, 2; given 3"):
        FactorModel(2, 3)
    with pytest.raises(ValueError, match="noise must be 'isotropic' or 'diagonal'; given 'full'"):
        FactorModel(2, 1, "full")
    family = FactorModel(2, 1)
    family.check({"x": torch.tensor([[0.0, torch.nan]])})
    with pytest.raises(ValueError, match="infinite values"):
        family.check({"x": torch.tensor([[0.0, torch.inf]])})
