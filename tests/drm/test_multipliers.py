"""Multipliers against closed forms, constrained maximisation over the weights, and linear programming."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize

from archipel.drm import multipliers, multipliers_by_root
from archipel.drm.multipliers import log_star

SOLVERS = (multipliers, multipliers_by_root)


def tilted(n, L, seed, spread=0.6):
    """Log-ratios of L random tilts at n normal points that have mass one under some weights."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, 2)) @ rng.normal(size=(2, L)) * spread
    return torch.tensor(a - np.log(rng.dirichlet(np.full(n, 3.0)) @ np.exp(a)))


def by_brute_force(g):
    """Σ log r maximised over r directly, subject to Σ r = 1 and Σ r g = 0."""
    n = len(g)
    rows = np.column_stack([np.ones(n), g]).T
    target = np.zeros(len(rows))
    target[0] = 1
    feasible = most_mass(g)[1]
    found = minimize(
        lambda r: -np.log(r).sum(),
        feasible,
        jac=lambda r: -1 / r,
        constraints={"type": "eq", "fun": lambda r: rows @ r - target, "jac": lambda r: rows},
        bounds=[(1e-9, 1)] * n,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    r = found.x
    lam = np.linalg.lstsq(g, 1 / (n * r) - 1, rcond=None)[0]  # eq. (5)
    return r, lam, np.log(r).sum()


def most_mass(g):
    """Max t subject to r_j ≥ t, Σ r = 1, Σ r g = 0: above 0 just if 0 is inside the convex hull."""
    n, L = g.shape
    found = linprog(
        np.append(np.zeros(n), -1),
        A_ub=np.column_stack([-np.eye(n), np.ones(n)]),
        b_ub=np.zeros(n),
        A_eq=np.vstack([np.append(np.ones(n), 0), np.column_stack([g.T, np.zeros(L)])]),
        b_eq=np.append(1, np.zeros(L)),
        bounds=[(0, None)] * n + [(None, None)],
    )
    return (found.x[-1], found.x[:-1]) if found.status == 0 else (-math.inf, None)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(("n", "L", "seed"), [(8, 2, 0), (10, 3, 1), (12, 3, 2), (12, 2, 3)])
def test_weights_multipliers_and_value_are_those_of_the_constrained_maximum(solve, n, L, seed):
    a = tilted(n, L, seed)
    found = solve(a)
    r, lam, value = by_brute_force(np.expm1(a.numpy()))
    assert found.inside
    # the accuracy of SLSQP, that of the issue
    np.testing.assert_allclose(found.weights, r, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.values, lam, rtol=0, atol=2e-6 * max(1, np.abs(lam).max()) * n)
    assert found.value == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(("low", "high", "k"), [(0.5, 2.0, 2), (0.9, 10.0, 1), (0.01, 1.1, 7)])
def test_two_values_of_one_ratio_have_a_closed_form(solve, low, high, k):
    """K points have the ratio ``high``, 10 − k ``low``: their mass P solves P high + (1 − P) low = 1."""
    a = torch.tensor([high] * k + [low] * (10 - k), dtype=torch.float64).log()[:, None]
    mass = (1 - low) / (high - low)
    expected = torch.tensor([mass / k] * k + [(1 - mass) / (10 - k)] * (10 - k), dtype=torch.float64)
    found = solve(a)
    torch.testing.assert_close(found.weights, expected, rtol=1e-9, atol=0)  # the solvers' tolerance, 1e-10
    lam = (1 / (10 * expected[0]) - 1) / (high - 1)
    torch.testing.assert_close(found.values, lam[None], rtol=1e-8, atol=0)


def test_equations_4_to_6_hold_for_many_populations():
    a = tilted(3000, 40, seed=4)
    found = multipliers(a)
    ratios = a.exp()
    z = 1 + (ratios - 1) @ found.values
    torch.testing.assert_close(found.weights, 1 / (3000 * z), rtol=1e-9, atol=0)  # rounding of z, whose terms are large
    ones = torch.ones(40, dtype=torch.float64)
    torch.testing.assert_close(found.weights @ ratios, ones, rtol=0, atol=2e-10)  # twice the residual's tolerance
    assert float(found.weights.sum()) == pytest.approx(1, abs=1e-9)
    assert found.residual <= 1e-10


def test_the_hull_is_told_as_by_linear_programming():
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(150):
        n, L = int(rng.integers(4, 9)), int(rng.integers(1, 4))
        a = torch.tensor(rng.normal(size=(n, L)))
        expected = most_mass(np.expm1(a.numpy()))[0] > 1e-7
        assert multipliers(a).inside == expected
        seen.append(expected)
    assert 30 < sum(seen) < 120  # both happen


def test_where_no_weights_exist_there_are_none():
    found = multipliers(torch.tensor([[0.5, 0.1], [0.2, -0.1]]))
    assert not found.inside
    assert found.value == -math.inf
    assert bool(found.weights.isnan().all())
    assert bool(found.values.isnan().all())


@pytest.mark.parametrize(
    "ratios",
    [
        [[1.0], [2.0]],  # only all mass on the first point would do
        [[2.0, 1.0], [0.5, 1.0], [1.5, 2.0]],  # the third point must have none
    ],
)
def test_zero_on_the_boundary_of_the_hull_is_not_inside(ratios):
    assert not multipliers(torch.tensor(ratios).log()).inside


def test_repeated_constraints_change_no_weight():
    a = tilted(200, 3, seed=5)
    plain = multipliers(a)
    repeated = multipliers(torch.cat([a, a[:, :2], torch.zeros(200, 1)], dim=1))
    torch.testing.assert_close(repeated.weights, plain.weights, rtol=1e-8, atol=0)
    # what is given to a column and its copy together is what the column alone had
    together = repeated.values[:3] + torch.cat([repeated.values[3:5], torch.zeros(1)])
    torch.testing.assert_close(together, plain.values, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-7])
def test_columns_that_hardly_differ_span_what_their_difference_spans(apart):
    rng = np.random.default_rng(6)
    u, v = rng.normal(size=(2, 100)) * 0.3
    # The residual is sought to rounding: a residual of 1e-10 of u would leave one of 1e-10/apart in v's constraint.
    found = multipliers(torch.log1p(torch.tensor(np.column_stack([u, u + apart * v]))), tolerance=1e-15)
    expected = multipliers(torch.log1p(torch.tensor(np.column_stack([u, v]))), tolerance=1e-15)
    # Rounding of 1 + u and of 1 + u + apart v, ε/2 (1 + |u|) each, of log1p and of expm1, divided by apart.
    torch.testing.assert_close(found.weights, expected.weights, rtol=10 * 2.2e-16 / apart, atol=0)


def test_large_ratios_do_not_overflow():
    """One point in eight has the ratio e^300, the others e⁻³⁰⁰: mass (1 − e⁻³⁰⁰)/(e³⁰⁰ − e⁻³⁰⁰) on it."""
    a = torch.full((8, 1), -300.0, dtype=torch.float64)
    a[0] = 300.0
    found = multipliers(a)
    assert found.inside
    assert float(found.weights[0].log()) == pytest.approx(-300, abs=1e-9)
    torch.testing.assert_close(found.weights[1:], torch.full((7,), 1 / 7, dtype=torch.float64), rtol=1e-9, atol=0)


def test_ratios_near_one_keep_their_digits():
    rng = np.random.default_rng(7)
    u = torch.tensor(rng.normal(size=(50, 2)))
    near = multipliers(torch.log1p(1e-9 * u))
    far = multipliers(torch.log1p(1e-3 * u))
    torch.testing.assert_close(
        near.values * 1e-9, far.values * 1e-3, rtol=1e-6, atol=0
    )  # exact up to rounding of log1p


def test_any_start_leads_to_the_same_multipliers():
    a = tilted(60, 3, seed=8)
    expected = multipliers(a).values
    for start in (torch.zeros(3), torch.tensor([0.9, -0.9, 5.0]), expected):
        torch.testing.assert_close(multipliers(a, start=start).values, expected, rtol=1e-7, atol=1e-9)
    assert multipliers(a, start=expected).iterations == 0


def test_log_star_continues_the_logarithm_twice_differentiably():
    least = 0.1
    z = torch.tensor([least - 1e-9, least + 1e-9], dtype=torch.float64)
    for below, above in (part.tolist() for part in log_star(z, least)):
        assert below == pytest.approx(above, rel=1e-7)
    z = torch.tensor([-2.0, 0.05, 0.5], dtype=torch.float64, requires_grad=True)
    value, slope, curvature = log_star(z, least)
    (first,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    torch.testing.assert_close(first, slope)
    torch.testing.assert_close(-torch.autograd.grad(first.sum(), z)[0], curvature)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(3), "shape"),
        (torch.zeros(0, 2), "shape"),
        (torch.full((2, 2), math.nan), "NaN"),
        (torch.full((2, 2), 1e4), "600"),
    ],
)
def test_what_cannot_be_solved_is_said(solve, given, said):
    with pytest.raises(ValueError, match=said):
        solve(given)
    with pytest.raises(ValueError, match="start"):
        solve(torch.zeros(4, 2), start=torch.zeros(3))
    with pytest.raises(ValueError, match="tolerance"):
        solve(torch.zeros(4, 2), tolerance=0.0)
