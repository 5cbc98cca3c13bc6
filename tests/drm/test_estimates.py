"""Estimates from pooled weights: by hand, their efficiency, and goodness of fit."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from archipel.drm import DensityRatioModel, distribution_functions, goodness_of_fit, means, pool, quadratic, quantiles


def normals(rng, sizes, truths):
    return [torch.tensor(rng.normal(mu, sd, (n, 1))) for n, (mu, sd) in zip(sizes, truths, strict=True)]


def test_own_points_alone_give_the_empirical_estimates():
    rng = np.random.default_rng(0)
    samples = [torch.tensor(rng.normal(size=(n, 1)).round(1)) for n in (40, 25)]  # with ties
    model = DensityRatioModel.fit(*pool(samples))
    x = model.points[:, 0]
    levels = torch.tensor([0.05, 0.1, 0.5, 0.9, 1.0])
    for k, own in enumerate(s[:, 0].numpy() for s in samples):
        assert float(means(model.empirical, x)[k]) == pytest.approx(own.mean(), abs=1e-12)
        by_numpy = np.quantile(own, levels.double().numpy().round(6), method="inverted_cdf")
        np.testing.assert_allclose(quantiles(model.empirical, x, levels)[:, k], by_numpy)
        at = np.array([-9, -0.5, 0.0, 0.3, 9])
        shares = [(own <= t).mean() for t in at]
        np.testing.assert_allclose(distribution_functions(model.empirical, x, torch.tensor(at))[:, k], shares)


def test_in_the_span_of_the_basis_nothing_is_gained():
    """The likelihood's equations: Σ_j p_jl h(x_j) is the population's own mean of h."""
    model = DensityRatioModel.fit(*pool(normals(np.random.default_rng(1), (50, 50), [(0, 1), (1, 2)])), quadratic)
    torch.testing.assert_close(
        means(model.distributions, model.features), means(model.empirical, model.features), rtol=0, atol=1e-10
    )


def test_pooled_quantiles_and_distribution_functions_vary_less_than_local_ones():
    """Three normal populations of 60, h(x) = (x, x²), 400 samples. Mean squared errors for the first."""
    truths, replicates = [(0, 1), (0.5, 1.2), (1, 0.9)], 400
    rng = np.random.default_rng(2)
    levels = torch.tensor([0.05, 0.5, 0.95])
    at = torch.tensor([float(norm.ppf(0.2))])
    errors = {"pooled": [], "local": []}
    for _ in range(replicates):
        model = DensityRatioModel.fit(*pool(normals(rng, (60, 60, 60), truths)), quadratic, tolerance=1e-8)
        x = model.points[:, 0]
        for name, weights in (("pooled", model.distributions), ("local", model.empirical)):
            found = torch.cat([quantiles(weights, x, levels), distribution_functions(weights, x, at)])
            errors[name].append(found[:, 0].numpy() - np.append(norm.ppf(levels.numpy()), 0.2))
    pooled, local = (np.square(errors[name]) for name in ("pooled", "local"))
    ratio = pooled.mean(0) / local.mean(0)
    # standard error of a ratio of means of pairs, by the delta method
    se = (pooled - ratio * local).std(0, ddof=1) / np.sqrt(replicates) / local.mean(0)
    assert (ratio + 3 * se < 1).all(), (ratio, se)


def test_goodness_of_fit_keeps_its_level_and_sees_a_wrong_basis():
    rng = np.random.default_rng(3)
    p_values = []
    for seed in range(30):
        model = DensityRatioModel.fit(*pool(normals(rng, (40, 40), [(0, 1), (1, 1)])))
        p_values.append(goodness_of_fit(model, replicates=19, seed=seed).p_value)
    # uniform on 1/20 … 1: the mean of 30 has the standard error 0.053, and 1 in 20 is 0.05 (7 of 30: 0.1 % by chance)
    assert abs(np.mean(p_values) - 0.525) < 4 * 0.053
    assert sum(p <= 0.05 for p in p_values) < 7
    widths = normals(rng, (100, 100), [(0, 1), (0, 2.5)])
    assert goodness_of_fit(DensityRatioModel.fit(*pool(widths)), replicates=39).p_value == 1 / 40
    assert goodness_of_fit(DensityRatioModel.fit(*pool(widths), quadratic), replicates=39).p_value > 1 / 40


def test_goodness_of_fit_by_hand():
    points = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    memberships = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    model = DensityRatioModel.fit(points, memberships)
    own = model.distributions.numpy()
    gap = np.abs(np.cumsum(own - memberships.numpy() / 2, axis=0)).max()
    assert goodness_of_fit(model, replicates=1).statistic == pytest.approx(np.sqrt(2) * gap)


def test_what_cannot_be_estimated_is_said():
    with pytest.raises(ValueError, match="levels"):
        quantiles(torch.ones(1, 1), torch.ones(1), torch.tensor([0.0]))
    with pytest.raises(ValueError, match="one number for each point"):
        quantiles(torch.ones(1, 1), torch.ones(1, 2), torch.tensor([0.5]))
    with pytest.raises(ValueError, match="every pooled point"):
        means(torch.ones(3, 1), torch.ones(2))
    model = DensityRatioModel.fit(torch.randn(4, 1), torch.full((4, 2), 0.5))
    with pytest.raises(ValueError, match="one-hot"):
        goodness_of_fit(model)
