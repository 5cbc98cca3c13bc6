"""Mixtures of linear regressions: in component k, y = b_k + β_kᵀx + noise of variance σ_k².

Statistics are the moments of v = (x, y) in each component: those of a Gaussian mixture of v with full covariances. T
solves weighted least squares with them. The distribution of x isn't modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.families.covariance import KINDS, outer_triangle, quadratic_coefficients, solve, with_covariances
from archipel.families.family import check_centre, check_reach, check_table, check_targets, from_centre, to_centre
from archipel.families.mixture import TINY, Mixture, draw_components, proportions, safe_log, with_ones
from archipel.families.shrinkage import InverseWishart, check_prior

FULL = KINDS["full"]


@dataclass(frozen=True)
class RegressionMixture(Mixture):
    """K linear regressions on d columns, with intercepts.

    θ is ``{"weight": (K,), "intercept": (K,), "slope": (K, d), "noise": (K,)}``; noise holds variances. Statistics are
    ``{"weight": (K,), "sum": (K, d + 1), "scatter": (K, (d + 1)(d + 2)/2)}``, those of v − c. The penalty, of a normal
    prior on slopes and an inverse-gamma prior on the noise, is

        R(θ) = Σ_k (λ ‖β_k‖² + κψ)/(2σ_k²) + κ/2 log σ_k².

    With the weight w, mean m and covariance S of v in a component, T is
    β = (w S_xx + λI)⁻¹ w S_xy, b = m_y − βᵀm_x, σ² = (w (S_yy − 2βᵀS_xy + βᵀS_xx β) + λ ‖β‖² + κψ)/(w + κ).

    Args:
        components: K.
        dimension: d.
        ridge: λ, above 0: pulls slopes to zero; per example, as all penalties.
        prior: κ and ψ, strength and scale of the noise's prior.
        centre: c, d + 1 numbers near the mean of (x, y); default: 0. It changes rounding errors only.

    Raises:
        ValueError: a setting out of its range.

    >>> family = RegressionMixture(1, 1, ridge=1e-12)
    >>> batch = {"x": torch.tensor([[0.0], [1.0], [2.0]]), "y": torch.tensor([1.0, 3.0, 5.0])}
    >>> theta = family.maximise(family.complete(torch.ones(3, 1), batch, torch.ones(3, dtype=torch.bool)))
    >>> theta["intercept"], theta["slope"]
    (tensor([1.0000], dtype=torch.float64), tensor([[2.0000]], dtype=torch.float64))
    """

    components: int
    dimension: int
    ridge: float = 1e-6
    prior: InverseWishart = InverseWishart(1e-6)  # noqa: RUF009 frozen
    centre: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checks.positive_int("RegressionMixture", components=self.components, dimension=self.dimension)
        checks.above_zero("RegressionMixture", ridge=self.ridge)
        check_prior("RegressionMixture", self.prior)
        check_centre("RegressionMixture", self.centre, self.dimension + 1)

    def parameters(self) -> int:
        return self.components - 1 + self.components * (self.dimension + 2)

    def check(self, batch: Tree) -> None:
        check_table("RegressionMixture", batch["x"], self.dimension)
        check_targets("RegressionMixture", batch)

    def check_reach(self, theta: Tree, s: Tree) -> None:
        """Raise ValueError for points (x, y) so far from the centre that second moments lose their digits."""
        w = torch.clamp(s["weight"], min=TINY)
        m = s["sum"] / w[:, None]
        variance = FULL.moment(s["scatter"], w, m).diagonal(dim1=-2, dim2=-1) + self.ridge
        advice = "Give as centre a number near the mean of each column of x, and of y"
        check_reach("RegressionMixture", to_centre(m, self.centre), variance, self.centre, advice)

    def points(self, batch: Tree) -> Tensor:
        """Return (x, y), ``(n, d + 1)``."""
        return torch.cat([batch["x"], batch["y"][:, None]], dim=-1).to(torch.float64)

    def features(self, batch: Tree) -> Tensor:
        return outer_triangle(with_ones(from_centre(self.points(batch), self.centre)))

    def natural(self, theta: Tree) -> Tensor:
        # The residual y − b − βᵀx is the product of (−b, −β, 1) and (1, v). With v − c, b changes by the offset.
        slope, noise = theta["slope"], theta["noise"]
        intercept = theta["intercept"] - self._offset(slope)
        residual = torch.cat([-intercept[:, None], -slope, torch.ones_like(intercept)[:, None]], dim=-1)
        square = outer_triangle(residual / torch.sqrt(noise)[:, None]) * quadratic_coefficients(self.dimension + 2)
        constant = safe_log(theta["weight"]) - torch.log(2 * math.pi * noise) / 2
        return torch.cat([square[:, :1] + constant[:, None], square[:, 1:]], dim=-1)

    def split(self, moments: Tensor) -> Tree:
        v = self.dimension + 2
        return {"weight": moments[:, 0], "sum": moments[:, 1:v], "scatter": moments[:, v:]}

    def maximise(self, s: Tree) -> Tree:
        w = torch.clamp(s["weight"], min=TINY)
        m = s["sum"] / w[:, None]
        S = w[:, None, None] * FULL.moment(s["scatter"], w, m)
        pull = self.ridge * torch.eye(self.dimension, dtype=torch.float64)
        xx, xy, yy = S[:, :-1, :-1], S[:, :-1, -1], S[:, -1, -1]
        slope = solve(xx + pull, xy)
        # At the minimum λ ‖β‖² and the squared residuals add up to this.
        squares = torch.clamp(yy - (slope * xy).sum(-1), min=0)
        kappa, psi = self.prior.strength, self.prior.scale
        return {
            "weight": proportions(s),
            "intercept": m[:, -1] - (slope * m[:, :-1]).sum(-1) + self._offset(slope),
            "slope": slope,
            "noise": (squares + kappa * psi) / (w + kappa),
        }

    def penalty(self, theta: Tree) -> Tensor:
        noise, kappa, psi = theta["noise"], self.prior.strength, self.prior.scale
        pull = self.ridge * theta["slope"].square().sum(-1)
        penalties: Tensor = (pull + kappa * psi) / noise + kappa * torch.log(noise)
        return penalties.sum() / 2

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Fill empty components, and set negative eigenvalues of the covariances of (x, y) to 0."""
        return with_covariances(FULL, s)

    def log_joint(self, theta: Tree, batch: Tree) -> Tensor:
        residual = batch["y"].to(torch.float64)[:, None] - self.expect(theta, batch)
        constant = safe_log(theta["weight"]) - torch.log(2 * math.pi * theta["noise"]) / 2
        logs: Tensor = constant - residual.square() / (2 * theta["noise"])
        return logs

    def expect(self, theta: Tree, batch: Tree) -> Tensor:
        """Return b_k + β_kᵀx, ``(n, K)``."""
        found: Tensor = theta["intercept"] + batch["x"].to(torch.float64) @ theta["slope"].T
        return found

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        """Draw examples; x, which isn't modelled, is standard normal about the centre."""
        z = draw_components(theta, n, key)
        x = keys.normal(keys.fold(key, "x"), n, self.dimension, dtype=torch.float64)
        x = to_centre(x, self.centre and self.centre[:-1])
        noise = torch.sqrt(theta["noise"])[z] * keys.normal(keys.fold(key, "noise"), n, dtype=torch.float64)
        y = self.expect(theta, {"x": x}).gather(1, z[:, None])[:, 0] + noise
        return {"x": x, "y": y, "z": z}

    def _offset(self, slope: Tensor) -> Tensor:
        """Return c_y − βᵀc_x, which the centre adds to intercepts."""
        c = torch.tensor(self.centre or [0.0] * (self.dimension + 1), dtype=torch.float64)
        return c[-1] - slope @ c[:-1]
