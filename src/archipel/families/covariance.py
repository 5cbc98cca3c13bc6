"""The kinds of covariance of a Gaussian mixture: which second moments are sent, and how densities come from them.

There are two forms, matrices Σ ``(K, d, d)`` and variances of the axes ``(K, d)``, and in each the covariances may be
shared: one matrix for all components, ``(1, d, d)``, or one variance for all axes, ``(K, 1)``. Second moments, kept in
the statistics as a component's ``scatter``, are upper triangles or squares, shared as the covariances are. Below w are
the components' mean responsibilities, ``(K,)``, and m their means, ``(K, d)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archipel.core.trees import Tree
from archipel.families.mixture import refill, with_ones


class Covariance(Protocol):
    """One kind of covariance."""

    def size(self, K: int, d: int) -> int:
        """Free parameters."""

    def features(self, x: Tensor) -> Tensor:
        """Φ(x), 1, x and the q second moments of each example, ``(n, 1 + d + q)``."""

    def pool(self, scatter: Tensor) -> Tensor:
        """``(K, q)`` second moments, summed over what is shared."""

    def share(self, w: Tensor) -> Tensor:
        """The mean responsibility behind each Σ, in a shape that broadcasts against it."""

    def moment(self, scatter: Tensor, w: Tensor, m: Tensor) -> Tensor:
        """Σ = scatter/w − mmᵀ."""

    def scatter(self, covariance: Tensor, w: Tensor, m: Tensor) -> Tensor:
        """The inverse of ``moment``."""

    def identity(self, d: int) -> Tensor:
        """I, in a shape that broadcasts against Σ."""

    def clip(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest positive semi-definite Σ, and the lowest eigenvalue of each as it was given."""

    def precision(self, covariance: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients of x, ``(K, d)``, and of the second moments, ``(K, q)``, in log N(x; m, Σ); and log |Σ|."""

    def whiten(self, covariance: Tensor, gap: Tensor) -> Tensor:
        """Gaps x − m, ``(K, n, d)``, in units of standard deviations: of covariance I."""

    def log_det_and_trace(self, covariance: Tensor, d: int) -> tuple[Tensor, Tensor]:
        """Log |Σ| and tr Σ⁻¹ of each component, ``(K,)`` or ``(1,)``."""

    def colour(self, covariance: Tensor, noise: Tensor) -> Tensor:
        """``(n, d)`` of covariances Σ, one for each row, from standard normal noise."""


@dataclass(frozen=True)
class Matrices:
    """A matrix each, or one for all components.

    >>> kind, m = Matrices(shared=False), torch.tensor([[1.0, 2.0]])
    >>> kind.moment(torch.tensor([[2.0, 2.0, 5.0]]), torch.tensor([1.0]), m)
    tensor([[[1., 0.],
             [0., 1.]]])
    """

    shared: bool

    def size(self, K: int, d: int) -> int:
        return (1 if self.shared else K) * d * (d + 1) // 2

    def features(self, x: Tensor) -> Tensor:
        return upper(with_ones(x))

    def pool(self, scatter: Tensor) -> Tensor:
        return scatter.sum(0, keepdim=True) if self.shared else scatter

    def share(self, w: Tensor) -> Tensor:
        return (w.sum(0, keepdim=True) if self.shared else w)[:, None, None]

    def moment(self, scatter: Tensor, w: Tensor, m: Tensor) -> Tensor:
        between = self.pool(w[:, None] * upper(m))
        return symmetric(scatter - between, m.shape[-1]) / self.share(w)

    def scatter(self, covariance: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return packed(self.share(w) * covariance) + self.pool(w[:, None] * upper(m))

    def identity(self, d: int) -> Tensor:
        return torch.eye(d, dtype=torch.float64)

    def clip(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        finite = torch.isfinite(covariance).all(-1, keepdim=True).all(-2, keepdim=True)
        # Of what isn't finite eigh makes an error, in which no round and no remedy is named.
        values, vectors = torch.linalg.eigh(torch.where(finite, covariance, 0.0))
        values = torch.where(finite[..., 0], values, torch.nan)
        mended = (vectors * torch.clamp(values, min=0)[..., None, :]) @ vectors.mT
        return torch.where(values[..., :1, None] >= 0, covariance, mended), values[..., 0]

    def precision(self, covariance: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U = whitening(covariance)
        P = U @ U.mT
        quadratic = packed(P) * quadratic_coefficients(m.shape[-1])
        return (P @ m[..., None])[..., 0], quadratic.expand(len(m), -1), _log_det(U)

    def whiten(self, covariance: Tensor, gap: Tensor) -> Tensor:
        return gap @ whitening(covariance)

    def log_det_and_trace(self, covariance: Tensor, d: int) -> tuple[Tensor, Tensor]:
        U = whitening(covariance)
        return _log_det(U), (U**2).sum((-2, -1))

    def colour(self, covariance: Tensor, noise: Tensor) -> Tensor:
        coloured: Tensor = torch.linalg.cholesky(covariance) @ noise[..., None]
        return coloured[..., 0]


@dataclass(frozen=True)
class Axes:
    """A variance for each axis, or one for all axes.

    >>> kind, m = Axes(shared=True), torch.tensor([[1.0, 2.0]])
    >>> kind.moment(torch.tensor([[8.0]]), torch.tensor([1.0]), m)  # (8 − 1 − 4)/2
    tensor([[1.5000]])
    """

    shared: bool

    def size(self, K: int, d: int) -> int:
        return K * (1 if self.shared else d)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([with_ones(x), self.squares(x)], dim=-1)

    def squares(self, x: Tensor) -> Tensor:
        return (x**2).sum(-1, keepdim=True) if self.shared else x**2

    def pool(self, scatter: Tensor) -> Tensor:
        return scatter

    def share(self, w: Tensor) -> Tensor:
        return w[:, None]

    def moment(self, scatter: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return (scatter / self.share(w) - self.squares(m)) / (m.shape[-1] if self.shared else 1)

    def scatter(self, covariance: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return self.share(w) * (covariance * (m.shape[-1] if self.shared else 1) + self.squares(m))

    def identity(self, d: int) -> Tensor:
        return torch.ones(1, dtype=torch.float64)

    def clip(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        return torch.clamp(covariance, min=0), covariance.amin(-1)

    def precision(self, covariance: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return m / covariance, -0.5 / covariance, torch.log(covariance.expand_as(m)).sum(-1)

    def whiten(self, covariance: Tensor, gap: Tensor) -> Tensor:
        return gap / torch.sqrt(covariance)[:, None]

    def log_det_and_trace(self, covariance: Tensor, d: int) -> tuple[Tensor, Tensor]:
        variances = covariance.expand(-1, d)
        return torch.log(variances).sum(-1), (1 / variances).sum(-1)

    def colour(self, covariance: Tensor, noise: Tensor) -> Tensor:
        return torch.sqrt(covariance) * noise


def with_covariances(kind: Covariance, s: Tree) -> tuple[Tree, Tensor]:
    """The statistics ``weight``, ``sum`` and ``scatter`` of some Gaussian data, and whether the given ones weren't.

    Empty components are filled, covariances lose their negative eigenvalues, means stay where they are. Eigenvalues
    that are negative by rounding alone, down to −1e-9 of the second moments, aren't counted.
    """
    by_component = {name: t for name, t in s.items() if len(t) == len(s["weight"])}  # a tied scatter isn't
    filled, empty = refill(by_component)
    s = s | filled
    w = s["weight"]
    m = s["sum"] / w[:, None]
    covariance = kind.moment(s["scatter"], w, m)
    clipped, lowest = kind.clip(covariance)
    size = s["scatter"].abs().amax(-1) / kind.share(w).flatten()
    scatter = torch.where((lowest < 0)[:, None], kind.scatter(clipped, w, m), s["scatter"])
    return s | {"scatter": scatter}, empty.any() | (lowest < -1e-9 * size).any()


KINDS: dict[str, Covariance] = {
    "full": Matrices(shared=False),
    "tied": Matrices(shared=True),
    "diag": Axes(shared=False),
    "spherical": Axes(shared=True),
}
"""By scikit-learn's names."""


def upper(x: Tensor) -> Tensor:
    """The upper triangle of xxᵀ, row by row, ``(…, d(d + 1)/2)``."""
    # Products of slices: half the time of indexing both factors.
    return torch.cat([x[..., i : i + 1] * x[..., i:] for i in range(x.shape[-1])], dim=-1)


def packed(matrix: Tensor) -> Tensor:
    """The upper triangle of ``(…, d, d)``, in the order of :func:`upper`."""
    i, j = torch.triu_indices(matrix.shape[-1], matrix.shape[-1])
    return matrix[..., i, j]


def symmetric(triangle: Tensor, d: int) -> Tensor:
    """The symmetric matrix ``(…, d, d)`` of which :func:`packed` is the upper triangle."""
    i, j = torch.triu_indices(d, d)
    place = torch.zeros(d, d, dtype=torch.int64)
    place[i, j] = place[j, i] = torch.arange(len(i))
    matrix: Tensor = triangle[..., place]
    return matrix


def quadratic_coefficients(d: int) -> Tensor:
    """C with c·(packed(P) upper(x)) = −½ xᵀPx: −½ on the diagonal, −1 for the pairs beside it."""
    return packed(torch.eye(d, dtype=torch.float64)) / 2 - 1


def whitening(covariance: Tensor) -> Tensor:
    """U, upper triangular, with UUᵀ = Σ⁻¹; NaN for a Σ that isn't positive definite, which the engine reports."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    factor = torch.where((failed == 0)[..., None, None], factor, torch.nan)
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype).expand_as(factor)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse.mT


def _log_det(U: Tensor) -> Tensor:
    return -2 * torch.log(torch.diagonal(U, dim1=-2, dim2=-1)).sum(-1)
