"""Gaussian mixtures against scikit-learn, textbook EM in numpy, and what is known of their statistics."""

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture as Witness

from archipel.core import keys
from archipel.core.trees import add, leaves, scaled
from archipel.families import GaussianMixture, InverseWishart, Ridge

KINDS = ("full", "tied", "diag", "spherical")
K, D, N = 3, 2, 150


def rows(n, first=0):
    """A mask of n true rows, those before ``first`` false."""
    return torch.arange(n) >= first


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(3)
    blobs = [rng.normal(size=(N // K, D)) @ rng.normal(size=(D, D)) + 2 * rng.normal(size=D) for _ in range(K)]
    return torch.tensor(np.concatenate(blobs))


def start(x, kind):
    """The same rough parameters for everybody: three data points, unit covariances."""
    covariance = {"full": torch.eye(D).expand(K, D, D), "tied": torch.eye(D)[None]}.get(kind)
    if covariance is None:
        covariance = torch.ones(K, D if kind == "diag" else 1)
    weight = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    return {"weight": weight, "mean": x[[0, 60, 120]], "covariance": covariance.double()}


def em(family, theta, x, steps=1):
    for _ in range(steps):
        theta = family.maximise(family.statistics(theta, {"x": x}, rows(len(x))))
    return theta


def dense(theta, kind):
    """The covariances as K matrices."""
    c = theta["covariance"].numpy()
    if kind in ("full", "tied"):
        return np.broadcast_to(c, (K, D, D))
    return np.stack([np.diag(np.broadcast_to(v, D)) for v in c])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "tolerance"), [(1, 1e-12), (60, 1e-9)])  # rounding grows
def test_it_is_scikit_learns(x, kind, steps, tolerance):
    theta = start(x, kind)
    precisions = {"full": np.stack([np.eye(D)] * K), "tied": np.eye(D), "diag": np.ones((K, D))}.get(kind, np.ones(K))
    witness = Witness(
        K, covariance_type=kind, tol=0, reg_covar=1e-3, max_iter=steps,
        weights_init=theta["weight"].numpy(), means_init=theta["mean"].numpy(), precisions_init=precisions,
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):  # that it hasn't converged
        witness.fit(x.numpy())
    family = GaussianMixture(K, D, kind, Ridge(1e-3))
    theta = em(family, theta, x, steps)
    assert theta["weight"].numpy() == pytest.approx(witness.weights_, abs=tolerance)
    assert theta["mean"].numpy() == pytest.approx(witness.means_, abs=tolerance)
    found = theta["covariance"].numpy().reshape(witness.covariances_.shape)
    assert found == pytest.approx(witness.covariances_, abs=tolerance)
    assert family.parameters() == witness._n_parameters()
    assert family.log_likelihood(theta, {"x": x}).numpy() == pytest.approx(witness.score_samples(x), abs=tolerance)
    assert family.posterior(theta, {"x": x}).exp().numpy() == pytest.approx(witness.predict_proba(x), abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_are_scipys(x, kind):
    family = GaussianMixture(K, D, kind)
    theta = em(family, start(x, kind), x, 5)
    parts = zip(theta["weight"], theta["mean"], dense(theta, kind), strict=True)
    joint = np.stack([w.item() * multivariate_normal(m, c).pdf(x) for w, m, c in parts], 1)
    assert family.log_likelihood(theta, {"x": x}).exp().numpy() == pytest.approx(joint.sum(1), rel=1e-10)
    r = joint / joint.sum(1, keepdims=True)
    # The statistics by hand, of the rows that count.
    mask = rows(N, first=17)
    s = family.statistics(theta, {"x": x}, mask)
    r, y = r[17:], x.numpy()[17:]
    second = np.einsum("nk,ni,nj->kij", r, y, y)
    i, j = np.triu_indices(D)
    expected = {
        "full": second[:, i, j],
        "tied": second.sum(0, keepdims=True)[:, i, j],
        "diag": np.einsum("kii->ki", second),
        "spherical": np.einsum("kii->k", second)[:, None],
    }[kind]
    assert s["weight"].numpy() == pytest.approx(r.mean(0), rel=1e-10)
    assert s["sum"].numpy() == pytest.approx(r.T @ y / len(y), rel=1e-9, abs=1e-12)
    assert s["scatter"].numpy() == pytest.approx(expected / len(y), rel=1e-9, abs=1e-12)


def test_standardised_data_in_twenty_dimensions_to_ten_digits():
    rng = np.random.default_rng(0)
    n, d, K = 500, 20, 20
    x = rng.normal(size=(n, d))
    x = (x - x.mean(0)) / x.std(0)
    weight, mean = np.full(K, 1 / K), x[:K]
    factors = rng.normal(size=(K, d, d))
    covariance = factors @ factors.transpose(0, 2, 1) / d + 0.3 * np.eye(d)
    # Textbook EM
    parts = zip(weight, mean, covariance, strict=True)
    logs = np.stack([np.log(w) + multivariate_normal(m, c).logpdf(x) for w, m, c in parts], 1)
    r = np.exp(logs - np.logaddexp.reduce(logs, 1)[:, None])
    m = r.T @ x / r.sum(0)[:, None]
    gaps = x[:, None] - m
    S = np.einsum("nk,nki,nkj->kij", r, gaps, gaps) / r.sum(0)[:, None, None] + 1e-3 * np.eye(d)
    family = GaussianMixture(K, d, shrinkage=Ridge(1e-3))
    theta = {"weight": weight, "mean": mean, "covariance": covariance}
    new = em(family, {name: torch.tensor(value) for name, value in theta.items()}, torch.tensor(x))
    assert new["weight"].numpy() == pytest.approx(r.mean(0), abs=1e-10)
    assert new["mean"].numpy() == pytest.approx(m, abs=1e-10)
    assert new["covariance"].numpy() == pytest.approx(S, abs=1e-10)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_the_e_steps_products_lose_what_is_stated(x, spread):
    family = GaussianMixture(K, D, shrinkage=Ridge(1e-20))
    small = 1 + spread * x  # off the centre by 1/spread standard deviations
    theta = em(family, start(small, "full") | {"covariance": spread**2 * torch.eye(D).expand(K, D, D).double()}, small)
    by_products = torch.logsumexp(family.features({"x": small}) @ family.natural(theta).T, 1)
    deviation = torch.linalg.eigvalsh(theta["covariance"]).min().sqrt()
    bound = 5e-16 * (small.norm(dim=1).max() / deviation) ** 2 + 1e-13
    assert (by_products - family.log_likelihood(theta, {"x": small})).abs().max() < bound


def test_a_full_message_has_no_number_too_many():
    family = GaussianMixture(4, 5)
    theta = family.maximise(family.complete(torch.rand(9, 4), {"x": torch.randn(9, 5)}, rows(9)))
    s = family.statistics(theta, {"x": torch.randn(9, 5)}, rows(9))
    assert sum(leaf.numel() for leaf in leaves(s)) == 4 * (1 + 5 + 15)
    assert all(leaf.dtype == torch.float64 for leaf in leaves(s))


def test_two_far_clients_give_the_pooled_variance():
    # Within-variance 1 each, means −5 and 5: 1 + 25
    family = GaussianMixture(1, 1, shrinkage=Ridge(1e-12))
    one = torch.tensor([[-1.0], [1.0]]).double()
    theta = em(family, family.maximise(family.complete(torch.ones(2, 1), {"x": one}, rows(2))), one)
    s = [family.statistics(theta, {"x": one + shift}, rows(2)) for shift in (-5, 5)]
    assert family.maximise(scaled(add(*s), 0.5))["covariance"].item() == pytest.approx(26, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shrinkage", [InverseWishart(0.05, 0.7), Ridge(0.3)])
def test_the_penalised_likelihood_never_falls(x, kind, shrinkage):
    if kind != "tied" and isinstance(shrinkage, Ridge):
        kind, family = "full", GaussianMixture(1, D, "full", shrinkage)  # one component: the ridge is exact
        theta = {"weight": torch.ones(1).double(), "mean": x[:1], "covariance": torch.eye(D)[None].double()}
    else:
        family, theta = GaussianMixture(K, D, kind, shrinkage), start(x, kind)
    values = []
    for _ in range(40):
        values.append((family.penalty(theta) - family.log_likelihood(theta, {"x": x}).mean()).item())
        theta = em(family, theta, x)
    assert max(np.diff(values)) < 1e-12  # rounding of values of the order of 1
    assert values[0] - values[-1] > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_prior_is_inverse_wisharts_mode_and_holds_an_empty_component(x, kind):
    family = GaussianMixture(K, D, kind, InverseWishart(0.05, 0.7))
    labels = torch.zeros(N, K)
    labels[:, 1] = 1
    theta = family.maximise(family.complete(labels, {"x": x}, rows(N)))
    S = np.cov(x.numpy().T, bias=True)
    if kind == "diag":
        S = np.diag(np.diag(S))
    if kind == "spherical":
        S = np.eye(D) * np.trace(S) / D
    assert dense(theta, kind)[1] == pytest.approx((S + 0.05 * 0.7 * np.eye(D)) / 1.05, abs=1e-12)
    if kind != "tied":
        assert dense(theta, kind)[0] == pytest.approx(0.7 * np.eye(D), abs=1e-12)
    assert theta["weight"].tolist() == [0, 1, 0]
    # An empty component stays out, and nothing is NaN.
    again = em(family, theta, x)
    assert all(torch.isfinite(leaf).all() for leaf in leaves(again))
    assert again["weight"][[0, 2]].tolist() == pytest.approx([0, 0], abs=1e-250)


@pytest.mark.parametrize("kind", KINDS)
def test_a_centre_keeps_far_data_accurate(x, kind):
    near, far = GaussianMixture(K, D, kind), GaussianMixture(K, D, kind, centre=(1e4, -1e4))
    shift = torch.tensor([1e4, -1e4]).double()
    one, other = em(near, start(x, kind), x, 30), start(x, kind)
    other = em(far, other | {"mean": other["mean"] + shift}, x + shift, 30)
    # x + 1e4 itself is rounded at 1e-12
    assert (other["mean"] - shift).numpy() == pytest.approx(one["mean"].numpy(), abs=1e-9)
    assert other["covariance"].numpy() == pytest.approx(one["covariance"].numpy(), abs=1e-9)
    # Without one, second moments of 1e8 leave 8 of 16 digits.
    raw = em(near, start(x, kind) | {"mean": start(x, kind)["mean"] + shift}, x + shift)
    first = em(near, start(x, kind), x)
    assert raw["covariance"].numpy() == pytest.approx(first["covariance"].numpy(), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_inside_stay_as_they_are(x, kind):
    family = GaussianMixture(K, D, kind)
    s = family.statistics(start(x, kind), {"x": x}, rows(N))
    projected, outside = family.project(s)
    assert not outside
    assert all(torch.equal(a, b) for a, b in zip(leaves(s), leaves(projected), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["weight", "scatter"])
def test_statistics_outside_come_back(x, kind, what):
    family = GaussianMixture(K, D, kind)
    s = family.statistics(start(x, kind), {"x": x}, rows(N))
    bad = s[what].clone()
    bad[0] = -0.01 if what == "weight" else -bad[0]
    projected, outside = family.project(s | {what: bad})
    assert outside
    theta = family.maximise(projected)
    assert all(torch.isfinite(leaf).all() for leaf in leaves(theta))
    assert np.linalg.eigvalsh(dense(theta, kind)).min() > 0.99e-6  # the ridge
    assert torch.isfinite(family.log_likelihood(theta, {"x": x})).all()
    assert not family.project(projected)[1]
    if what == "scatter":
        assert theta["mean"].numpy() == pytest.approx(family.maximise(s)["mean"].numpy(), abs=1e-12)
    elif kind != "tied":  # an empty component starts from the others' average
        mean, _ = theta["mean"][0], theta
        expected = s["sum"][1:].sum(0) / s["weight"][1:].sum()
        assert mean.numpy() == pytest.approx(expected.numpy(), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_column_is_inside_and_stays_finite(x, kind):
    x = x.clone()
    x[:, 1] = 3.1
    family = GaussianMixture(K, D, kind)
    theta = start(x, kind)
    for _ in range(5):
        s, outside = family.project(family.statistics(theta, {"x": x}, rows(N)))
        assert not outside
        theta = family.maximise(s)
    assert torch.isfinite(family.log_likelihood(theta, {"x": x})).all()
    assert dense(theta, kind)[:, 1, 1].min() >= 0.99e-6


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments(x, kind):
    family = GaussianMixture(K, D, kind, Ridge(0.1))
    theta = em(family, start(x, kind), x, 3)
    drawn = family.sample(theta, 40_000, keys.key(1))
    again = family.complete(torch.nn.functional.one_hot(drawn["z"], K), drawn, rows(40_000))
    found = GaussianMixture(K, D, kind, Ridge(1e-12)).maximise(again)
    for name in ("weight", "mean", "covariance"):
        # standard errors are about σ²/√(n π_k) < 0.04 for variances below 3: five of them
        assert found[name].numpy() == pytest.approx(theta[name].numpy(), abs=0.2), name
    assert torch.equal(drawn["x"], family.sample(theta, 40_000, keys.key(1))["x"])


def test_what_cant_be_is_refused():
    with pytest.raises(ValueError, match="components must be a whole number of at least 1; given 0"):
        GaussianMixture(0, 2)
    with pytest.raises(ValueError, match="covariance must be 'full', 'tied', 'diag' or 'spherical'; given 'round'"):
        GaussianMixture(2, 2, "round")
    for centre in ((1.0,), (1.0, float("nan")), 3.0, torch.zeros(2)):
        with pytest.raises(
            ValueError, match="centre must be a tuple of 2 finite numbers, one for each dimension; given"
        ):
            GaussianMixture(2, 2, centre=centre)
    with pytest.raises(ValueError, match=r"shrinkage is Ridge\(amount\) or InverseWishart.*given 0.1"):
        GaussianMixture(2, 2, shrinkage=0.1)
    with pytest.raises(ValueError, match="Ridge's amount must be above 0"):
        Ridge(0.0)
    family = GaussianMixture(2, 2)
    with pytest.raises(ValueError, match=r"x must be \(n, 2\); given \(3, 4\)"):
        family.check({"x": torch.zeros(3, 4)})
    with pytest.raises(ValueError, match="NaN, first in row 1"):
        family.check({"x": torch.tensor([[0.0, 1.0], [float("nan"), 0.0]])})
    with pytest.raises(ValueError, match="infinite values, first in row 0"):
        family.check({"x": torch.tensor([[float("inf"), 1.0]])})
