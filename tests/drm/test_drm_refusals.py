"""Bad input at the doors of density ratio models: errors, where there was NaN, nonsense or another library's error."""

import math

import numpy as np
import pytest
import torch

from archipel.drm import DensityRatioModel, distribution_functions, goodness_of_fit, pool, quantiles, reliability
from archipel.drm.strangers import p_values


@pytest.fixture(scope="module")
def model():
    x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    return DensityRatioModel.fit(*pool([x[:30], x[30:] + 1]))


@pytest.mark.parametrize(
    ("samples", "what"),
    [
        ([], "given 0"),
        ([torch.zeros(2, 1), torch.zeros(2, 2)], r"\(2, 1\), \(2, 2\)"),
        ([torch.zeros(2, 1), [[1.0]]], "a list"),
    ],
)
def test_samples_that_cannot_be_pooled_are_refused(samples, what):
    with pytest.raises(ValueError, match=what):
        pool(samples)


def test_a_reference_is_a_number(model):
    with pytest.raises(ValueError, match="reference is True"):
        DensityRatioModel.fit(model.points, model.memberships, reference=True)


def test_features_whose_squares_overflow_are_refused(model):
    with pytest.raises(ValueError, match="Change their units"):
        DensityRatioModel.fit(model.points.double() * 1e200, model.memberships)


@pytest.mark.parametrize("prior", [[-1.0, 2.0], [0.5, 0.3, 0.2], [0.0, 0.0], [math.nan, 1.0]])
def test_priors_are_shares(model, prior):
    with pytest.raises(ValueError, match="prior is"):
        model.route(model.points, torch.tensor(prior))


def test_quantiles_and_distribution_functions_refuse_nan(model):
    x, p = model.points[:, 0], model.distributions
    with pytest.raises(ValueError, match="must be above 0"):
        quantiles(p, x, torch.tensor([math.nan]))
    with pytest.raises(ValueError, match="values hold NaN"):
        quantiles(p, x * math.nan, torch.tensor([0.5]))
    with pytest.raises(ValueError, match="at holds NaN"):
        distribution_functions(p, x, torch.tensor([math.nan]))


def test_the_quantile_of_a_whole_number_is_the_largest_point(model):
    x = model.points[:, 0].double()
    assert quantiles(model.distributions, x, torch.tensor([1])).tolist() == [[float(x.max())] * 2]


def test_reliability_takes_no_logarithms(model):
    origin = model.memberships.argmax(1)
    with pytest.raises(ValueError, match=r"route\(x\)\.exp\(\)"):
        reliability(model.route(model.points), origin)
    with pytest.raises(ValueError, match="must hold probabilities"):
        reliability(model.route(model.points).exp() * math.nan, origin)
    assert reliability(model.route(model.points).exp(), origin).count.sum() == 60


@pytest.mark.parametrize("values", [torch.full((60, 1), math.nan), torch.zeros(60), torch.zeros(59, 1)])
def test_goodness_of_fit_compares_finite_tables(model, values):
    with pytest.raises(ValueError, match="give finite numbers"):
        goodness_of_fit(model, values, replicates=1)


def test_a_score_that_is_nan_is_not_usual():
    with pytest.raises(ValueError, match="scores hold NaN"):
        p_values(torch.tensor([1.0, 2.0]), torch.tensor([math.nan]))


def test_reliability_reads_arrays_and_refuses_what_is_masked():
    posterior, origin = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1])
    assert reliability(posterior, origin).accuracy.tolist() == [1.0, 1.0]
    assert reliability(np.ma.array(posterior), origin).count.tolist() == [1, 1]
    with pytest.raises(ValueError, match="must hold probabilities"):
        reliability(np.ma.array(posterior, mask=[[True, False], [False, False]]), origin)
    with pytest.raises(ValueError, match="origin must hold the number of each query"):
        reliability(posterior, np.ma.array(origin, mask=[True, False]))
