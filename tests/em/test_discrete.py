"""Bernoulli, categorical and Poisson mixtures against scipy's densities, one another, and Bayes' rule by hand."""

import numpy as np
import pytest
import scipy.stats
import torch

from archipel.families import BernoulliMixture, CategoricalMixture, PoissonMixture

WEIGHT = torch.tensor([0.3, 0.7], dtype=torch.float64)


def everything(n):
    return torch.ones(n, dtype=torch.bool)


def by_hand(weight, densities):
    """Log-likelihoods and responsibilities from densities p(x | k), ``(n, K)``."""
    joint = weight.numpy() * densities
    return np.log(joint.sum(1)), joint / joint.sum(1, keepdims=True)


def agree(family, theta, x, densities):
    batch = {"x": torch.tensor(x, dtype=torch.float64)}
    likelihood, r = by_hand(theta["weight"], densities)
    assert family.log_likelihood(theta, batch).numpy() == pytest.approx(likelihood, rel=1e-12)
    assert family.posterior(theta, batch).exp().numpy() == pytest.approx(r, rel=1e-10)
    return r, family.statistics(theta, batch, everything(len(x)))


def test_poissons_are_scipys():
    x = np.array([[0, 3], [2, 0], [7, 1], [40, 2]])
    rate = np.array([[1.5, 2.0], [6.0, 0.4]])
    densities = np.stack([scipy.stats.poisson(r).pmf(x).prod(1) for r in rate], 1)
    theta = {"weight": WEIGHT, "rate": torch.tensor(rate)}
    family = PoissonMixture(2, 2, pseudo_count=0.02, pseudo_exposure=0.1)
    r, s = agree(family, theta, x, densities)
    assert s["sum"].numpy() == pytest.approx(r.T @ x / 4, rel=1e-12)
    new = family.maximise(s)
    assert new["weight"].numpy() == pytest.approx(r.mean(0), rel=1e-12)
    assert new["rate"].numpy() == pytest.approx((r.T @ x / 4 + 0.02) / (r.mean(0)[:, None] + 0.1), rel=1e-12)
    # Up to a constant the penalty is minus a Gamma's log-density, here with n = 1: shape 1 + 0.02, rate 0.1
    prior = [scipy.stats.gamma(1.02, scale=10).logpdf(r).sum() for r in (rate, rate + 1)]
    found = [family.penalty(theta | {"rate": torch.tensor(r)}).item() for r in (rate, rate + 1)]
    assert np.diff(found) == pytest.approx(-np.diff(prior), rel=1e-9)


def test_bernoullis_are_scipys():
    x = np.array([[0, 1, 1], [1, 1, 1], [0, 0, 0]])
    p = np.array([[0.2, 0.9, 0.5], [0.6, 0.4, 0.01]])
    densities = np.stack([scipy.stats.bernoulli(each).pmf(x).prod(1) for each in p], 1)
    theta = {"weight": WEIGHT, "probability": torch.tensor(p)}
    family = BernoulliMixture(2, 3, pseudo_count=0.1)
    r, s = agree(family, theta, x, densities)
    assert s["sum"].numpy() == pytest.approx(r.T @ x / 3, rel=1e-12)
    expected = (r.T @ x / 3 + 0.1) / (r.mean(0)[:, None] + 0.2)
    assert family.maximise(s)["probability"].numpy() == pytest.approx(expected, rel=1e-12)
    prior = [scipy.stats.beta(1.1, 1.1).logpdf(each).sum() for each in (p, p / 2)]
    found = [family.penalty(theta | {"probability": torch.tensor(each)}).item() for each in (p, p / 2)]
    assert np.diff(found) == pytest.approx(-np.diff(prior), rel=1e-9)


def test_classes_answer_as_their_tables_say():
    x = np.array([[0, 2], [1, 0], [1, 1]])
    tables = [np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1]])]
    densities = np.stack([tables[0][k, x[:, 0]] * tables[1][k, x[:, 1]] for k in range(2)], 1)
    theta = {"weight": WEIGHT, "probability": torch.tensor(np.concatenate(tables, 1))}
    family = CategoricalMixture(2, (2, 3), pseudo_count=0.1)
    r, s = agree(family, theta, x, densities)
    assert sum(leaf.numel() for leaf in s.values()) == 2 * (1 + 1 + 2)  # no number too many
    new = family.maximise(s)["probability"].numpy()
    for j, (first, levels) in enumerate([(0, 2), (2, 3)]):
        counts = np.stack([(r * (x[:, j] == answer)[:, None]).mean(0) for answer in range(levels)], 1)
        expected = (counts + 0.1) / (r.mean(0)[:, None] + 0.1 * levels)
        assert new[:, first : first + levels] == pytest.approx(expected, rel=1e-12)
    prior = -0.1 * np.log(np.concatenate(tables, 1)).sum()
    assert family.penalty(theta).item() == pytest.approx(prior, rel=1e-12)


def test_two_answers_are_a_bernoulli():
    x = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]], dtype=torch.float64)
    yes_or_no, answers = BernoulliMixture(2, 3, 0.05), CategoricalMixture(2, (2, 2, 2), 0.05)
    p = torch.tensor([[0.2, 0.9, 0.5], [0.6, 0.4, 0.3]], dtype=torch.float64)
    one = {"weight": WEIGHT, "probability": p}
    other = {"weight": WEIGHT, "probability": torch.stack([1 - p, p], -1).flatten(1)}
    for _ in range(20):
        one = yes_or_no.maximise(yes_or_no.statistics(one, {"x": x}, everything(4)))
        other = answers.maximise(answers.statistics(other, {"x": x}, everything(4)))
    assert other["probability"][:, 1::2].numpy() == pytest.approx(one["probability"].numpy(), abs=1e-12)
    assert yes_or_no.penalty(one).item() == pytest.approx(answers.penalty(other).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("family", "x", "message"),
    [
        (BernoulliMixture(2, 2), [[0, 1], [0, 0.5]], "takes 0 or 1; x has 0.5 in row 1, column 1"),
        (
            CategoricalMixture(2, (2, 3)),
            [[0, 1], [2, 0]],
            r"below its column's of \(2, 3\); x has 2 in row 1, column 0",
        ),
        (PoissonMixture(2, 2), [[0, -1.0]], "whole number of at least 0; x has -1 in row 0, column 1"),
        (PoissonMixture(2, 2), [[0, float("nan")]], "doesn't accept missing values, but x has NaN, first in row 0"),
        (BernoulliMixture(2, 2), [[0, float("inf")]], "infinite values"),
        (CategoricalMixture(2, (2, 3)), [[0.0]], r"x must be \(n, 2\); given \(1, 1\)"),
    ],
)
def test_data_without_a_density_are_refused(family, x, message):
    with pytest.raises(ValueError, match=message):
        family.check({"x": torch.tensor(x)})


def test_what_cant_be_is_refused():
    for kind in (BernoulliMixture, PoissonMixture):
        with pytest.raises(ValueError, match=f"{kind.__name__}'s components must be a whole number of at least 1"):
            kind(0, 2)
        with pytest.raises(ValueError, match=f"{kind.__name__}'s pseudo_count must be above 0"):
            kind(2, 2, pseudo_count=0.0)
    with pytest.raises(ValueError, match=r"levels must be a tuple of whole numbers of at least 2.*given \(2, 1\)"):
        CategoricalMixture(2, (2, 1))
    with pytest.raises(ValueError, match="levels must be a tuple"):
        CategoricalMixture(2, 3)
