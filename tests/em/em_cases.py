"""One small case of every family: data, parameters to start from, and parameters as functions of free numbers."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from archipel.core import keys
from archipel.families import (
    BernoulliMixture,
    CategoricalMixture,
    FactorModel,
    GaussianMixture,
    InverseWishart,
    PoissonMixture,
    RegressionMixture,
)

N = 40


@dataclass(frozen=True)
class Case:
    """A family, the truth its data are drawn from, parameters to start from, and a map from free numbers to θ."""

    family: Any
    truth: dict
    start: dict
    free: int
    theta: Any = field(repr=False)

    @property
    def unpenalised(self):
        """The family with next to no penalty."""
        next_to_none = {
            "shrinkage": InverseWishart(1e-12),
            "prior": InverseWishart(1e-12),
            "ridge": 1e-12,
            "pseudo_count": 1e-12,
            "pseudo_exposure": 1e-12,
        }
        return replace(self.family, **{name: v for name, v in next_to_none.items() if hasattr(self.family, name)})

    def batch(self, n=N, seed=0):
        drawn = self.family.sample(self.truth, n, keys.key(seed))
        return {name: values for name, values in drawn.items() if name != "z"}


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def two(logit):
    """Two mixing weights."""
    return torch.softmax(torch.stack([logit, torch.zeros_like(logit)]), 0)


def matrices(v):
    """Positive definite 2 × 2 matrices from logarithms of a Cholesky factor's diagonal, and what is below."""
    a, b, c = v.reshape(-1, 3).unbind(-1)
    L = torch.stack([torch.stack([a.exp(), 0 * a], -1), torch.stack([b, c.exp()], -1)], -2)
    return L @ L.mT


def gaussian(kind, shape, covariance):
    """θ of two components in two dimensions."""
    family = GaussianMixture(2, 2, kind, InverseWishart(0.1, 0.5))
    numbers = shape.numel() if kind in ("diag", "spherical") else 3 * len(shape)

    def theta(v):
        return {"weight": two(v[0]), "mean": v[1:5].reshape(2, 2), "covariance": covariance(v[5:])}

    truth = theta(double(0.5, -1, 0, 1, 1, *[0.1 * i - 0.3 for i in range(numbers)]))
    start = theta(double(0, -0.5, 0, 0.5, 0.2, *[0.0] * numbers))
    return Case(family, truth, start, 5 + numbers, theta)


def bernoulli():
    def theta(v):
        return {"weight": two(v[0]), "probability": torch.sigmoid(v[1:].reshape(2, 3))}

    truth, start = theta(double(0.5, 2, 2, -1, -2, -1, 0)), theta(double(0, 0.5, 0.2, 0, -0.5, 0, 0.1))
    return Case(BernoulliMixture(2, 3, pseudo_count=0.02), truth, start, 7, theta)


def categorical():
    def theta(v):
        columns = [torch.softmax(part, -1) for part in v[1:].reshape(2, 5).split((2, 3), -1)]
        return {"weight": two(v[0]), "probability": torch.cat(columns, -1)}

    truth = theta(double(0.5, 1, -1, 2, 0, 0, -1, 1, 0, 0, 2))
    start = theta(double(0, 0.5, 0, 0.5, 0, 0, 0, 0.4, 0, 0.1, 0.2))
    return Case(CategoricalMixture(2, (2, 3), pseudo_count=0.02), truth, start, 11, theta)


def poisson():
    def theta(v):
        return {"weight": two(v[0]), "rate": v[1:].exp().reshape(2, 2)}

    truth, start = theta(double(0.5, 2, 0, 0, 1.5)), theta(double(0, 1, 0.5, 0.5, 1))
    return Case(PoissonMixture(2, 2, pseudo_count=0.05, pseudo_exposure=0.02), truth, start, 5, theta)


def regression():
    def theta(v):
        return {"weight": two(v[0]), "intercept": v[1:3], "slope": v[3:7].reshape(2, 2), "noise": v[7:].exp()}

    truth = theta(double(0.5, -1, 1, 2, 0, -1, 1, -2, -1))
    start = theta(double(0, -0.5, 0.5, 1, 0, 0, 0.5, 0, 0.3))
    family = RegressionMixture(2, 2, ridge=0.05, prior=InverseWishart(0.1, 0.5))
    return Case(family, truth, start, 9, theta)


def factor(noise):
    variances = 1 if noise == "isotropic" else 3

    def theta(v):
        return {"mean": v[:3], "loading": v[3:6].reshape(3, 1), "noise": v[6:].exp()}

    truth = theta(double(1, -1, 0, 2, 1, -1, *[-0.5 + 0.4 * j for j in range(variances)]))
    start = theta(double(0, 0, 0, 1, 0.2, 0.1, *[0.5] * variances))
    family = FactorModel(3, 1, noise, ridge=0.05, prior=InverseWishart(0.1, 0.5))
    return Case(family, truth, start, 6 + variances, theta)


CASES = {
    "full": gaussian("full", torch.zeros(2, 2, 2), matrices),
    "tied": gaussian("tied", torch.zeros(1, 2, 2), matrices),
    "diag": gaussian("diag", torch.zeros(2, 2), lambda v: v.exp().reshape(2, 2)),
    "spherical": gaussian("spherical", torch.zeros(2, 1), lambda v: v.exp().reshape(2, 1)),
    "bernoulli": bernoulli(),
    "categorical": categorical(),
    "poisson": poisson(),
    "regression": regression(),
    "isotropic": factor("isotropic"),
    "diagonal": factor("diagonal"),
}
MIXTURES = [name for name in CASES if name not in ("isotropic", "diagonal")]
