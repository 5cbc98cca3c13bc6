"""Numbers of any dtype give what their float64 values give, at every door of density ratio models."""

import numpy as np
import pytest
import torch

from archipel.drm import (
    DensityRatioModel,
    distribution_functions,
    goodness_of_fit,
    linear,
    means,
    multipliers,
    pool,
    quadratic,
    quantiles,
    reliability,
)
from archipel.drm.strangers import p_values

A, B = [[90], [100], [110], [120]], [[100], [115], [125], [140]]
"""Blood pressures: their squares are no uint8 and no float16."""

INTEGERS = [
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
]
ARRAYS = [">i4", "<u2", ">f8", ">f4", "f2", "u8"]


def typed(values, dtype):
    return torch.tensor(values, dtype=dtype) if isinstance(dtype, torch.dtype) else np.array(values, dtype=dtype)


@pytest.fixture(scope="module")
def exact():
    return DensityRatioModel.fit(
        *pool([torch.tensor(A, dtype=torch.float64), torch.tensor(B, dtype=torch.float64)]), quadratic
    )


@pytest.mark.parametrize("dtype", [*INTEGERS, *ARRAYS], ids=str)
def test_points_and_queries_of_any_dtype_give_what_float64_gives(exact, dtype):
    first, second = (torch.tensor(v, dtype=torch.float64) for v in (A, B))
    if dtype is torch.bfloat16:  # its values have 8 bits: those that it can hold are compared
        first, second = first.to(dtype).double(), second.to(dtype).double()
        exact = DensityRatioModel.fit(*pool([first, second]), quadratic)
    model = DensityRatioModel.fit(*pool([typed(v.tolist(), dtype) for v in (first, second)]), quadratic)
    queries = typed([[96], [112], [136]], dtype)
    torch.testing.assert_close(model.xi, exact.xi, rtol=0, atol=0)
    torch.testing.assert_close(model.route(queries), exact.route(torch.tensor([[96.0], [112.0], [136.0]]).double()))
    values = typed([v for (v,) in [*first.int().tolist(), *second.int().tolist()]], dtype)
    expected = torch.cat([first, second])[:, 0]
    weights = exact.distributions
    torch.testing.assert_close(means(weights, values), means(weights, expected), rtol=0, atol=0)
    at = typed([100, 120], dtype)
    torch.testing.assert_close(
        distribution_functions(weights, values, at),
        distribution_functions(weights, expected, torch.tensor([100.0, 120.0])),
    )
    torch.testing.assert_close(
        quantiles(weights, values, torch.tensor([0.5])), quantiles(weights, expected, torch.tensor([0.5]))
    )
    found = goodness_of_fit(model, values[:, None], replicates=3)
    assert found.statistic == goodness_of_fit(exact, expected[:, None], replicates=3).statistic


def test_the_posterior_is_that_of_logistic_regression_on_real_squares():
    """Two populations of equal size: P(1|x) is a logistic regression's, here by Newton's method in NumPy."""
    x = np.array([*A, *B], dtype=np.float64)[:, 0]
    y = np.repeat([0.0, 1.0], 4)
    u = (x - x.mean()) / x.std()
    design = np.stack([np.ones_like(u), u, u**2], axis=1)
    beta = np.zeros(3)
    for _ in range(50):
        p = 1 / (1 + np.exp(-design @ beta))
        beta += np.linalg.solve((design * (p * (1 - p))[:, None]).T @ design, design.T @ (y - p))
    model = DensityRatioModel.fit(
        *pool([torch.tensor(A, dtype=torch.uint8), torch.tensor(B, dtype=torch.uint8)]), quadratic
    )
    points = torch.tensor([*A, *B], dtype=torch.uint8)
    np.testing.assert_allclose(model.route(points).exp()[:, 1], 1 / (1 + np.exp(-design @ beta)), rtol=1e-8)


def test_samples_of_several_dtypes_are_pooled_in_float64():
    large = torch.tensor([[2**24 + 1]])
    points, _ = pool([large, torch.zeros(1, 1)])
    assert points.tolist() == [[2**24 + 1.0], [0.0]]
    assert pool([torch.zeros(1, 2), torch.ones(1, 2)])[0].dtype == torch.float32
    assert linear(np.array([[1, 2]], dtype=">i2")).tolist() == [[1.0, 2.0]]


def test_networks_get_points_in_their_own_dtype():
    network = torch.nn.Linear(1, 2)
    points = torch.tensor([*A, *B], dtype=torch.uint8)
    memberships = torch.eye(2).repeat_interleave(4, 0)
    one = DensityRatioModel.fit(points, memberships, network, ridge=1.0)
    other = DensityRatioModel.fit(points.float(), memberships, network, ridge=1.0)
    torch.testing.assert_close(one.route(points), other.route(points.float()), rtol=0, atol=0)


def test_scores_and_posteriors_are_compared_in_float64():
    # 0.1 in float32 is a little more than 0.1: a held-out score of 0.1 in float64 lies below it
    assert p_values(torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.1])).item() == 1.0
    assert p_values(torch.tensor([0.1]), torch.tensor([0.1], dtype=torch.float64)).item() == 0.5
    assert p_values(torch.tensor([0, 1, 2]), torch.tensor([0.5])).item() == 0.5  # was 0.5 cut to 0
    assert reliability(torch.full((4, 3), 1 / 3, dtype=torch.float16), torch.tensor([0, 1, 2, 0])).count.sum() == 4
    found = multipliers(np.log(np.array([[2.0], [2.0], [0.5], [0.5]])).astype(">f8"))
    torch.testing.assert_close(found.weights, torch.tensor([1 / 6, 1 / 6, 1 / 3, 1 / 3], dtype=torch.float64))


@pytest.mark.parametrize(
    "values", [np.array([["a"]]), np.array([[1j]]), torch.tensor([[1j]])], ids=["text", "complex", "tensor"]
)
def test_what_is_no_real_number_is_refused(exact, values):
    with pytest.raises(ValueError, match="give real numbers"):
        exact.route(values)


def test_queries_of_another_width_or_with_nan_are_refused(exact):
    with pytest.raises(ValueError, match=r"shape \(2, 2\); give queries like the model's points, \(n, 1\)"):
        exact.route(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        exact.route(torch.zeros(1))
    with pytest.raises(ValueError, match=r"NaN or infinite values in 1 of 3 rows \(the first: row 1\)"):
        exact.route(torch.tensor([[100.0], [torch.nan], [90.0]]))
    with pytest.raises(ValueError, match="NaN or infinite"):
        exact.log_ratios(torch.tensor([[torch.inf]]))


def test_masked_points_queries_and_values_are_refused(exact):
    masked = np.ma.masked_array(np.array(A, dtype=float), mask=[[False], [True], [False], [False]])
    with pytest.raises(ValueError, match="NaN"):
        DensityRatioModel.fit(*pool([masked, np.array(B, dtype=float)]))
    with pytest.raises(ValueError, match="NaN"):
        exact.route(masked)
    values = np.ma.masked_array(np.arange(8.0), mask=np.arange(8) == 3)
    for estimate in (
        lambda: means(exact.distributions, values),
        lambda: quantiles(exact.distributions, values, [0.5]),
        lambda: distribution_functions(exact.distributions, values, [0.5]),
    ):
        with pytest.raises(ValueError, match="values hold NaN"):
            estimate()
    with pytest.raises(ValueError, match="finite"):
        goodness_of_fit(exact, values[:, None], replicates=1)
