"""Clients that are mixtures of Gaussians, with the best router and the best classifiers as functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from archipel.data.federation import Federation
from archipel.data.synthetic import labelled_tables


@dataclass(frozen=True)
class GaussianClients:
    """Clients that are mixtures of Gaussians, with densities, posteriors and Bayes classifiers known exactly.

    Client i holds the share ρ_i of all examples; an example of it has component c with probability π_ic, class k with
    q_ick, and features x ~ N(μ_ick, σ²I). With p_i the density of x at client i:

    Args:
        rho: (m,) ρ, above 0; sums to one.
        weights: (m, C) π; rows sum to one.
        priors: (m, C, K) q; rows sum to one.
        means: (m, C, K, d) μ.
        std: σ > 0.

    Raises:
        ValueError: shapes that don't fit, or what isn't a distribution.

    >>> two = GaussianClients(  # N(0, 1) and N(2, 1)
    ...     rho=torch.tensor([0.5, 0.5]),
    ...     weights=torch.ones(2, 1),
    ...     priors=torch.ones(2, 1, 1),
    ...     means=torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1),
    ...     std=1.0,
    ... )
    >>> two.route(torch.tensor([[1.0]])).exp()  # half way
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    >>> log_p = two.log_density(torch.tensor([[3.0]]))
    >>> log_p[:, 1] - log_p[:, 0]  # (x − 0)²/2 − (x − 2)²/2
    tensor([4.0000], dtype=torch.float64)
    """

    rho: Tensor
    weights: Tensor
    priors: Tensor
    means: Tensor
    std: float

    def __post_init__(self) -> None:
        for name in ("rho", "weights", "priors", "means"):
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name)).double())
        m, C, K, _ = self.means.shape if self.means.ndim == 4 else (0, 0, 0, 0)
        shapes = tuple(tuple(t.shape) for t in (self.rho, self.weights, self.priors))
        if m == 0 or shapes != ((m,), (m, C), (m, C, K)):
            raise ValueError(
                f"rho, weights and priors have the shapes {shapes} and means {tuple(self.means.shape)}; "
                "they are (m,), (m, C), (m, C, K) and (m, C, K, d)."
            )
        for name in ("rho", "weights", "priors"):
            p: Tensor = getattr(self, name)
            if bool((p < 0).any()) or not torch.allclose(p.sum(-1), torch.ones_like(p.sum(-1)), atol=1e-6):
                raise ValueError(f"{name} isn't a distribution: entries are 0 or more and sum to one.")
        if not (math.isfinite(self.std) and self.std > 0):
            raise ValueError(f"std is {self.std}; it is a finite number above 0.")

    @classmethod
    def of(cls, federation: Federation) -> Self:
        """Read the truth behind a federation that `sample` made, also after saving, loading, or holding clients out."""
        truth = federation.truth
        if "shared" not in truth or "std" not in truth["shared"]:
            raise ValueError(f"{federation.name!r} wasn't sampled from a Gaussian mixture.")
        rho = truth["rho"] / truth["rho"].sum()
        return cls(rho, truth["weights"], truth["priors"], truth["means"], truth["shared"]["std"])

    def log_joint(self, x: Tensor) -> Tensor:
        """Log P(c, k | i) + log p(x | i, c, k): (n, d) to (n, m, C, K)."""
        d = self.means.shape[-1]
        gap = (x.double()[:, None, None, None] - self.means) / self.std
        log_normal = -0.5 * gap.square().sum(-1) - d * (math.log(self.std) + 0.5 * math.log(2 * math.pi))
        return log_normal + self.weights.log()[..., None] + self.priors.log()

    def log_density(self, x: Tensor) -> Tensor:
        """Log p_i(x), (n, m). Differences are log density ratios."""
        return self.log_joint(x).flatten(2).logsumexp(2)

    def route(self, x: Tensor) -> Tensor:
        """Route as Bayes: log P(i | x) = log ρ_i + log p_i(x) − log Σ_j ρ_j p_j(x), (n, m)."""
        return (self.rho.log() + self.log_density(x)).log_softmax(1)

    def responsibilities(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """P(c | x, i), or P(c | x, y, i) if the labels (n,) are given: (n, m, C)."""
        joint = self.log_joint(x)
        if y is not None:
            joint = joint.gather(3, y[:, None, None, None].expand(-1, *joint.shape[1:3], 1))
        return joint.logsumexp(3).softmax(2)

    def classify(self, x: Tensor) -> Tensor:
        """Classify as each client's Bayes classifier: log P(k | x, i), (n, m, K)."""
        return self.log_joint(x).logsumexp(2).log_softmax(2)

    def classify_pooled(self, x: Tensor) -> Tensor:
        """Classify without knowing the client: log Σ_i P(i | x) P(k | x, i), (n, K)."""
        return (self.route(x)[:, :, None] + self.classify(x)).logsumexp(1)

    def sample(self, sizes: Sequence[int], *, test: float = 0.3, validation: float = 0.0, seed: int = 0) -> Federation:
        """Draw a federation.

        Args:
            sizes: examples of each client. Shares of queries are ρ, whatever the sizes.
            test: fraction of each client's examples for testing.
            validation: fraction for validation.
            seed: what determines everything.

        Returns:
            A federation of tables; clients' truth has the columns "component" and "label"; `GaussianClients.of` reads
            the federation's truth.
        """
        m, C, K, d = self.means.shape
        if len(sizes) != m or min(sizes) < 1:
            raise ValueError(f"sizes is {list(sizes)}; give a number above 0 for each of {m} clients.")
        xs, ys, components = [], [], []
        for i, size in enumerate(sizes):
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, i)))
            p = (self.weights[i][:, None] * self.priors[i]).flatten().numpy()
            cell = rng.choice(C * K, size, p=p / p.sum())
            c, k = np.divmod(cell, K)
            xs.append(self.means[i].numpy()[c, k] + self.std * rng.standard_normal((size, d)))
            ys.append(k)
            components.append(c)
        truth = {name: getattr(self, name) for name in ("rho", "weights", "priors", "means")}
        shared = {"shared": {"std": self.std}}
        return labelled_tables("Gaussian mixture", xs, ys, components, K, test, validation, seed, truth | shared)
