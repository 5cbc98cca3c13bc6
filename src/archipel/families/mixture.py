"""The base of all mixtures: log p(y, z = k; θ) is a product of features of y and weights of component k.

For exponential families log p(y, z = k; θ) = W_kᵀΦ(y) + log h(y). The E-step R = softmax(ΦW) and the statistics RᵀΦ/n
are matrix products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.checks import setting
from archipel.core.trees import Tree, tree_map
from archipel.families.family import mean_in_pieces

FLOOR = 1e-10
"""The smallest mean responsibility of a component that isn't empty: less than one example in ten billion."""
TINY = 1e-300
"""The least argument of logarithms and the least divisor: it avoids 0 · (−∞), which is NaN."""


@setting("a mixture, such as GaussianMixture(components, dimension), whose weights can be personal")
class Mixture(ABC):
    """A family whose latent is one of K components; see :class:`archipel.families.family.Family`."""

    components: int

    @abstractmethod
    def features(self, batch: Tree) -> Tensor:
        """Return Φ, ``(n, F)`` float64, with 1 in the first column."""

    @abstractmethod
    def natural(self, theta: Tree) -> Tensor:
        """Return W, ``(K, F)``."""

    @abstractmethod
    def split(self, moments: Tensor) -> Tree:
        """Split RᵀΦ/n, ``(K, F)``, into the statistics, ``{"weight": (K,), …}``."""

    @abstractmethod
    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        """Return log p(y, z = k; θ), ``(n, K)``."""

    @abstractmethod
    def maximise(self, s: Tree) -> Tree:
        """Return T(s)."""

    @abstractmethod
    def penalty(self, theta: Tree) -> Tensor:
        """Return R(θ)."""

    @abstractmethod
    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Return the nearest statistics in the domain of T, and whether s was outside."""

    @abstractmethod
    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        """Draw examples, with the components they come from under ``"z"``."""

    @abstractmethod
    def parameters(self) -> int:
        """Count the free parameters."""

    @abstractmethod
    def check(self, batch: Tree) -> None:
        """Raise ValueError for data that the family has no density for."""

    def points(self, batch: Tree) -> Tensor:
        """Return examples as points that k-means clusters, ``(n, p)`` float64; by default x."""
        x: Tensor = batch["x"].to(torch.float64)
        return x

    def statistics(self, theta: Tree, batch: Tree, mask: Tensor) -> Tree:
        W = self.natural(theta)

        def total(batch: Tree, weights: Tensor) -> Tensor:
            phi = self.features(batch)
            return (torch.softmax(phi @ W.T, dim=-1) * weights[:, None]).T @ phi

        return self.split(mean_in_pieces(total, batch, mask, W.shape[-1]))

    def complete(self, responsibilities: Tensor, batch: Tree, mask: Tensor) -> Tree:
        """Average s(y, z) with given responsibilities, ``(n, K)``: for starts from an assignment."""

        def total(batch: Tree, weights: Tensor) -> Tensor:
            r: Tensor = batch["responsibilities"].to(torch.float64) * weights[:, None]
            return r.T @ self.features(batch)

        width = self.features(tree_map(lambda t: t[:1], batch)).shape[-1]
        return self.split(mean_in_pieces(total, batch | {"responsibilities": responsibilities}, mask, width))

    def log_likelihood(self, theta: Tree, batch: Tree) -> Tensor:
        return torch.logsumexp(self.log_joint(theta, batch), dim=-1)

    def posterior(self, theta: Tree, batch: Tree) -> Tensor:
        """Return log-responsibilities, ``(n, K)``."""
        return torch.log_softmax(self.log_joint(theta, batch), dim=-1)


def with_ones(x: Tensor) -> Tensor:
    """Return [1, x] in float64."""
    x = x.to(torch.float64)
    return torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)


def safe_log(t: Tensor) -> Tensor:
    """Return the logarithm, finite at 0."""
    return torch.log(torch.clamp(t, min=TINY))


def proportions(s: Tree) -> Tensor:
    """Return the mixing weights of T(s): the mean responsibilities in s, divided by their sum."""
    weight = torch.clamp(s["weight"], min=0)
    return weight / torch.clamp(weight.sum(-1, keepdim=True), min=TINY)


def refill(s: Tree) -> tuple[Tree, Tensor]:
    """Give an empty component, with ``s["weight"]`` below :data:`FLOOR`, the average statistics with weight FLOOR.

    After T it has almost no weight and the parameters of the pooled data, from which it may recover.

    Args:
        s: a tree whose leaves have one row for each component.

    Returns:
        The statistics, and which components were empty, ``(K,)`` bool.

    >>> refill({"weight": torch.tensor([0.5, 0.0, 0.5]), "sum": torch.tensor([1.0, 0.0, 3.0])})[1]
    tensor([False,  True, False])
    """
    empty = ~(s["weight"] >= FLOOR)
    total = torch.clamp(torch.where(empty, 0.0, s["weight"]).sum(), min=FLOOR)

    def filled(t: Tensor) -> Tensor:
        out = empty.reshape(-1, *[1] * (t.dim() - 1))
        return torch.where(out, FLOOR * torch.where(out, 0.0, t).sum(0) / total, t)

    return tree_map(filled, s) | {"weight": torch.where(empty, FLOOR, s["weight"])}, empty


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Tell whether a projection moved statistics by more than rounding: 1e-9 of an example. A bool of shape ``()``."""
    return ((after - before).abs() > 1e-9).any()


def draw_components(theta: Tree, n: int, key: Tensor) -> Tensor:
    """Draw the component that each of n examples comes from, ``(n,)`` int64."""
    edges = torch.cumsum(theta["weight"], 0)
    u = keys.uniform(keys.fold(key, "component"), n, dtype=torch.float64) * edges[-1]
    return torch.clamp(torch.searchsorted(edges, u, right=True), max=len(edges) - 1)
