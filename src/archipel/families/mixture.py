"""What all mixtures share: log p(y, z = k; θ) is a product of features of y and weights of component k.

For exponential families log p(y, z = k; θ) = W_kᵀΦ(y) + log h(y), so that the E-step is R = softmax(ΦW), the statistics
are RᵀΦ/n, and both are matrix products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.trees import Tree, tree_map
from archipel.families.family import mean_in_pieces

FLOOR = 1e-10
"""The smallest mean responsibility of a component that isn't empty: less than one example in ten billion."""
TINY = 1e-300
"""What logarithms and divisors are kept above: 1e-300 of an example is none, and 0 · (−∞) would be NaN."""


class Mixture(ABC):
    """A family whose latent is one of K components; :class:`archipel.families.family.Family` has the rest."""

    components: int

    @abstractmethod
    def features(self, batch: Tree) -> Tensor:
        """Φ, ``(n, F)`` float64, 1 in the first column."""

    @abstractmethod
    def natural(self, theta: Tree) -> Tensor:
        """W, ``(K, F)``."""

    @abstractmethod
    def split(self, moments: Tensor) -> Tree:
        """The statistics, ``{"weight": (K,), …}``, from RᵀΦ/n, ``(K, F)``."""

    @abstractmethod
    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        """Log p(y, z = k; θ), ``(n, K)``."""

    @abstractmethod
    def maximise(self, s: Tree) -> Tree:
        """T(s)."""

    @abstractmethod
    def penalty(self, theta: Tree) -> Tensor:
        """R(θ)."""

    @abstractmethod
    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Statistics in the domain of T, and whether they were outside."""

    @abstractmethod
    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        """Examples, and the components they come from."""

    @abstractmethod
    def parameters(self) -> int:
        """The number of free parameters."""

    @abstractmethod
    def check(self, batch: Tree) -> None:
        """Raises ValueError for data that the family has no density for."""

    def points(self, batch: Tree) -> Tensor:
        """Examples as points whose distances mean something, ``(n, p)`` float64: x, where a family doesn't say else."""
        x: Tensor = batch["x"].to(torch.float64)
        return x

    def statistics(self, theta: Tree, batch: Tree, mask: Tensor) -> Tree:
        W = self.natural(theta)

        def total(batch: Tree, weights: Tensor) -> Tensor:
            phi = self.features(batch)
            return (torch.softmax(phi @ W.T, dim=-1) * weights[:, None]).T @ phi

        return self.split(mean_in_pieces(total, batch, mask, W.shape[-1]))

    def complete(self, responsibilities: Tensor, batch: Tree, mask: Tensor) -> Tree:
        """The mean of s(y, z) for given responsibilities, ``(n, K)``: for starts from an assignment."""

        def total(batch: Tree, weights: Tensor) -> Tensor:
            r: Tensor = batch["responsibilities"].to(torch.float64) * weights[:, None]
            return r.T @ self.features(batch)

        width = self.features(tree_map(lambda t: t[:1], batch)).shape[-1]
        return self.split(mean_in_pieces(total, batch | {"responsibilities": responsibilities}, mask, width))

    def log_likelihood(self, theta: Tree, batch: Tree) -> Tensor:
        return torch.logsumexp(self.log_joint(theta, batch), dim=-1)

    def posterior(self, theta: Tree, batch: Tree) -> Tensor:
        """Log-responsibilities, ``(n, K)``."""
        return torch.log_softmax(self.log_joint(theta, batch), dim=-1)


def with_ones(x: Tensor) -> Tensor:
    """[1, x] in float64."""
    x = x.to(torch.float64)
    return torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)


def log(t: Tensor) -> Tensor:
    """The logarithm, finite at 0."""
    return torch.log(torch.clamp(t, min=TINY))


def proportions(s: Tree) -> Tensor:
    """The mixing weights of T(s): s's mean responsibilities, made to sum to one after a noisy step."""
    weight = torch.clamp(s["weight"], min=0)
    return weight / torch.clamp(weight.sum(-1, keepdim=True), min=TINY)


def refill(s: Tree) -> tuple[Tree, Tensor]:
    """Statistics in which an empty component, s["weight"] below :data:`FLOOR`, holds FLOOR of the average example.

    After T it has next to no weight and the parameters of the pooled data, from where it may come back.

    Args:
        s: a tree whose leaves have a row a component.

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
    """Whether a projection moved statistics by more than rounding: 1e-9 of an example. A bool of shape ``()``."""
    return ((after - before).abs() > 1e-9).any()


def draw_components(theta: Tree, n: int, key: Tensor) -> Tensor:
    """Which component each of n examples comes from, ``(n,)`` int64."""
    edges = torch.cumsum(theta["weight"], 0)
    u = keys.uniform(keys.fold(key, "component"), n, dtype=torch.float64) * edges[-1]
    return torch.clamp(torch.searchsorted(edges, u, right=True), max=len(edges) - 1)
