"""A small family for testing federated EM, Poisson mixtures with priors, and the same in numpy: another hand's EM."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from archipel import Federation
from archipel.data import Client, Inputs

DIRICHLET, SHAPE, SCALE = 0.02, 0.05, 0.01


@dataclass(frozen=True)
class Poissons:
    """s = (mean of r_k, mean of r_k x), R(θ) = −e Σ log π_k + Σ (b λ_k − a log λ_k): Dirichlet and gamma priors.

    T(s): π_k = (w_k + e)/Σ (w + e), λ_k = (c_k + a)/(w_k + b); statistics below 0 are outside of its domain.
    """

    def _joint(self, theta, x):
        x = x.double()
        density = x * theta["rates"].log() - theta["rates"] - torch.lgamma(x + 1)
        return theta["weights"].log() + density

    def statistics(self, theta, batch, mask):
        r = torch.softmax(self._joint(theta, batch["x"]), -1) * mask[:, None]
        n = mask.sum().clamp(min=1)
        return {"weight": r.sum(0) / n, "sum": (r * batch["x"].double()).sum(0) / n}

    def maximise(self, s):
        weights = s["weight"] + DIRICHLET
        return {"weights": weights / weights.sum(), "rates": (s["sum"] + SHAPE) / (s["weight"] + SCALE)}

    def log_likelihood(self, theta, batch) -> Tensor:
        return torch.logsumexp(self._joint(theta, batch["x"]), -1)

    def penalty(self, theta):
        pi, rates = theta["weights"], theta["rates"]
        return -DIRICHLET * pi.log().sum() + (SCALE * rates - SHAPE * rates.log()).sum()

    def check(self, batch):
        if (batch["x"] < 0).any():
            raise ValueError("counts are 0 or above")

    def project(self, s):
        outside = (s["weight"] < 0).any() | (s["sum"] < 0).any()
        return {name: value.clamp(min=0) for name, value in s.items()}, outside


START = {"weights": torch.tensor([0.5, 0.5]).double(), "rates": torch.tensor([2.0, 5.0]).double()}
SIZES = [3, 30, 12, 55]


def counts(sizes=SIZES, seed=0):
    """Clients that differ: each draws its own share of small and of large numbers."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(0.05, 0.95, len(sizes))
    return [rng.poisson(np.where(rng.random(n) < share, 1.0, 9.0)) for n, share in zip(sizes, shares, strict=True)]


def federation(parts):
    """A client for each array of counts."""
    clients = []
    for i, part in enumerate(parts):
        x, y = torch.tensor(np.asarray(part)).double()[:, None], torch.zeros(len(part), dtype=torch.int64)
        clients.append(Client(f"client-{i}", {"x": x, "y": y}, {"x": x[:0], "y": y[:0]}))
    return Federation("counts", tuple(clients), Inputs("table", (1,), 1.0, (0.0,), (1.0,)), ("count",))


# The same in numpy: θ is (π, λ), s is (w, c) as one vector of length 2K.


def numbers(theta):
    return theta["weights"].numpy(), theta["rates"].numpy()


def expect(theta, x):
    """s̄ of some counts, by Bayes' rule with scipy's densities."""
    pi, rates = theta
    joint = pi * stats.poisson.pmf(np.asarray(x)[:, None], rates)
    r = joint / joint.sum(1, keepdims=True)
    return np.concatenate([r.mean(0), (r * np.asarray(x)[:, None]).mean(0)])


def maximise(s):
    w, c = np.split(s, 2)
    return (w + DIRICHLET) / (w + DIRICHLET).sum(), (c + SHAPE) / (w + SCALE)


def objective(theta, x):
    pi, rates = theta
    likelihood = np.log((pi * stats.poisson.pmf(np.asarray(x)[:, None], rates)).sum(1)).mean()
    return -likelihood - DIRICHLET * np.log(pi).sum() + (SCALE * rates - SHAPE * np.log(rates)).sum()


def em(x, iterations):
    """θ_1, θ_2, … of EM on pooled counts from ``START``."""
    theta, found = numbers(START), []
    for _ in range(iterations):
        theta = maximise(expect(theta, x))
        found.append(theta)
    return found


def vector(tree):
    """Statistics, or parameters, of the library as one vector of numpy's."""
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()]).numpy()
