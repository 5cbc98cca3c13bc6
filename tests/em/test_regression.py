"""Mixtures of regressions: Bayes' rule by hand, weighted least squares, and centres that change nothing."""

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LinearRegression, Ridge

from archipel import FedEM, Federation, fit
from archipel.core.trees import leaves
from archipel.families import InverseWishart, RegressionMixture

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 2))
Z = RNG.integers(2, size=60)
Y = np.where(Z == 0, 1 + X @ [2.0, 0.5], -1 + X @ [-1.0, 1.0]) + 0.3 * RNG.normal(size=60)
BATCH = {"x": torch.tensor(X), "y": torch.tensor(Y)}
ALL = torch.ones(60, dtype=torch.bool)
THETA = {
    "weight": torch.tensor([0.4, 0.6], dtype=torch.float64),
    "intercept": torch.tensor([0.5, -0.5], dtype=torch.float64),
    "slope": torch.tensor([[1.0, 0.0], [-0.5, 0.5]], dtype=torch.float64),
    "noise": torch.tensor([0.8, 1.3], dtype=torch.float64),
}


def responsibilities():
    mean = THETA["intercept"].numpy() + X @ THETA["slope"].numpy().T
    joint = THETA["weight"].numpy() * scipy.stats.norm(mean, THETA["noise"].sqrt().numpy()).pdf(Y[:, None])
    return joint / joint.sum(1, keepdims=True), np.log(joint.sum(1))


def test_the_posterior_is_bayes_rule():
    r, likelihood = responsibilities()
    family = RegressionMixture(2, 2)
    assert family.posterior(THETA, BATCH).exp().numpy() == pytest.approx(r, rel=1e-10)
    assert family.log_likelihood(THETA, BATCH).numpy() == pytest.approx(likelihood, rel=1e-10)
    s = family.statistics(THETA, BATCH, ALL)
    assert s["weight"].numpy() == pytest.approx(r.mean(0), rel=1e-10)
    assert sum(leaf.numel() for leaf in leaves(s)) == 2 * (1 + 3 + 6)


def test_an_iteration_is_weighted_least_squares():
    r, _ = responsibilities()
    family = RegressionMixture(2, 2, ridge=1e-12, prior=InverseWishart(1e-12))
    new = family.maximise(family.statistics(THETA, BATCH, ALL))
    for k in range(2):
        witness = LinearRegression().fit(X, Y, sample_weight=r[:, k])
        noise = np.average((Y - witness.predict(X)) ** 2, weights=r[:, k])
        assert new["intercept"][k].item() == pytest.approx(witness.intercept_, abs=1e-9)
        assert new["slope"][k].numpy() == pytest.approx(witness.coef_, abs=1e-9)
        assert new["noise"][k].item() == pytest.approx(noise, abs=1e-9)


def test_the_ridge_is_scikit_learns():
    r, _ = responsibilities()
    new = (family := RegressionMixture(2, 2, ridge=0.2)).maximise(family.statistics(THETA, BATCH, ALL))
    for k in range(2):
        # Its sum of squares is over 60 examples, ours a mean.
        witness = Ridge(0.2 * 60).fit(X, Y, sample_weight=r[:, k])
        assert new["slope"][k].numpy() == pytest.approx(witness.coef_, abs=1e-9)
        assert new["intercept"][k].item() == pytest.approx(witness.intercept_, abs=1e-9)


def test_em_finds_the_lines():
    family, theta = RegressionMixture(2, 2), THETA
    for _ in range(100):
        theta = family.maximise(family.statistics(theta, BATCH, ALL))
    # Standard errors are about 0.3/√30 = 0.055: four of them
    assert theta["slope"].numpy() == pytest.approx(np.array([[2.0, 0.5], [-1.0, 1.0]]), abs=0.22)
    assert theta["intercept"].numpy() == pytest.approx([1, -1], abs=0.22)
    assert theta["noise"].sqrt().numpy() == pytest.approx(0.3, abs=0.12)


def test_a_centre_keeps_far_data_accurate():
    plain, centred = RegressionMixture(2, 2), RegressionMixture(2, 2, centre=(1e4, -1e4, 2e4))
    # y − 2e4 on x − (1e4, −1e4): slopes stay, intercepts move by 2e4 − βᵀ(1e4, −1e4)
    shift = torch.tensor([1e4, -1e4]).double()
    offset = 2e4 - THETA["slope"] @ shift
    far = {"x": BATCH["x"] + shift, "y": BATCH["y"] + 2e4}
    one = plain.maximise(plain.statistics(THETA, BATCH, ALL))
    other = centred.maximise(centred.statistics(THETA | {"intercept": THETA["intercept"] + offset}, far, ALL))
    # The data themselves are rounded at 4e-12.
    assert other["slope"].numpy() == pytest.approx(one["slope"].numpy(), abs=1e-9)
    assert other["noise"].numpy() == pytest.approx(one["noise"].numpy(), abs=1e-9)
    moved = one["intercept"] + 2e4 - one["slope"] @ shift
    assert other["intercept"].numpy() == pytest.approx(moved.numpy(), abs=1e-5)
    drawn = centred.sample(other, 4000, torch.tensor(1))
    assert drawn["x"].mean(0).numpy() == pytest.approx(shift.numpy(), abs=0.1)  # 6 standard errors


def test_what_cant_be_is_refused():
    family = RegressionMixture(2, 2)
    with pytest.raises(ValueError, match=r"needs one target for each example, y of shape \(60,\); given nothing"):
        family.check({"x": BATCH["x"]})
    with pytest.raises(ValueError, match="y isn't finite, first in row 0"):
        family.check(BATCH | {"y": BATCH["y"] * torch.nan})
    with pytest.raises(ValueError, match="ridge must be above 0"):
        RegressionMixture(2, 2, ridge=0.0)
    with pytest.raises(ValueError, match=r"prior is InverseWishart\(strength, scale\); given 1.0"):
        RegressionMixture(2, 2, prior=1.0)
    with pytest.raises(ValueError, match="centre must be a tuple of 3 finite numbers"):
        RegressionMixture(2, 2, centre=(0.0, 0.0))


def test_a_regression_far_from_zero_is_right_about_a_centre_and_refused_without():
    """Seconds since 1970 as x: without a centre, second moments of 1.7e9 leave nothing of variances."""
    rng, far = np.random.default_rng(0), 1.7e9
    x = rng.normal(size=(300, 1))
    y = 2.0 * x[:, 0] + 1.0 + 0.5 * rng.normal(size=300)
    slope, offset = np.polyfit(x[:, 0], y, 1)
    noise = np.mean((y - slope * x[:, 0] - offset) ** 2)
    islands = Federation.from_arrays([(x[:100] + far, y[:100]), (x[100:] + far, y[100:])], test=0.0)
    start = {"weight": torch.ones(1), "intercept": torch.tensor([-far]), "slope": torch.ones(1, 1)}
    start |= {"noise": torch.ones(1)}
    with pytest.raises(ValueError, match=r"column 0.*Give as centre a number near the mean of each column of x"):
        fit(FedEM(RegressionMixture(1, 1), start), islands, rounds=2)
    theta = fit(FedEM(RegressionMixture(1, 1, centre=(far, 0.0)), start), islands, rounds=3).server["theta"]
    # 1.7e9 keeps steps of 2.4e-7 in float64, and y is float32 (6e-8 of it); the ridge of 1e-6 and the prior add as much
    assert float(theta["slope"]) == pytest.approx(slope, abs=1e-5)
    assert float(theta["noise"]) == pytest.approx(noise, abs=1e-5)
    with pytest.raises(ValueError, match=r"y holds .* that float32 can't tell apart"):
        Federation.from_arrays([(x, y + far)], test=0.0)
