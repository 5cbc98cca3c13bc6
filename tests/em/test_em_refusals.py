"""Bad input at the estimators' doors: an error or a warning that says what to do, never NaN, never a wrong answer."""

import math
import warnings

import numpy as np
import pytest
import torch

from archipel import FedEM, Federation, fit
from archipel.em.estimators import (
    FederatedFactorModel,
    FederatedGaussianMixture,
    FederatedLatentClass,
    FederatedRegressionMixture,
)
from archipel.families import FactorModel, GaussianMixture

RNG = np.random.default_rng(0)
TWO = [RNG.normal(size=(20, 2)), RNG.normal(size=(30, 2)) + 6]


def test_a_rate_of_0_and_an_empty_compressor_are_refused_not_taken_for_none():
    with pytest.raises(ValueError, match="rate must be above 0"):
        FederatedGaussianMixture(2, rate=0.0).fit(TWO)
    with pytest.raises(TypeError, match="compressor"):
        FederatedGaussianMixture(2, compressor="").fit(TWO)


def test_clients_whose_names_are_written_alike_do_not_replace_each_other():
    with pytest.raises(ValueError, match="differ as strings; given are 1, '1'"):
        FederatedGaussianMixture(2).fit({1: TWO[0], "1": TWO[1]})
    with pytest.raises(ValueError, match="differ as strings"):
        FederatedRegressionMixture(1).fit({1: TWO[0], 2: TWO[1]}, {1: TWO[0][:, 0], "1": TWO[1][:, 0]})


def test_a_client_named_by_a_number_is_found_by_its_name():
    model = FederatedGaussianMixture(2, personal_weights=True, random_state=0).fit({1: TWO[0], 0: TWO[1]})
    halfway = [[3.0, 3.0]]
    np.testing.assert_array_equal(model.predict_proba(halfway, client=1), model.predict_proba(halfway, client="1"))
    assert model.predict(TWO[0], client=1)[0] == model.client_weights_[0].argmax()  # client 1 is the first of the fit
    for wrong in (2, -1, 1.5, True, None.__class__):
        with pytest.raises(ValueError, match="There is no client"):
            model.predict(halfway, client=wrong)


def test_no_clients_are_no_matrix():
    for nobody in ([], {}):
        with pytest.raises(ValueError, match="There are no clients"):
            FederatedGaussianMixture(1).fit(nobody)


def test_targets_that_are_no_list_are_refused():
    with pytest.raises(ValueError, match="y must have the targets of the same"):
        FederatedRegressionMixture(1).fit(TWO, 3)


def test_rows_out_of_reach_of_float64_are_refused():
    model = FederatedGaussianMixture(2, random_state=0).fit(TWO)
    with pytest.raises(ValueError, match=r"Row 1 is so far .* 1 of 2 rows"):
        model.predict([[0.0, 0.0], [1e300, 0.0]])
    assert model.predict_proba([[1e30, 0.0]]).sum() == 1


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_covariances_lost_to_rounding_are_told(kind):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            FederatedGaussianMixture(2, covariance_type=kind, random_state=0).fit([TWO[0], TWO[1] + 1e9])
            told = " ".join(str(warning.message) for warning in warned)
        except ValueError as error:  # rounding may leave no positive definite matrix at all
            told = str(error)
    assert any(part in told for part in ("mostly rounding", "is singular in float64", "leave nothing of variances"))


def test_covariances_of_groups_far_apart_are_right():
    # Distances of 1e5 standard deviations cost eps · 1e10 of a variance: 2e-6, which is nothing to speak of.
    model = FederatedGaussianMixture(2, random_state=0, reg_covar=1e-12).fit([TWO[0], TWO[1] + 1e5])
    order = model.weights_.argsort()
    expected = [np.cov(x.T, bias=True) for x in TWO]
    np.testing.assert_allclose(model.covariances_[order], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("levels", "what"),
    [(3, "levels must be a tuple"), ((2,), "1 numbers for 2 columns"), ("23", "levels must be a tuple")],
)
def test_levels_that_are_not_one_number_a_column_are_refused(levels, what):
    with pytest.raises(ValueError, match=what):
        FederatedLatentClass(1, levels=levels).fit([np.array([[0, 1], [1, 2]])])


def test_codes_are_not_taken_for_millions_of_answers():
    with pytest.raises(ValueError, match=r"Column 1 goes up to 1e\+12"):
        FederatedLatentClass(1).fit([np.array([[0, 1e12], [1, 2]])])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_steps_that_are_far_too_large_are_projected_and_counted():
    model = FederatedFactorModel(1, rate=1e200, max_iter=6, random_state=0).fit(TWO)
    assert np.isfinite(model.components_).all()
    assert model.n_projected_ > 0


def test_statistics_that_are_not_finite_are_projected_and_counted():
    family = FactorModel(2, 1)
    s = {"latent": torch.full((2, 3), math.inf), "cross": torch.zeros(2, 2), "square": torch.ones(2)}
    projected, outside = family.project({name: t.double() for name, t in s.items()})
    assert all(torch.isfinite(t).all() for t in projected.values())
    assert outside


START = {
    "weight": torch.full((2,), 0.5),
    "mean": torch.tensor([[0.0, 0.0], [6.0, 6.0]]),
    "covariance": torch.eye(2).repeat(2, 1, 1),
}


def run(start):
    parts = [(torch.from_numpy(x).float(), torch.zeros(len(x))) for x in TWO]
    return fit(FedEM(GaussianMixture(2, 2), start), Federation.from_arrays(parts, test=0.0), rounds=1)


def test_a_start_of_single_precision_is_as_good():
    double = run({name: t.double() for name, t in START.items()})
    torch.testing.assert_close(run(START).server["theta"], double.server["theta"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("start", "error", "what"),
    [
        ({}, ValueError, "has nothing, which doesn't fit"),
        (START | {"mean": torch.zeros(3, 2)}, ValueError, r"mean \(3, 2\)"),
        (START | {"mean": torch.zeros(2, 5)}, ValueError, r"mean \(2, 5\)"),
        (START | {"mean": torch.full((2, 2), math.nan)}, ValueError, "mean holds NaN or infinite values"),
        (START | {"weight": torch.tensor([5.0, -4.0])}, ValueError, "0 or above and sum to 1"),
        (START | {"weight": np.full(2, 0.5)}, TypeError, "its weight is a ndarray"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start, error, what):
    with pytest.raises(error, match=what):
        run(start)
