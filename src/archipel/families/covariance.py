"""The kinds of covariance of a Gaussian mixture: which second moments are sent, and how densities follow from them.

A covariance is a matrix Σ, ``(K, d, d)``, or the variances of the axes, ``(K, d)``. Either may be shared: one matrix
for all components, ``(1, d, d)``, or one variance for all axes, ``(K, 1)``. The statistics hold second moments under
``scatter``: upper triangles for matrices and squares for axes, shared as the covariances are. Below, w are the
components' mean responsibilities, ``(K,)``, and m their means, ``(K, d)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archipel.core.trees import Tree
from archipel.core.vmap import inside_vmap
from archipel.families.mixture import refill, with_ones


class Covariance(Protocol):
    """One kind of covariance."""

    def size(self, K: int, d: int) -> int:
        """Count the free parameters."""

    def features(self, x: Tensor) -> Tensor:
        """Return Φ(x): 1, x and the q second moments of each example, ``(n, 1 + d + q)``."""

    def pool(self, scatter: Tensor) -> Tensor:
        """Sum second moments, ``(K, q)``, over what is shared."""

    def share(self, w: Tensor) -> Tensor:
        """Return the mean responsibility behind each Σ, in a shape that broadcasts against it."""

    def moment(self, scatter: Tensor, w: Tensor, m: Tensor) -> Tensor:
        """Compute Σ = scatter/w − mmᵀ."""

    def scatter(self, covariance: Tensor, w: Tensor, m: Tensor) -> Tensor:
        """Invert ``moment``."""

    def identity(self, d: int) -> Tensor:
        """Return I, in a shape that broadcasts against Σ."""

    def clip(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nearest positive semi-definite Σ, and the lowest eigenvalue of each given one."""

    def precision(self, covariance: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the coefficients of x, ``(K, d)``, and second moments, ``(K, q)``, in log N(x; m, Σ); and log |Σ|."""

    def whiten(self, covariance: Tensor, gap: Tensor) -> Tensor:
        """Scale gaps x − m, ``(K, n, d)``, so that their covariance is I."""

    def log_det_and_trace(self, covariance: Tensor, d: int) -> tuple[Tensor, Tensor]:
        """Return log |Σ| and tr Σ⁻¹ of each component, ``(K,)`` or ``(1,)``."""

    def colour(self, covariance: Tensor, noise: Tensor) -> Tensor:
        """Give standard normal noise, ``(n, d)``, the covariances Σ, one for each row."""


@dataclass(frozen=True)
class Matrices:
    """A covariance matrix for each component, or one for all components.

    >>> kind, m = Matrices(shared=False), torch.tensor([[1.0, 2.0]])
    >>> kind.moment(torch.tensor([[2.0, 2.0, 5.0]]), torch.tensor([1.0]), m)
    tensor([[[1., 0.],
             [0., 1.]]])
    """

    shared: bool

    def size(self, K: int, d: int) -> int:
        return (1 if self.shared else K) * d * (d + 1) // 2

    def features(self, x: Tensor) -> Tensor:
        return outer_triangle(with_ones(x))

    def pool(self, scatter: Tensor) -> Tensor:
        return scatter.sum(0, keepdim=True) if self.shared else scatter

    def share(self, w: Tensor) -> Tensor:
        return (w.sum(0, keepdim=True) if self.shared else w)[:, None, None]

    def moment(self, scatter: Tensor, w: Tensor, m: Tensor) -> Tensor:
        between = self.pool(w[:, None] * outer_triangle(m))
        return from_triangle(scatter - between, m.shape[-1]) / self.share(w)

    def scatter(self, covariance: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return triangle_of(self.share(w) * covariance) + self.pool(w[:, None] * outer_triangle(m))

    def identity(self, d: int) -> Tensor:
        return torch.eye(d, dtype=torch.float64)

    def clip(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        finite = torch.isfinite(covariance).all(-1, keepdim=True).all(-2, keepdim=True)
        # eigh raises an obscure error for values that aren't finite. NaN is reported by the engine, with a remedy.
        values, vectors = torch.linalg.eigh(torch.where(finite, covariance, 0.0))
        values = torch.where(finite[..., 0], values, torch.nan)
        mended = (vectors * torch.clamp(values, min=0)[..., None, :]) @ vectors.mT
        return torch.where(values[..., :1, None] >= 0, covariance, mended), values[..., 0]

    def precision(self, covariance: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U = whitening(covariance)
        P = U @ U.mT
        quadratic = triangle_of(P) * quadratic_coefficients(m.shape[-1])
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
    """A variance for each axis of each component, or one for all its axes.

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
    """Move the statistics ``weight``, ``sum`` and ``scatter`` to the nearest that some Gaussian data have.

    Empty components are filled and negative eigenvalues of covariances become 0. Means stay as they are.

    Returns:
        The statistics, and a bool of shape ``()``: were the given ones outside. Eigenvalues that are negative by
        rounding alone, down to −1e-9 of the second moments, don't count.
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
"""The kinds of covariance by scikit-learn's names."""


def outer_triangle(x: Tensor) -> Tensor:
    """Return the upper triangle of xxᵀ, row by row, ``(…, d(d + 1)/2)``."""
    # Products of slices take half the time of indexing both factors.
    return torch.cat([x[..., i : i + 1] * x[..., i:] for i in range(x.shape[-1])], dim=-1)


def triangle_of(matrix: Tensor) -> Tensor:
    """Return the upper triangle of ``(…, d, d)``, in the order of :func:`outer_triangle`."""
    i, j = torch.triu_indices(matrix.shape[-1], matrix.shape[-1])
    return matrix[..., i, j]


def from_triangle(triangle: Tensor, d: int) -> Tensor:
    """Invert :func:`triangle_of`: return the symmetric matrix, ``(…, d, d)``."""
    i, j = torch.triu_indices(d, d)
    place = torch.zeros(d, d, dtype=torch.int64)
    place[i, j] = place[j, i] = torch.arange(len(i))
    matrix: Tensor = triangle[..., place]
    return matrix


def quadratic_coefficients(d: int) -> Tensor:
    """Return C with Σ C · triangle_of(P) · outer_triangle(x) = −½ xᵀPx: −½ on the diagonal, −1 off it."""
    return triangle_of(torch.eye(d, dtype=torch.float64)) / 2 - 1


def whitening(covariance: Tensor) -> Tensor:
    """Return U, upper triangular, with UUᵀ = Σ⁻¹; NaN, which the engine reports, if Σ isn't positive definite."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    factor = torch.where((failed == 0)[..., None, None], factor, torch.nan)
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype).expand_as(factor)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse.mT


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive semi-definite systems, ``(…, q, q)`` and ``(…, q)``; singular ones by least squares.

    A matrix whose smallest entries are below the rounding of its largest is singular in float64. Whether elimination
    then finds a zero pivot depends on the processor; least squares gives the shortest solution of the scaled system.


    """
    columns, failed = torch.linalg.solve_ex(matrix, right[..., None])
    found: Tensor = columns[..., 0]
    if not inside_vmap() and not bool(failed.any()):
        return found
    unit = torch.diagonal(matrix, dim1=-2, dim2=-1).clamp(min=0).sqrt()
    unit = torch.where(unit > 0, unit, 1.0)
    scaled = matrix / unit[..., None] / unit[..., None, :]
    finite = torch.isfinite(scaled).all(-1, keepdim=True).all(-2, keepdim=True)  # the engine reports NaN
    inverse = torch.linalg.pinv(torch.where(finite, scaled, 0.0), hermitian=True)
    least = (torch.where(finite, inverse, torch.nan) @ (right / unit)[..., None])[..., 0] / unit
    return torch.where((failed != 0)[..., None], least, found)


def _log_det(U: Tensor) -> Tensor:
    return -2 * torch.log(torch.diagonal(U, dim1=-2, dim2=-1)).sum(-1)
