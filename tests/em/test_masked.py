"""What lies behind a mask is nobody's value: it is missing where values may be, and refused elsewhere."""

import numpy as np
import pandas as pd
import pytest

from archipel.em.estimators import FederatedFactorModel, FederatedGaussianMixture, FederatedRegressionMixture


def masked(seed=0, n=60):
    rng = np.random.default_rng(seed)
    values = rng.normal(5, 1, size=(n, 1)) + 0.5 * rng.normal(size=(n, 3))
    hidden = rng.random(values.shape) < 0.1
    return np.ma.masked_array(np.where(hidden, -999.0, values), mask=hidden)


def test_a_factor_model_takes_masked_values_as_missing():
    x = masked()
    missing = x.filled(np.nan)
    for one, other in ((x, missing), ([x[:20], x[20:]], [missing[:20], missing[20:]])):
        found = FederatedFactorModel(1, random_state=0).fit(one)
        expected = FederatedFactorModel(1, random_state=0).fit(other)
        np.testing.assert_array_equal(found.mean_, expected.mean_)
        np.testing.assert_array_equal(found.impute(x), expected.impute(missing))
        assert found.bic(one) == expected.bic(other)
    assert abs(found.mean_ - 5).max() < 4 * np.sqrt(1.25 / 60)


def test_lists_of_masked_rows_are_read_with_their_masks():
    x = masked()
    expected = FederatedFactorModel(1, random_state=0).fit({"A": x.filled(np.nan)})
    found = FederatedFactorModel(1, random_state=0).fit({"A": list(x)})
    np.testing.assert_array_equal(found.mean_, expected.mean_)
    with pytest.raises(ValueError, match="A contains NaN"):
        FederatedGaussianMixture(1).fit({"A": tuple(x)})


@pytest.mark.parametrize("whole", [lambda x: x, lambda x: [x[:20], x[20:]]], ids=["one", "clients"])
def test_models_without_missing_values_refuse_them(whole):
    with pytest.raises(ValueError, match="NaN"):
        FederatedGaussianMixture(1).fit(whole(masked()))
    sound = FederatedGaussianMixture(1).fit(np.asarray(masked().data))
    for ask in (sound.predict, sound.score_samples, sound.bic):
        with pytest.raises(ValueError, match="NaN"):
            ask(masked())


def test_masked_targets_and_queries_of_regressions_are_refused():
    x = np.random.default_rng(0).normal(size=(40, 1))
    y = np.ma.masked_array(3 * x[:, 0], mask=np.arange(40) == 7)
    with pytest.raises(ValueError, match="NaN"):
        FederatedRegressionMixture(1, n_init=1).fit([x], [y])
    model = FederatedRegressionMixture(1, n_init=1, random_state=0).fit([x], [y.data])
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.ma.masked_array(x, mask=x > 0))
    whole = np.ma.masked_array(x, mask=np.zeros_like(x, dtype=bool))
    np.testing.assert_array_equal(model.predict(whole), model.predict(x))


def test_columns_numbered_otherwise_are_not_taken_by_position():
    x = pd.DataFrame(np.random.default_rng(0).normal([0, 9], size=(40, 2)))
    model = FederatedGaussianMixture(1)
    with pytest.raises(ValueError, match=r"client 1 has names of columns \(1, 0\), and client 0 has none"):
        model.fit([x, x[[1, 0]]])
    named = x.set_axis(["a", "b"], axis=1)
    with pytest.raises(ValueError, match=r"client 0 has names of columns \(a, b\), and client 1 has none"):
        model.fit([named, x.to_numpy()])
    patients = x.set_axis([4, 7], axis=1)
    model.fit([patients, patients])
    with pytest.raises(ValueError, match=r"X has the columns 7, 4, and the fit's data has 4, 7, in another order"):
        model.score(patients[[7, 4]])
    model.fit([x, x.to_numpy()])  # 0, 1, … name nothing
    np.testing.assert_allclose(model.means_[0], x.mean(), rtol=1e-9)
