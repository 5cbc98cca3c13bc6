"""Gaussian mixtures: a curved exponential family (:mod:`archipel.families.family`).

With full covariances Φ(x) = [1, x, upper(xxᵀ)], and the statistics are K (1 + d + d(d + 1)/2) numbers.

Second moments cancel. Let a = ‖x − c‖/σ with c the family's ``centre`` and σ a component's smallest standard deviation.
Log-densities in the E-step are wrong by up to 5e-16 a² (measured). Covariances are differences of second moments, and
wrong by a² roundings. For standardised data this is negligible: with the ridge of 1e-6 at most about 1e-7. Data far
from zero need a ``centre``, and columns of very different scales should be standardised. Near a = 1e8 a covariance has
no correct digit; where it isn't positive definite, densities are NaN. Likelihoods and responsibilities that a user asks
for are computed from x − μ_k by Cholesky factors and lose nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.families.covariance import KINDS, Covariance, with_covariances
from archipel.families.family import check_centre, check_reach, check_table, from_centre, rows_in_pieces, to_centre
from archipel.families.mixture import TINY, Mixture, draw_components, proportions, safe_log
from archipel.families.shrinkage import Ridge, Shrinkage

Kind = Literal["full", "tied", "diag", "spherical"]


@dataclass(frozen=True)
class GaussianMixture(Mixture):
    """A mixture of K Gaussians in d dimensions.

    θ is ``{"weight": (K,), "mean": (K, d), "covariance": …}``. Statistics are ``{"weight": (K,), "sum": (K, d),
    "scatter": …}``: the means over examples of r_k, of r_k (x − c) and of a second moment.

    =========  =================  ==================================================  =====================
    kind       covariance         second moment                                       ``scatter``
    =========  =================  ==================================================  =====================
    full       ``(K, d, d)``      r_k times the upper triangle of (x − c)(x − c)ᵀ     ``(K, d(d + 1)/2)``
    tied       ``(1, d, d)``      the sum of this over components                     ``(1, d(d + 1)/2)``
    diag       ``(K, d)``         r_k (x − c)², by columns                            ``(K, d)``
    spherical  ``(K, 1)``         r_k ‖x − c‖²                                        ``(K, 1)``
    =========  =================  ==================================================  =====================

    Args:
        components: K.
        dimension: d.
        covariance: ``"full"``, ``"tied"``, ``"diag"`` or ``"spherical"``.
        shrinkage: keeps covariances from collapsing, and gives the penalty R: :class:`Ridge` or
            :class:`InverseWishart`.
        centre: c, d numbers near the data's mean; default: 0. It changes rounding errors only.

    Raises:
        ValueError: K or d below 1, an unknown kind, or a centre that isn't d numbers.

    >>> family = GaussianMixture(2, 1)
    >>> x = torch.tensor([[-1.0], [1.0], [9.0], [11.0]], dtype=torch.float64)
    >>> labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> theta = family.maximise(family.complete(labels, {"x": x}, torch.ones(4, dtype=torch.bool)))
    >>> theta["mean"].flatten(), theta["weight"]
    (tensor([ 0., 10.], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """

    components: int
    dimension: int
    covariance: Kind = "full"
    shrinkage: Shrinkage = Ridge(1e-6)  # noqa: RUF009 frozen
    centre: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checks.positive_int("GaussianMixture", components=self.components, dimension=self.dimension)
        checks.one_of("GaussianMixture", "covariance", self.covariance, *KINDS)
        if not hasattr(self.shrinkage, "blend"):
            raise ValueError(
                "GaussianMixture's shrinkage is Ridge(amount) or InverseWishart(strength, scale); given "
                f"{self.shrinkage!r}."
            )
        check_centre("GaussianMixture", self.centre, self.dimension)

    @property
    def kind(self) -> Covariance:
        return KINDS[self.covariance]

    def parameters(self) -> int:
        K, d = self.components, self.dimension
        return K - 1 + K * d + self.kind.size(K, d)

    def check(self, batch: Tree) -> None:
        check_table("GaussianMixture", batch["x"], self.dimension)

    def check_reach(self, theta: Tree, s: Tree) -> None:
        """Raise ValueError for components so far from the centre that second moments about it lose their digits."""
        covariance = theta["covariance"]
        full = self.covariance in ("full", "tied")
        variance = covariance.diagonal(dim1=-2, dim2=-1) if full else covariance
        check_reach("GaussianMixture", theta["mean"], variance, self.centre)

    # The E-step's features and weights

    def features(self, batch: Tree) -> Tensor:
        return self.kind.features(from_centre(batch["x"], self.centre))

    def natural(self, theta: Tree) -> Tensor:
        m, d = from_centre(theta["mean"], self.centre), self.dimension
        linear, quadratic, log_det = self.kind.precision(theta["covariance"], m)
        constant = safe_log(theta["weight"]) - (log_det + d * math.log(2 * math.pi) + (linear * m).sum(-1)) / 2
        return torch.cat([constant[:, None], linear, quadratic], dim=-1)

    def split(self, moments: Tensor) -> Tree:
        d = self.dimension
        return {"weight": moments[:, 0], "sum": moments[:, 1 : 1 + d], "scatter": self.kind.pool(moments[:, 1 + d :])}

    # The M-step

    def maximise(self, s: Tree) -> Tree:
        w = torch.clamp(s["weight"], min=TINY)
        m = s["sum"] / w[:, None]
        S = self.kind.moment(s["scatter"], w, m)
        a, b = self.shrinkage.blend(self.kind.share(w))
        return {
            "weight": proportions(s),
            "mean": to_centre(m, self.centre),
            "covariance": a * S + b * self.kind.identity(self.dimension),
        }

    def penalty(self, theta: Tree) -> Tensor:
        log_det, trace = self.kind.log_det_and_trace(theta["covariance"], self.dimension)
        return self.shrinkage.penalty(self.kind.share(theta["weight"]).flatten(), log_det, trace)

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Fill empty components, and set negative eigenvalues of covariances to 0; means stay as they are."""
        return with_covariances(self.kind, s)

    # Densities, by whitening: the accurate form

    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        """Return log π_k N(x; μ_k, Σ_k), ``(n, K)``."""
        K, d = self.components, self.dimension
        log_det, _ = self.kind.log_det_and_trace(theta["covariance"], d)
        constant = safe_log(theta["weight"]) - (log_det + d * math.log(2 * math.pi)) / 2

        def rows(batch: Tree) -> Tensor:
            gap = batch["x"].to(torch.float64) - theta["mean"][:, None]
            return constant - self.kind.whiten(theta["covariance"], gap).square().sum(-1).T / 2

        return rows_in_pieces(rows, {"x": batch["x"]}, K * d)

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = draw_components(theta, n, key)
        noise = keys.normal(keys.fold(key, "noise"), n, self.dimension, dtype=torch.float64)
        covariance = theta["covariance"].expand(self.components, *theta["covariance"].shape[1:])
        return {"x": theta["mean"][z] + self.kind.colour(covariance[z], noise), "z": z}
