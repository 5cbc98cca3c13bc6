"""Mixtures of independent discrete columns: Bernoulli, categorical (latent class analysis) and Poisson.

Given the component, the columns of an example are independent. The statistics are mean responsibilities and
responsibility-weighted means of the columns' indicators or counts. T has a closed form; the penalty R is that of a
conjugate prior with pseudo-counts. Counts are per example: one pseudo-example beside n examples is 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.families.family import check_table
from archipel.families.identifiability import latent_class_dimension
from archipel.families.mixture import Mixture, draw_components, moved, proportions, refill, safe_log, with_ones


@dataclass(frozen=True)
class BernoulliMixture(Mixture):
    """K components of d independent yes-or-no columns, x in {0, 1}.

    θ is ``{"weight": (K,), "probability": (K, d)}``, statistics are ``{"weight": (K,), "sum": (K, d)}``. With a, the
    pseudo-count, R(θ) = −a Σ_kj (log p_kj + log(1 − p_kj)), a Beta(1 + na, 1 + na) prior, and
    p = (sum + a)/(weight + 2a).

    Args:
        components: K.
        dimension: d.
        pseudo_count: a, above 0: pseudo-examples with either answer in every component, as a share of n.

    Raises:
        ValueError: a setting out of its range.

    >>> family = BernoulliMixture(1, 2, pseudo_count=0.5)
    >>> x, everything = torch.tensor([[1, 0], [1, 1]]), torch.tensor([True, True])
    >>> family.maximise(family.complete(torch.ones(2, 1), {"x": x}, everything))["probability"]
    tensor([[0.7500, 0.5000]], dtype=torch.float64)
    """

    components: int
    dimension: int
    pseudo_count: float = 1e-6

    def __post_init__(self) -> None:
        checks.positive_int("BernoulliMixture", components=self.components, dimension=self.dimension)
        checks.above_zero("BernoulliMixture", pseudo_count=self.pseudo_count)

    def parameters(self) -> int:
        return latent_class_dimension(self.components, (2,) * self.dimension)

    def check(self, batch: Tree) -> None:
        x = batch["x"]
        check_table("BernoulliMixture", x, self.dimension)
        _check_values("BernoulliMixture", x, (x == 0) | (x == 1), "0 or 1")

    def features(self, batch: Tree) -> Tensor:
        return with_ones(batch["x"])

    def natural(self, theta: Tree) -> Tensor:
        yes, no = safe_log(theta["probability"]), safe_log(1 - theta["probability"])
        return torch.cat([(safe_log(theta["weight"]) + no.sum(-1))[:, None], yes - no], dim=-1)

    def split(self, moments: Tensor) -> Tree:
        return {"weight": moments[:, 0], "sum": moments[:, 1:]}

    def maximise(self, s: Tree) -> Tree:
        a, w = self.pseudo_count, torch.clamp(s["weight"], min=0)[:, None]
        return {"weight": proportions(s), "probability": (s["sum"] + a) / (w + 2 * a)}

    def penalty(self, theta: Tree) -> Tensor:
        return -self.pseudo_count * (safe_log(theta["probability"]) + safe_log(1 - theta["probability"])).sum()

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Fill empty components, and clip sums to lie between 0 and the weight."""
        s, empty = refill(s)
        total = torch.minimum(torch.clamp(s["sum"], min=0), s["weight"][:, None])
        return s | {"sum": total}, empty.any() | moved(s["sum"], total)

    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        return self.features(batch) @ self.natural(theta).T

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = draw_components(theta, n, key)
        u = keys.uniform(keys.fold(key, "columns"), n, self.dimension, dtype=torch.float64)
        return {"x": (u < theta["probability"][z]).to(torch.float64), "z": z}


@dataclass(frozen=True)
class CategoricalMixture(Mixture):
    """Latent class analysis: K classes of d independent columns, column j with levels_j unordered answers 0, 1, ….

    θ is ``{"weight": (K,), "probability": (K, L)}`` with L = Σ levels, the columns' answers side by side. Statistics
    are ``{"weight": (K,), "count": (K, L − d)}``: how often each answer was given. The count of a column's first answer
    is left out, since it follows from the others. With a, the pseudo-count, R(θ) = −a Σ log p, a Dirichlet(1 + na)
    prior, and p = (count + a)/(weight + a levels_j).

    Args:
        components: K.
        levels: how many answers each column has, each at least 2.
        pseudo_count: a, above 0: pseudo-examples with each answer in every class, as a share of n.

    Raises:
        ValueError: a setting out of its range.

    >>> family = CategoricalMixture(1, (2, 3), pseudo_count=1.0)
    >>> x, everything = torch.tensor([[1, 2], [1, 0]]), torch.tensor([True, True])
    >>> family.maximise(family.complete(torch.ones(2, 1), {"x": x}, everything))["probability"]
    tensor([[0.3333, 0.6667, 0.3750, 0.2500, 0.3750]], dtype=torch.float64)
    """

    components: int
    levels: tuple[int, ...]
    pseudo_count: float = 1e-6

    def __post_init__(self) -> None:
        checks.positive_int("CategoricalMixture", components=self.components)
        if not (isinstance(self.levels, tuple) and self.levels and all(type(c) is int and c >= 2 for c in self.levels)):
            raise ValueError(
                "CategoricalMixture's levels must be a tuple of whole numbers of at least 2, how many answers each "
                f"column has; given {self.levels!r}."
            )
        checks.above_zero("CategoricalMixture", pseudo_count=self.pseudo_count)

    @property
    def dimension(self) -> int:
        return len(self.levels)

    def parameters(self) -> int:
        return latent_class_dimension(self.components, self.levels)

    def check(self, batch: Tree) -> None:
        x, levels = batch["x"], torch.tensor(self.levels)
        check_table("CategoricalMixture", x, self.dimension)
        allowed = (x == torch.floor(x)) & (x >= 0) & (x < levels)
        _check_values("CategoricalMixture", x, allowed, f"a whole number from 0, below its column's of {self.levels}")

    def points(self, batch: Tree) -> Tensor:
        """Return indicators of the answers: the squared distance of two examples is twice the answers that differ."""
        columns = zip(batch["x"].unbind(-1), self.levels, strict=True)
        return torch.cat([x[:, None] == torch.arange(c) for x, c in columns], dim=-1).to(torch.float64)

    def features(self, batch: Tree) -> Tensor:
        columns = zip(batch["x"].unbind(-1), self.levels, strict=True)
        return with_ones(torch.cat([x[:, None] == torch.arange(1, c) for x, c in columns], dim=-1))

    def natural(self, theta: Tree) -> Tensor:
        logs = safe_log(theta["probability"]).split(self.levels, dim=-1)
        first = safe_log(theta["weight"]) + torch.stack([column[:, 0] for column in logs]).sum(0)
        return torch.cat([first[:, None], *(column[:, 1:] - column[:, :1] for column in logs)], dim=-1)

    def split(self, moments: Tensor) -> Tree:
        return {"weight": moments[:, 0], "count": moments[:, 1:]}

    def maximise(self, s: Tree) -> Tree:
        a, w = self.pseudo_count, torch.clamp(s["weight"], min=0)[:, None]
        columns = [
            (torch.cat([w - count.sum(-1, keepdim=True), count], dim=-1) + a) / (w + a * (count.shape[-1] + 1))
            for count in self._columns(s["count"])
        ]
        return {"weight": proportions(s), "probability": torch.cat(columns, dim=-1)}

    def penalty(self, theta: Tree) -> Tensor:
        return -self.pseudo_count * safe_log(theta["probability"]).sum()

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Fill empty components, and clip counts: each to 0 or above, a column's sum to the weight or below."""
        s, empty = refill(s)
        w = s["weight"][:, None]
        columns = [
            count / torch.clamp(count.sum(-1, keepdim=True) / w, min=1)
            for count in self._columns(torch.clamp(s["count"], min=0))
        ]
        mended = torch.cat(columns, dim=-1)
        return s | {"count": mended}, empty.any() | moved(s["count"], mended)

    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        return self.features(batch) @ self.natural(theta).T

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = draw_components(theta, n, key)
        u = keys.uniform(keys.fold(key, "columns"), n, self.dimension, dtype=torch.float64)
        columns = theta["probability"].split(self.levels, dim=-1)
        answers = [(u[:, j, None] >= torch.cumsum(p, -1)[z, :-1]).sum(-1) for j, p in enumerate(columns)]
        return {"x": torch.stack(answers, dim=-1).to(torch.float64), "z": z}

    def _columns(self, count: Tensor) -> tuple[Tensor, ...]:
        columns: tuple[Tensor, ...] = count.split([c - 1 for c in self.levels], dim=-1)
        return columns


@dataclass(frozen=True)
class PoissonMixture(Mixture):
    """K components of d independent counts, x in {0, 1, 2, …}.

    θ is ``{"weight": (K,), "rate": (K, d)}``, statistics are ``{"weight": (K,), "sum": (K, d)}``. With a and b,
    R(θ) = Σ_kj (b λ_kj − a log λ_kj), a Gamma(1 + na, nb) prior, and λ = (sum + a)/(weight + b).

    Args:
        components: K.
        dimension: d.
        pseudo_count: a, above 0: the pseudo-count of every component and column,
        pseudo_exposure: b, above 0: the pseudo-examples that it was counted on, as a share of n. An empty component has
            the rate a/b.

    Raises:
        ValueError: a setting out of its range.

    >>> family = PoissonMixture(1, 1, pseudo_count=1.0, pseudo_exposure=1.0)
    >>> x, everything = torch.tensor([[2], [4]]), torch.tensor([True, True])
    >>> family.maximise(family.complete(torch.ones(2, 1), {"x": x}, everything))["rate"]  # (3 + 1)/(1 + 1)
    tensor([[2.]], dtype=torch.float64)
    """

    components: int
    dimension: int
    pseudo_count: float = 1e-6
    pseudo_exposure: float = 1e-6

    def __post_init__(self) -> None:
        checks.positive_int("PoissonMixture", components=self.components, dimension=self.dimension)
        checks.above_zero("PoissonMixture", pseudo_count=self.pseudo_count, pseudo_exposure=self.pseudo_exposure)

    def parameters(self) -> int:
        return self.components - 1 + self.components * self.dimension

    def check(self, batch: Tree) -> None:
        x = batch["x"]
        check_table("PoissonMixture", x, self.dimension)
        _check_values("PoissonMixture", x, (x == torch.floor(x)) & (x >= 0), "a whole number of at least 0")

    def features(self, batch: Tree) -> Tensor:
        return with_ones(batch["x"])

    def natural(self, theta: Tree) -> Tensor:
        rate = theta["rate"]
        return torch.cat([(safe_log(theta["weight"]) - rate.sum(-1))[:, None], safe_log(rate)], dim=-1)

    def split(self, moments: Tensor) -> Tree:
        return {"weight": moments[:, 0], "sum": moments[:, 1:]}

    def maximise(self, s: Tree) -> Tree:
        w = torch.clamp(s["weight"], min=0)[:, None]
        return {"weight": proportions(s), "rate": (s["sum"] + self.pseudo_count) / (w + self.pseudo_exposure)}

    def penalty(self, theta: Tree) -> Tensor:
        penalties: Tensor = self.pseudo_exposure * theta["rate"] - self.pseudo_count * safe_log(theta["rate"])
        return penalties.sum()

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Fill empty components, and clip sums to 0 or above."""
        s, empty = refill(s)
        total = torch.clamp(s["sum"], min=0)
        return s | {"sum": total}, empty.any() | moved(s["sum"], total)

    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        factorials = torch.lgamma(batch["x"].to(torch.float64) + 1).sum(-1, keepdim=True)
        return self.features(batch) @ self.natural(theta).T - factorials

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = draw_components(theta, n, key)
        u = keys.uniform(keys.fold(key, "columns"), n, self.dimension, dtype=torch.float64)
        # ppf gives the smallest count whose distribution function reaches u, but −1 at u = 0.
        counts = np.maximum(scipy.stats.poisson.ppf(u.numpy(), theta["rate"][z].numpy()), 0)
        return {"x": torch.from_numpy(counts), "z": z}


def _check_values(owner: str, x: Tensor, allowed: Tensor, what: str) -> None:
    if not allowed.all():
        row, column = torch.nonzero(~allowed)[0].tolist()
        raise ValueError(f"{owner} takes {what}; x has {x[row, column].item():g} in row {row}, column {column}.")
