"""The federated estimators: scikit-learn's results, personal weights, noisy fits, and what they refuse."""

import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from archipel.compress import Dithering, RandK
from archipel.em.estimators import (
    FederatedBernoulliMixture,
    FederatedGaussianMixture,
    FederatedLatentClass,
    FederatedPoissonMixture,
    FederatedRegressionMixture,
)
from archipel.em.factor_estimator import FederatedFactorModel
from archipel.families import InverseWishart
from archipel.learning.schedules import Decay

KINDS = ("full", "tied", "diag", "spherical")
MEANS = np.array([[-3.0, 0.0], [3.0, 1.0], [0.0, 4.0]])


def blobs(n=240, seed=0):
    """Three blobs that overlap a little, and their labels."""
    rng = np.random.default_rng(seed)
    z = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return MEANS[z] + rng.normal(size=(n, 2)) * [1.0, 0.7], z


X, Z = blobs()
CLIENTS = [X[:50], X[50:60], X[60:200], X[200:]]
START = {"weights": np.ones(3) / 3, "means": MEANS + 0.5, "covariances": np.stack([np.eye(2)] * 3)}
SHAPES = {"full": START["covariances"], "tied": np.eye(2), "diag": np.ones((3, 2)), "spherical": np.ones(3)}


def quietly(model, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data)


# scikit-learn's mixture


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_same_start_it_is_scikit_learns(kind):
    covariances = SHAPES[kind]
    precisions = np.linalg.inv(covariances) if covariances.shape[-2:] == (2, 2) else 1 / covariances
    theirs = GaussianMixture(
        3,
        covariance_type=kind,
        tol=1e-13,
        max_iter=2000,
        weights_init=START["weights"],
        means_init=START["means"],
        precisions_init=precisions,
    ).fit(X)
    ours = FederatedGaussianMixture(
        3, covariance_type=kind, tol=1e-13, max_iter=2000, init=START | {"covariances": covariances}
    ).fit(CLIENTS)
    assert ours.converged_
    # Both stop within 1e-13 of the likelihood's maximum, so about its root from the parameters
    for name in ("weights_", "means_", "covariances_"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-6)
    # What they say of new data, and of themselves
    new, _ = blobs(30, seed=1)
    assert ours.predict_proba(new) == pytest.approx(theirs.predict_proba(new), abs=1e-6)
    assert ours.score_samples(new) == pytest.approx(theirs.score_samples(new), abs=1e-6)
    assert (ours.predict(new) == theirs.predict(new)).all()
    for score in ("score", "bic", "aic"):
        assert getattr(ours, score)(new) == pytest.approx(getattr(theirs, score)(new), abs=1e-4)
    assert ours.bic(CLIENTS) == pytest.approx(theirs.bic(X), abs=1e-4)  # 480 log-likelihoods
    assert ours.lower_bound_ == pytest.approx(theirs.score(X), abs=1e-9)


def test_a_fit_goes_on_from_another():
    first = FederatedGaussianMixture(3, tol=1e-12, max_iter=500, random_state=0).fit(CLIENTS)
    start = {name: getattr(first, f"{name}_") for name in START}
    second = FederatedGaussianMixture(3, tol=1e-9, init=start).fit(CLIENTS)
    assert second.n_iter_ <= 3
    assert second.lower_bound_ == pytest.approx(first.lower_bound_, abs=1e-8)


def test_several_starts_keep_the_best():
    found = [FederatedGaussianMixture(3, init="random", n_init=n, random_state=0, max_iter=8) for n in (1, 3)]
    one, three = (quietly(model, CLIENTS) for model in found)
    assert three.lower_bound_ >= one.lower_bound_  # the first start is among the three
    assert three.uplink_ > 2 * one.uplink_


def test_both_criteria_stop_at_a_root():
    settings = {"tol": 1e-16, "max_iter": 2000, "init": START}
    field = FederatedGaussianMixture(3, criterion="field", **settings).fit(CLIENTS)
    likelihood = FederatedGaussianMixture(3, **settings | {"tol": 1e-13}).fit(CLIENTS)
    assert field.history_[-1]["field"] <= 1e-16
    assert field.history_[-2]["field"] > 1e-16
    assert field.means_ == pytest.approx(likelihood.means_, abs=1e-6)  # ‖h‖ = 1e-8 and a rate of convergence near 1
    with pytest.warns(ConvergenceWarning, match="did not converge in 2 rounds"):
        FederatedGaussianMixture(3, max_iter=2, tol=0.0, init=START).fit(CLIENTS)


def test_a_prior_takes_the_place_of_the_ridge():
    prior = InverseWishart(0.2, scale=2.0)
    model = FederatedGaussianMixture(3, prior=prior, tol=1e-13, max_iter=500, init=START).fit(CLIENTS)
    r = model.predict_proba(X)
    w, m = r.mean(0), r.T @ X / r.sum(0)[:, None]
    scatter = np.stack([(r[:, k, None] * (X - m[k])).T @ (X - m[k]) / 240 for k in range(3)])
    # Its fixed point: (w S + κψI)/(w + κ)
    expected = (scatter + 0.2 * 2.0 * np.eye(2)) / (w + 0.2)[:, None, None]
    assert model.covariances_ == pytest.approx(expected, abs=1e-6)


def test_samples_come_from_the_model():
    model = FederatedGaussianMixture(3, init=START).fit(CLIENTS)
    drawn, z = model.sample(4000)
    assert np.bincount(z) / 4000 == pytest.approx(model.weights_, abs=5 * 0.5 / 4000**0.5)  # five standard errors
    assert drawn.mean(0) == pytest.approx(model.weights_ @ model.means_, abs=5 * drawn.std() / 4000**0.5)


def test_data_far_from_zero_are_centred():
    near = FederatedGaussianMixture(3, init=START).fit(CLIENTS)
    far = FederatedGaussianMixture(3, init=START | {"means": START["means"] + 1e6}).fit([x + 1e6 for x in CLIENTS])
    # 1e6 leaves 1e-10 of a coordinate
    assert far.means_ - 1e6 == pytest.approx(near.means_, abs=1e-6)
    assert far.covariances_ == pytest.approx(near.covariances_, abs=1e-6)


# Personal weights


def personal_em(parts, rounds):
    """EM of a mixture with everybody's normals and each part's weights, in numpy."""
    means, covariances = START["means"], START["covariances"]
    shares = [START["weights"]] * len(parts)
    a = 2.0
    for _ in range(rounds):
        rows = []
        for x, share in zip(parts, shares, strict=True):
            p = np.stack(
                [
                    w * scipy.stats.multivariate_normal(m, c).pdf(x)
                    for w, m, c in zip(share, means, covariances, strict=True)
                ],
                1,
            )
            rows.append(p / p.sum(1, keepdims=True))
        r, x = np.concatenate(rows), np.concatenate(parts)
        means = r.T @ x / r.sum(0)[:, None]
        covariances = np.stack(
            [(r[:, k, None] * (x - m)).T @ (x - m) / r[:, k].sum() for k, m in enumerate(means)]
        ) + 1e-6 * np.eye(2)
        shares = [(row.sum(0) + a / 3) / (len(row) + a) for row in rows]
    return shares, means, covariances


def test_personal_weights_are_em_with_weights_of_their_own():
    order = np.argsort(Z, kind="stable")  # clients that differ
    parts = [X[order[:100]], X[order[100:170]], X[order[170:]]]
    settings = {"init": START, "tol": 1e-12, "max_iter": 400}
    model = FederatedGaussianMixture(3, personal_weights=True, personal_pseudo_count=2.0, **settings).fit(parts)
    shares, means, covariances = personal_em(parts, 400)
    # The ways there differ in the first round, the fixed point is one
    assert model.client_weights_ == pytest.approx(np.stack(shares), abs=1e-6)
    assert model.means_ == pytest.approx(means, abs=1e-6)
    assert model.covariances_ == pytest.approx(covariances, abs=1e-6)
    # Everybody's weights are shares of all examples, without the pseudo-examples
    r = np.concatenate([model.predict_proba(x, client=i) for i, x in enumerate(parts)])
    assert model.weights_ == pytest.approx(r.mean(0), abs=1e-6)
    everybody = FederatedGaussianMixture(3, **settings).fit(parts)
    assert model.lower_bound_ > everybody.lower_bound_ + 0.1
    # Scores of clients use their own weights, and p counts them: 3 · 2 weights instead of 2
    assert model.score(parts) == pytest.approx(model.lower_bound_, abs=1e-12)
    by_hand = [model.score_samples(x, client=i).sum() for i, x in enumerate(parts)]
    assert model.score(parts) == pytest.approx(sum(by_hand) / 240, abs=1e-12)
    assert model.n_parameters_ == everybody.n_parameters_ + 4
    assert model.predict_proba(parts[0], client="client 2") == pytest.approx(model.predict_proba(parts[0], client=2))
    assert not np.allclose(model.predict_proba(parts[0], client=2), model.predict_proba(parts[0]))


def test_the_personal_objective_never_rises():
    order = np.argsort(Z, kind="stable")
    parts = [X[order[:100]], X[order[100:]]]
    for a in (0.0, 5.0):
        values = []
        for rounds in (1, 2, 3, 8):
            model = FederatedGaussianMixture(
                3, personal_weights=True, personal_pseudo_count=a, prior=InverseWishart(0.01), init=START, tol=0.0
            )
            quietly(model.set_params(max_iter=rounds), parts)
            det, trace = np.linalg.slogdet(model.covariances_)[1], np.trace(np.linalg.inv(model.covariances_), 0, 1, 2)
            penalty = 0.01 / 2 * (det + trace).sum() - a / (3 * 240) * np.log(model.client_weights_).sum()
            values.append(penalty - model.lower_bound_)
        assert (np.diff(values) < 1e-12).all()
        assert values[-1] < values[0] - 1e-3


def test_personal_weights_of_one_client_are_everybodys():
    own, all_ = (
        FederatedGaussianMixture(3, init=START, tol=1e-12, max_iter=500, **own).fit(X)
        for own in ({"personal_weights": True, "personal_pseudo_count": 0.0}, {})
    )
    assert own.client_weights_[0] == pytest.approx(all_.weights_, abs=1e-9)
    assert own.means_ == pytest.approx(all_.means_, abs=1e-6)


# Noise


def test_noisy_fits_come_near_the_exact_one():
    exact = FederatedGaussianMixture(3, init=START, tol=1e-9, max_iter=500).fit(CLIENTS)
    noisy = {"compressor": Dithering(levels=4), "participation": 0.6}, {"batch_size": 20, "rate": Decay(0.5)}
    for settings in (*noisy, {"batch_size": 20, "personal_weights": True}):
        model = FederatedGaussianMixture(3, init=START, tol=1e-6, max_iter=30, random_state=0, **settings)
        quietly(model, CLIENTS)
        # Noise of 240 examples moves likelihoods by 1/240 a parameter; that these runs add less is the claim.
        assert model.score(CLIENTS) > exact.lower_bound_ - 0.02, settings
        assert all(np.isfinite(value).all() for value in (model.weights_, model.means_, model.covariances_))


def test_steps_outside_of_the_domain_are_counted():
    wild = FederatedGaussianMixture(
        3, compressor=RandK(k=2), rate=1.0, max_iter=15, tol=0.0, random_state=0, init=START
    )
    quietly(wild, [X[i::4] for i in range(4)])
    assert wild.n_projected_ > 0
    assert all(np.isfinite(value).all() for value in (wild.weights_, wild.means_, wild.covariances_))
    assert np.isfinite(wild.lower_bounds_).all()
    assert wild.weights_.sum() == pytest.approx(1)


# The other families


def test_bernoulli_latent_class_and_poisson_find_what_is_there():
    rng = np.random.default_rng(0)
    z = rng.choice(2, 300)
    parts = slice(100), slice(100, 300)
    chance = np.array([[0.9] * 6, [0.1] * 6])[z]
    yes = (rng.uniform(size=chance.shape) < chance).astype(int)
    # Five standard errors of a share among 150
    bernoulli = FederatedBernoulliMixture(2, random_state=0).fit([yes[part] for part in parts])
    assert np.sort(bernoulli.probabilities_.mean(1)) == pytest.approx([0.1, 0.9], abs=5 * 0.3 / 900**0.5)
    assert adjusted_rand_score(z, bernoulli.predict(yes)) > 0.8  # errors above one in a hundred are beyond Bayes' rate
    answers = np.where(yes == 1, 2, rng.choice(2, yes.shape))
    classes = FederatedLatentClass(2, random_state=0).fit([answers[part] for part in parts])
    assert classes.levels_ == (3,) * 6
    assert classes.probabilities_.reshape(2, 6, 3).sum(-1) == pytest.approx(1)
    assert adjusted_rand_score(z, classes.predict(answers)) > 0.8
    counts = rng.poisson(np.array([[1.0] * 4, [6.0] * 4])[z])
    poisson = FederatedPoissonMixture(2, random_state=0).fit([counts[part] for part in parts])
    assert np.sort(poisson.rates_.mean(1)) == pytest.approx([1, 6], abs=5 * (6 / 600) ** 0.5)
    log_p = scipy.stats.poisson(poisson.rates_[:, None]).logpmf(counts).sum(-1).T + np.log(poisson.weights_)
    assert poisson.score_samples(counts) == pytest.approx(np.logaddexp(*log_p.T), abs=1e-9)


def test_regressions_are_found():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 1))
    z = np.arange(300) % 3 == 0
    y = np.where(z, 4 * x[:, 0] + 1, -4 * x[:, 0]) + 0.2 * rng.normal(size=300)
    cuts = slice(80), slice(80, 300)
    model = FederatedRegressionMixture(2, random_state=0, tol=1e-8, max_iter=300)
    model.fit([x[cut] for cut in cuts], [y[cut] for cut in cuts])
    up = int(model.coefs_[:, 0].argmax())
    # Slopes ±4 with standard errors of 0.2/√100 at most
    assert model.coefs_[[up, 1 - up], 0] == pytest.approx([4, -4], abs=0.1)
    assert model.intercepts_[[up, 1 - up]] == pytest.approx([1, 0], abs=0.1)
    assert adjusted_rand_score(z, model.predict_component(x, y)) > 0.8
    expected = sum(
        w * (b + x @ beta) for w, b, beta in zip(model.weights_, model.intercepts_, model.coefs_, strict=True)
    )
    assert model.predict(x) == pytest.approx(expected, abs=1e-9)
    density = sum(
        w * scipy.stats.norm(b + x @ beta, v**0.5).pdf(y)
        for w, b, beta, v in zip(model.weights_, model.intercepts_, model.coefs_, model.noise_variances_, strict=True)
    )
    assert model.score_samples(x, y) == pytest.approx(np.log(density), abs=1e-9)


def test_missing_values_are_imputed_by_conditional_means():
    rng = np.random.default_rng(2)
    full = rng.normal(size=(200, 1)) @ rng.normal(size=(1, 4)) + 0.3 * rng.normal(size=(200, 4)) + 3
    x = np.where(rng.uniform(size=full.shape) < 0.2, np.nan, full)
    model = FederatedFactorModel(1, random_state=0, noise="diagonal", tol=1e-3).fit([x[:50], x[50:]])
    found = model.impute(x)
    assert (found[~np.isnan(x)] == x[~np.isnan(x)]).all()
    # By the textbook: E[x_m | x_o] = μ_m + Σ_mo Σ_oo⁻¹ (x_o − μ_o)
    cov = model.components_.T @ model.components_ + np.diag(model.noise_variance_)
    for row, filled in list(zip(x, found, strict=True))[:40]:
        o = ~np.isnan(row)
        expected = model.mean_ + cov[:, o] @ np.linalg.solve(cov[np.ix_(o, o)], (row - model.mean_)[o])
        assert filled[~o] == pytest.approx(expected[~o], abs=1e-8)
    gaps = np.isnan(x)
    error, by_means = (((guess - full)[gaps] ** 2).mean() for guess in (found, np.where(gaps, np.nanmean(x, 0), x)))
    assert error < by_means / 2  # most of the variance lies along the factor
    assert model.transform(x).shape == (200, 1)


# What is refused, and what works all the same


def test_few_examples_and_constant_columns_work():
    constant = X[:20].copy()
    constant[:, 1] = 7.0
    model = FederatedGaussianMixture(3, random_state=0).fit([X[100:], X[:1], X[2:4], constant])
    assert np.isfinite(model.means_).all()
    everywhere = FederatedGaussianMixture(2, random_state=0).fit([constant, constant[:5]])
    assert everywhere.means_[:, 1] == pytest.approx(7)
    assert everywhere.covariances_[:, 1, 1] == pytest.approx(1e-6, abs=1e-9)  # reg_covar
    assert np.isfinite(everywhere.score_samples(constant)).all()


def test_what_isnt_sound_is_refused_by_client_and_column():
    bad = X[:10].copy()
    bad[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"client 1 contains NaN.*row 4, column 1.*1 of 10 rows.*FederatedFactorModel"):
        FederatedGaussianMixture().fit([X, bad])
    with pytest.raises(ValueError, match="Nice contains NaN"):
        FederatedGaussianMixture().fit({"Lyon": X, "Nice": bad})
    bad[4, 1] = np.inf
    with pytest.raises(ValueError, match="client 0 contains infinity: first in row 4, column 1"):
        FederatedFactorModel().fit([bad, X])
    with pytest.raises(ValueError, match="client 1: X has 3 features, but FederatedGaussianMixture is expecting 2"):
        FederatedGaussianMixture().fit([X, np.ones((3, 3))])
    with pytest.raises(ValueError, match=r"client 1: BernoulliMixture takes 0 or 1; x has 2 in row 0, column 1"):
        FederatedBernoulliMixture().fit([np.ones((3, 2)), np.array([[1, 2]])])
    with pytest.raises(ValueError, match="Column 1 has no value at any client"):
        FederatedFactorModel().fit([X * [1, np.nan], X[:5] * [1, np.nan]])
    with pytest.raises(ValueError, match="clients with one column"):
        FederatedGaussianMixture().fit([X[:, 0], X[:, 1]])
    with pytest.raises(ValueError, match="no clients"):
        FederatedGaussianMixture().fit({})


def test_settings_out_of_range_are_refused():
    refused = {
        "n_components": 0,
        "max_iter": 0,
        "n_init": 1.5,
        "tol": -1.0,
        "criterion": "loss",
        "participation": 0.0,
        "batch_size": 0,
        "init": "kmeans",
        "covariance_type": "round",
        "reg_covar": 0.0,
        "personal_weights": "yes",
    }
    for name, value in refused.items():
        named = {"covariance_type": "covariance", "reg_covar": "amount"}.get(name, name)
        with pytest.raises(ValueError, match=rf"{named} .*{value}"):
            FederatedGaussianMixture(**{name: value}).fit(CLIENTS)
    with pytest.raises(ValueError, match="n_samples = 2, and n_components = 3"):
        FederatedGaussianMixture(3).fit([X[:1], X[1:2]])
    with pytest.raises(ValueError, match=r"init's means must be of shape \(3, 2\); given \(2, 2\)"):
        FederatedGaussianMixture(3, init=START | {"means": MEANS[:2]}).fit(CLIENTS)
    with pytest.raises(ValueError, match="init's weights must be 0 or above and sum to 1"):
        FederatedGaussianMixture(3, init=START | {"weights": np.ones(3)}).fit(CLIENTS)
    with pytest.raises(ValueError, match="init must have weights, means, covariances"):
        FederatedGaussianMixture(3, init={"means": MEANS}).fit(CLIENTS)
    model = FederatedGaussianMixture(3, init=START).fit(CLIENTS)
    with pytest.raises(ValueError, match="same weights"):
        model.predict(X, client=0)
    with pytest.raises(ValueError, match="Give one matrix, not 4 clients"):
        model.predict(CLIENTS)
    own = FederatedGaussianMixture(3, init=START, personal_weights=True).fit(CLIENTS)
    with pytest.raises(ValueError, match="There is no client 'Nice'; there are client 0"):
        own.predict(X, client="Nice")


def test_singular_covariances_are_told_not_hidden():
    # Two copies of one column at a scale whose square float64 can't tell from singular after reg_covar
    x = np.random.default_rng(0).normal(size=(50, 1)) * 1e6
    with pytest.raises(ValueError, match=r"is singular in float64.*comparable scales"):
        FederatedGaussianMixture(2, random_state=0).fit([np.hstack([x, x])])
    mended = FederatedGaussianMixture(2, random_state=0, reg_covar=1.0).fit([np.hstack([x, x])])
    assert np.isfinite(mended.score_samples(np.hstack([x, x]))).all()


def test_it_clones_and_tells_its_settings():
    model = FederatedGaussianMixture(np.int64(3), init=START, compressor=Dithering(levels=4), max_iter=5)
    assert clone(model).get_params()["compressor"] == model.compressor
    assert model.set_params(n_components=2).n_components == 2
    assert "n_components=2" in repr(model)


NOISE = {
    "compressed minibatches": {"compressor": Dithering(levels=2), "batch_size": 32},
    "compressed minibatches of half the clients": {
        "compressor": Dithering(levels=2),
        "batch_size": 32,
        "participation": 0.5,
    },
    "two numbers of six, minibatches": {"compressor": RandK(k=2), "batch_size": 32},
    "few examples of few clients": {"batch_size": 4, "participation": 0.3},
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("apart", [False, True])
def test_noise_does_not_collapse_components(noise, apart):
    # N(−2, 1) and N(2, 1). A component that is lost costs 0.45 a row, the likelihood of one normal with variance 5
    # against that of two.
    for seed in range(3):
        rng = np.random.default_rng(seed)
        z = rng.integers(2, size=800)
        z = np.sort(z) if apart else z
        clients = np.split(rng.normal(size=(800, 1)) + np.where(z, 2, -2)[:, None], 8)
        pooled = np.concatenate(clients)
        best = FederatedGaussianMixture(2, random_state=seed).fit(clients).score(pooled)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            noisy = FederatedGaussianMixture(2, random_state=seed, **NOISE[noise]).fit(clients)
        assert noisy.score(pooled) > best - 0.15, (seed, noisy.n_projected_)
        assert np.abs(np.sort(noisy.means_.ravel()) - [-2, 2]).max() < 1
        shortened = [str(one.message) for one in told if "left the domain" in str(one.message)]
        assert len(shortened) == (noisy.n_projected_ > 0)
        counts = [record["projected"] for record in noisy.history_]
        if noisy.converged_:
            assert counts[-1] == (counts[-11] if len(counts) > 10 else 0)


def test_rounds_that_fluctuate_are_not_called_converged():
    """Dithering to one level, batches of 8 and half of the clients: single rounds scatter by more than 0.01 a row."""
    rng = np.random.default_rng(1)
    clients = [rng.normal(size=(100, 1)) + rng.choice([-2, 2], size=(100, 1)) for _ in range(8)]
    best = FederatedGaussianMixture(2, random_state=1).fit(clients).score(np.concatenate(clients))
    noisy = FederatedGaussianMixture(
        2, random_state=1, compressor=Dithering(1), batch_size=8, participation=0.5, max_iter=400
    )
    with pytest.warns(ConvergenceWarning):
        noisy.fit(clients)
    assert not noisy.converged_
    assert best - 0.15 < noisy.score(np.concatenate(clients)) < best
