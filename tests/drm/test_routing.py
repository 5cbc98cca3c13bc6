"""Routing as statistics: fitted density ratios against the Bayes rule of normal clients, and calibration."""

import numpy as np
import pytest
import torch

from archipel.data import GaussianClients
from archipel.drm import DensityRatioModel, pool, reliability
from archipel.runs.calibration import calibration_error


def clients(d=2):
    """Three clients N(μ_i, I) of unequal shares: log density ratios are linear in x."""
    centres = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.5, 1.5]])
    return GaussianClients(
        rho=torch.tensor([0.5, 0.3, 0.2]),
        weights=torch.ones(3, 1),
        priors=torch.ones(3, 1, 1),
        means=centres.reshape(3, 1, 1, d),
        std=1.0,
    )


def sample(truth, n, seed):
    """N queries, clients drawn with ρ."""
    rng = np.random.default_rng(seed)
    origin = torch.tensor(rng.choice(3, n, p=truth.rho.numpy()))
    return truth.means[origin, 0, 0] + torch.tensor(rng.normal(size=(n, 2))), origin


def fitted(truth, n, seed):
    sizes = (n * truth.rho).round().int().tolist()
    rng = np.random.default_rng(seed)
    return DensityRatioModel.fit(
        *pool([truth.means[i, 0, 0] + torch.tensor(rng.normal(size=(size, 2))) for i, size in enumerate(sizes)])
    )


def regret(truth, model, x):
    """What the router's choice has less of the true posterior than the best: 0 or above for every query."""
    posterior = truth.route(x).exp()
    chosen = model.route(x, truth.rho).argmax(1)
    return float((posterior.max(1).values - posterior.gather(1, chosen[:, None])[:, 0]).mean())


def test_routing_accuracy_approaches_the_bayes_rules():
    truth = clients()
    x, origin = sample(truth, 20_000, seed=0)
    bayes = float((truth.route(x).argmax(1) == origin).double().mean())
    assert 0.65 < bayes < 0.8  # clients overlap
    means = [np.mean([regret(truth, fitted(truth, n, seed), x) for seed in range(8)]) for n in (60, 600, 6000)]
    # The regret of a plug-in rule is quadratic in errors of size 1/√n: it falls like 1/n, tenfold each time. Means of
    # eight, each with a relative spread near 2/√(2 · 6) (six free parameters, a χ²), are within a factor of 2.
    assert means[0] > 5 * means[1] > 25 * means[2] > 0
    assert means[2] < 1e-3


def test_the_fitted_posterior_is_calibrated_and_a_sharpened_one_is_not():
    truth = clients()
    x, origin = sample(truth, 20_000, seed=1)
    model = fitted(truth, 6000, seed=2)
    for posterior in (truth.route(x).exp(), model.route(x, truth.rho).exp()):
        found = reliability(posterior, origin)
        # twice the expected error of a posterior that is right; sums of fifteen bins vary by less
        assert found.error < 2 * found.chance
    sharp = torch.softmax(3 * model.route(x, truth.rho), 1)
    assert reliability(sharp, origin).error > 10 * found.chance


def test_the_error_is_the_expected_calibration_error():
    truth = clients()
    x, origin = sample(truth, 500, seed=3)
    posterior = truth.route(x).exp()
    sure, client = posterior.max(1)
    found = reliability(posterior, origin)
    assert found.error == pytest.approx(calibration_error(sure, client == origin), abs=1e-12)
    assert int(found.count.sum()) == 500
    with pytest.raises(ValueError, match="at least one query"):
        reliability(torch.zeros(0, 2), torch.zeros(0))


def test_priors_are_put_back_once():
    """Equal shares in the sample, unequal ones among queries: the prior given to route() is what counts."""
    truth = clients()
    rng = np.random.default_rng(4)
    even = [truth.means[i, 0, 0] + torch.tensor(rng.normal(size=(2000, 2))) for i in range(3)]
    model = DensityRatioModel.fit(*pool(even))
    x, _ = sample(truth, 5000, seed=5)
    # errors of log-ratios near 1/√2000 each
    torch.testing.assert_close(model.route(x, truth.rho).exp(), truth.route(x).exp(), rtol=0, atol=0.08)
    wrong = (model.route(x).exp() - truth.route(x).exp()).abs().max()
    assert float(wrong) > 0.15
