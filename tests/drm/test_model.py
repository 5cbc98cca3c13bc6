"""Density ratio models against scikit-learn's logistic regression, normal populations, and brute force."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from archipel.drm import DensityRatioModel, linear, multipliers, pool, profile, quadratic


def normals(sizes, means, sds=None, seed=0):
    rng = np.random.default_rng(seed)
    sds = np.ones(len(sizes)) if sds is None else sds
    return [torch.tensor(rng.normal(mu, sd, (n, 1))) for n, mu, sd in zip(sizes, means, sds, strict=True)]


def information(sizes, means, features):
    """Information about (γ, ξ) of population 1 against 0 in the pooled logistic regression, by quadrature."""
    x = np.linspace(-12, 12, 20001)
    p = np.array([n * norm.pdf(x, mu) for n, mu in zip(sizes, means, strict=True)])
    h = features(x)
    return np.trapezoid(p[0] * p[1] / p.sum(0) * h[:, None] * h[None], x)


def test_two_normal_populations_have_the_ratio_on_paper():
    sizes, means = (4000, 2000), (0.3, 1.1)
    model = DensityRatioModel.fit(*pool(normals(sizes, means)))
    gamma, xi = model.gamma[0] - model.gamma[1], model.xi[0, 0] - model.xi[1, 0]
    covariance = np.linalg.inv(information(sizes, means, lambda x: np.stack([np.ones_like(x), x])))
    # 4 standard errors; γ's is smaller by 1/n₀ + 1/n₁, as the sizes are fixed by design
    se_xi = np.sqrt(covariance[1, 1])
    se_gamma = np.sqrt(covariance[0, 0] - 1 / sizes[0] - 1 / sizes[1])
    assert 0.02 < se_xi < 0.05
    assert abs(float(xi) - (means[0] - means[1])) < 4 * se_xi
    assert abs(float(gamma) - (means[1] ** 2 - means[0] ** 2) / 2) < 4 * se_gamma


def test_estimates_close_in_on_the_truth_like_the_root_of_n():
    """Squared errors of ξ over 30 samples against the asymptotic variance, at two sizes."""
    for n in (100, 1600):
        errors = []
        for seed in range(30):
            model = DensityRatioModel.fit(*pool(normals((n, n), (0, 1), seed=seed)), reference=0)
            errors.append(float(model.xi[1, 0]) - 1)
        variance = np.linalg.inv(information((n, n), (0, 1), lambda x: np.stack([np.ones_like(x), x])))[1, 1]
        # χ² with 30 degrees of freedom over 30: 0.37 to 2.1 holds with probability 0.9995
        assert 0.37 < np.mean(np.square(errors)) / variance < 2.1


def test_the_dual_is_a_multinomial_logistic_regression():
    samples = normals((60, 40, 50), (0, 0.5, 1.5), (1, 1.3, 0.8))
    points, memberships = pool(samples)
    model = DensityRatioModel.fit(points, memberships, quadratic)
    witness = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000, solver="newton-cg")
    witness.fit(model.features.numpy(), memberships.argmax(1).numpy())
    np.testing.assert_allclose(model.route(points).exp(), witness.predict_proba(model.features.numpy()), atol=1e-5)


@pytest.mark.parametrize("reference", [None, 0, 2])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_every_population_and_the_baseline_have_mass_one(reference, ridge):
    points, memberships = pool(normals((30, 40, 50), (0, 0.5, 1.5)))
    model = DensityRatioModel.fit(points, memberships, quadratic, reference=reference, ridge=ridge)
    torch.testing.assert_close(model.distributions.sum(0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-10)
    assert float(model.baseline.sum()) == pytest.approx(1, abs=1e-10)
    if reference is not None:
        assert float(model.gamma[reference]) == 0
        assert float(model.xi[reference].abs().max()) == 0
    # r solves eq. (5) with λ = τ/n
    ratios = model.log_ratios(points)
    torch.testing.assert_close(model.baseline, multipliers(ratios).weights, rtol=1e-8, atol=0)


def test_descriptions_by_different_references_are_the_same_populations():
    points, memberships = pool(normals((30, 40, 50), (0, 0.5, 1.5)))
    one, other = (DensityRatioModel.fit(points, memberships, quadratic, reference=r) for r in (None, 1))
    torch.testing.assert_close(one.distributions, other.distributions, rtol=1e-8, atol=1e-14)
    torch.testing.assert_close(one.route(points), other.route(points), rtol=1e-8, atol=1e-10)
    assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-8)
    torch.testing.assert_close(one.tau @ one.xi, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-8)


def test_it_maximises_the_profile_likelihood_itself():
    """The profile likelihood, with multipliers solved for at every point, climbed by a search without gradients."""
    points, memberships = pool(normals((12, 9), (0, 0.8), seed=3))
    model = DensityRatioModel.fit(points, memberships, reference=0)
    shares = memberships.log()

    def negative(flat):
        ratios = torch.cat([torch.zeros(21, 1), flat[0] + flat[1] * points], dim=1)
        try:
            return -float(profile(ratios, shares))
        except ValueError:
            return 1e3  # outside the hull: −∞

    start = [float(model.gamma[1]) + 0.02, float(model.xi[1, 0]) - 0.05]
    found = minimize(negative, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    assert -found.fun == pytest.approx(model.log_likelihood, abs=1e-8)
    np.testing.assert_allclose(found.x, [float(model.gamma[1]), float(model.xi[1, 0])], atol=1e-4)


def test_responsibilities_count_like_copies():
    """A point that is a third population 0's and two thirds population 1's is three points, one and two of them."""
    points, memberships = pool(normals((10, 15), (0, 1)))
    shared = torch.cat([memberships[:-1], torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64)])
    copies = torch.cat([points[:-1].repeat(3, 1), points[-1:].repeat(3, 1)])
    thrice = torch.cat([memberships[:-1].repeat(3, 1), torch.tensor([[1.0, 0], [0, 1], [0, 1]], dtype=torch.float64)])
    one = DensityRatioModel.fit(points, shared, reference=0)
    other = DensityRatioModel.fit(copies, thrice, reference=0)
    torch.testing.assert_close(one.xi, other.xi, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(one.gamma, other.gamma, rtol=1e-8, atol=1e-10)


def test_units_of_measurement_do_not_matter():
    points, memberships = pool(normals((40, 50), (0, 1)))
    plain = DensityRatioModel.fit(points, memberships, quadratic, reference=0)
    scaled = DensityRatioModel.fit(1e5 * points + 1e6, memberships, quadratic, reference=0)
    # of (x + 10)² the x² is to be told: two digits are lost in the features, and twice as many in Newton's system
    torch.testing.assert_close(plain.distributions, scaled.distributions, rtol=1e-5, atol=1e-10)


def test_repeated_features_change_nothing():
    points, memberships = pool(normals((40, 50, 20), (0, 1, 2)))
    plain = DensityRatioModel.fit(points, memberships)
    repeated = DensityRatioModel.fit(points, memberships, lambda x: torch.cat([x, 2 * x, torch.ones_like(x)], 1))
    torch.testing.assert_close(plain.distributions, repeated.distributions, rtol=1e-8, atol=1e-14)


def test_networks_are_bases_and_are_not_trained():
    network = torch.nn.Linear(1, 3)
    points, memberships = pool(normals((40, 50), (0, 1)))
    model = DensityRatioModel.fit(points.float(), memberships, network)
    assert not model.features.requires_grad
    assert model.xi.shape == (2, 3)
    assert network.weight.grad is None


def test_separate_populations_are_named_and_ridge_helps():
    samples = [torch.arange(5.0)[:, None] + shift for shift in (0, 20, 2)]
    with pytest.raises(
        ValueError, match=r"separates population (1 from population [02]|[02] from population 1).*ridge"
    ):
        DensityRatioModel.fit(*pool(samples))
    model = DensityRatioModel.fit(*pool(samples), ridge=0.01)
    torch.testing.assert_close(model.distributions.sum(0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)


def test_quadratic_features_make_the_ratio_of_normals():
    """Log N(x; μ, Σ) is a linear function of them: no residual."""
    x = torch.tensor(np.random.default_rng(0).normal(size=(30, 3)))
    covariance = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 0.7]], dtype=torch.float64)
    truth = torch.distributions.MultivariateNormal(torch.tensor([1.0, 0, -1], dtype=torch.float64), covariance)
    h = torch.cat([torch.ones(30, 1, dtype=torch.float64), quadratic(x)], 1)
    assert h.shape == (30, 10)
    target = truth.log_prob(x)
    torch.testing.assert_close(h @ torch.linalg.lstsq(h, target[:, None]).solution[:, 0], target)


@pytest.mark.parametrize(
    ("points", "memberships", "options", "said"),
    [
        (torch.zeros(3, 1), torch.ones(2, 1), {}, "memberships"),
        (torch.zeros(3, 1), torch.full((3, 2), 0.7), {}, "sum to one"),
        (torch.zeros(3, 1), torch.tensor([[1.0, 0]] * 3), {}, r"\[1\] hold no points"),
        (torch.full((2, 1), torch.nan), torch.eye(2), {}, "NaN"),
        (torch.zeros(2, 1), torch.eye(2), {"reference": 2}, "reference"),
        (torch.zeros(2, 1), torch.eye(2), {"ridge": -1.0}, "ridge"),
        (torch.zeros(2, 1), torch.eye(2), {"basis": lambda x: x[:, 0]}, "features"),
    ],
)
def test_what_cannot_be_fitted_is_said(points, memberships, options, said):
    with pytest.raises(ValueError, match=said):
        DensityRatioModel.fit(points, memberships, **options)


def test_routing_takes_the_prior_it_is_given():
    points, memberships = pool(normals((90, 30), (0, 1)))
    model = DensityRatioModel.fit(points, memberships)
    even = torch.tensor([0.5, 0.5])
    gap = model.route(points) - model.route(points, even)
    odds = gap[:, 0] - gap[:, 1]
    torch.testing.assert_close(odds, torch.full_like(odds, np.log(3)))
    assert torch.equal(linear(points), points)
