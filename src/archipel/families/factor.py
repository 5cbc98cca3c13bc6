"""Probabilistic PCA and factor analysis, with missing values: x = μ + Λz + ε, z standard normal, ε independent columns.

M. E. Tipping, C. M. Bishop: Probabilistic principal component analysis. JRSS B, 1999. D. B. Rubin, D. T. Thayer: EM
algorithms for ML factor analysis. Psychometrika, 1982. Missing values are NaN in x. They are left out of the complete
data, so that a column is regressed on the latents in the rows that have it. This is right for values missing at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.families.covariance import KINDS, from_triangle, outer_triangle, solve, triangle_of
from archipel.families.family import (
    check_centre,
    check_reach,
    check_table,
    from_centre,
    mean_in_pieces,
    rows_in_pieces,
    to_centre,
)
from archipel.families.mixture import FLOOR, with_ones
from archipel.families.shrinkage import InverseWishart, check_prior


@dataclass(frozen=True)
class FactorModel:
    """A model of d columns with q Gaussian factors. Any value may be missing.

    θ is ``{"mean": (d,), "loading": (d, q), "noise": …}``. Noise holds variances: ``(1,)`` if isotropic (probabilistic
    PCA), ``(d,)`` if diagonal (factor analysis). Let o_ij be 1 if x_ij was observed and 0 otherwise, ζ = (1, z_i), and
    x be measured from the centre. Column j's statistics are means over examples of

    - E[o_ij upper(ζζᵀ)]: ``"latent"``, ``(d, (q + 1)(q + 2)/2)``;
    - E[o_ij x_ij ζ]: ``"cross"``, ``(d, q + 1)``;
    - o_ij x_ij²: ``"square"``, ``(d,)``.

    The penalty, whose second sum runs over the one or d variances, is

        R(θ) = Σ_j λ ‖Λ_j‖²/(2ψ_j) + κ/2 Σ (log ψ + s/ψ).

    T is a ridge regression of each column on the latents.

    Given the observed columns o of a row, z has precision M = I + Σ_o Λ_jΛ_jᵀ/ψ_j and mean M⁻¹ Σ_o Λ_j (x_j − μ_j)/ψ_j:
    one q × q system for each row.

    Args:
        dimension: d.
        factors: q, at most d.
        noise: ``"isotropic"`` or ``"diagonal"``.
        ridge: λ, above 0; per example, as all penalties.
        prior: κ and s, strength and scale of the noise's prior. It keeps the variance of a column that the factors
            explain completely (a Heywood case) above 0.
        centre: c, d numbers near the data's mean; default: 0. It changes rounding errors only.

    Raises:
        ValueError: a setting out of its range.

    >>> family = FactorModel(2, 1)
    >>> theta = {"mean": torch.zeros(2), "loading": torch.ones(2, 1), "noise": torch.ones(1)}
    >>> x = torch.tensor([[2.0, torch.nan]])
    >>> family.impute({name: t.double() for name, t in theta.items()}, {"x": x})  # E[x_2 | x_1] = 2 · 1/(1 + 1)
    tensor([[2., 1.]], dtype=torch.float64)
    """

    dimension: int
    factors: int
    noise: Literal["isotropic", "diagonal"] = "isotropic"
    ridge: float = 1e-6
    prior: InverseWishart = InverseWishart(1e-6)  # noqa: RUF009 frozen
    centre: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checks.positive_int("FactorModel", dimension=self.dimension, factors=self.factors)
        if self.factors > self.dimension:
            raise ValueError(
                f"FactorModel's factors must be at most its dimension, {self.dimension}; given {self.factors}."
            )
        checks.one_of("FactorModel", "noise", self.noise, "isotropic", "diagonal")
        checks.above_zero("FactorModel", ridge=self.ridge)
        check_prior("FactorModel", self.prior)
        check_centre("FactorModel", self.centre, self.dimension)

    def parameters(self) -> int:
        """Count the free parameters: those of the mean, and the dimension of the set of covariances ΛΛᵀ + Ψ.

        Rotations of the factors, q(q − 1)/2 angles, change no covariance, and the set is no larger than that of all
        covariances: dim = min(dq − q(q − 1)/2 + noise, d(d + 1)/2). (M. Drton, B. Sturmfels, S. Sullivant: Algebraic
        factor analysis: tetrads, pentads and beyond, Probability Theory and Related Fields 138, 2007, Theorem 2.)
        """
        d, q = self.dimension, self.factors
        covariance = d * q - q * (q - 1) // 2 + (1 if self.noise == "isotropic" else d)
        return d + min(covariance, d * (d + 1) // 2)

    def check(self, batch: Tree) -> None:
        check_table("FactorModel", batch["x"], self.dimension, missing=True)

    def check_reach(self, theta: Tree, s: Tree) -> None:
        """Raise ValueError for a mean so far from the centre that second moments about it lose their digits."""
        check_reach("FactorModel", theta["mean"], theta["loading"].square().sum(-1) + theta["noise"], self.centre)

    def initial(self, key: Tensor, scale: float = 1.0) -> Tree:
        """Draw parameters to start from: random loadings, the mean at the centre, noise of variance ``scale``².

        Args:
            key: int64 of shape ``()``.
            scale: the columns' standard deviation; loadings and the noise's deviations are multiplied by it.
        """
        d, q = self.dimension, self.factors
        loading = scale / math.sqrt(q) * keys.normal(keys.fold(key, "loading"), d, q, dtype=torch.float64)
        variances = torch.full((1 if self.noise == "isotropic" else d,), scale**2, dtype=torch.float64)
        return {
            "mean": to_centre(torch.zeros(d, dtype=torch.float64), self.centre),
            "loading": loading,
            "noise": variances,
        }

    # The two steps

    def statistics(self, theta: Tree, batch: Tree, mask: Tensor) -> Tree:
        def total(batch: Tree, weights: Tensor) -> Tree:
            mean, covariance = self._latent(theta, batch)
            zeta = with_ones(mean)
            second = torch.cat([zeta, outer_triangle(mean) + triangle_of(covariance)], dim=-1)  # E[upper(ζζᵀ)]
            x = from_centre(batch["x"], self.centre)
            there = (~torch.isnan(x)).to(torch.float64) * weights[:, None]
            x = torch.nan_to_num(x)
            return {"latent": there.T @ second, "cross": (there * x).T @ zeta, "square": (there * x**2).sum(0)}

        return mean_in_pieces(total, batch, mask, self.factors**2 + self.dimension)

    def maximise(self, s: Tree) -> Tree:
        q = self.factors
        latent = from_triangle(s["latent"], q + 1)
        pull = self.ridge * torch.diag(torch.tensor([0.0] + [1.0] * q, dtype=torch.float64))
        seen = latent[:, :1, :1] > 0  # the mean of a column that nobody has stays at the centre
        pull = pull + torch.where(seen, 0.0, 1.0) * torch.eye(q + 1, dtype=torch.float64)
        coefficients = solve(latent + pull, s["cross"])
        # At the minimum λ ‖Λ_j‖² and the squared residuals add up to this.
        squares = torch.clamp(s["square"] - (coefficients * s["cross"]).sum(-1), min=0)
        shown = torch.clamp(latent[:, 0, 0], min=0)
        if self.noise == "isotropic":
            squares, shown = squares.sum(0, keepdim=True), shown.sum(0, keepdim=True)
        kappa, scale = self.prior.strength, self.prior.scale
        return {
            "mean": to_centre(coefficients[:, 0], self.centre),
            "loading": coefficients[:, 1:],
            "noise": (squares + kappa * scale) / (shown + kappa),
        }

    def penalty(self, theta: Tree) -> Tensor:
        noise, loading = theta["noise"], theta["loading"]
        pull = self.ridge * (loading.square().sum(-1) / noise).sum()
        value: Tensor = pull + self.prior.strength * (torch.log(noise) + self.prior.scale / noise).sum()
        return value / 2

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Move each column's moments of (ζ, x) to the nearest positive semi-definite ones.

        A column with (almost) no values restarts at the centre, with the latent moments of the other columns.
        """
        q = self.factors
        size = s["latent"].abs().amax(-1) + s["square"].abs()
        moments = torch.cat([from_triangle(s["latent"], q + 1), s["cross"][:, None]], dim=1)
        last = torch.cat([s["cross"], s["square"][:, None]], dim=-1)[:, :, None]
        nearest, lowest = KINDS["full"].clip(torch.cat([moments, last], dim=-1))
        latent, cross, square = triangle_of(nearest[:, :-1, :-1]), nearest[:, -1, :-1], nearest[:, -1, -1]
        empty = ~(latent[:, 0] >= FLOOR)
        total = torch.clamp(torch.where(empty, 0.0, latent[:, 0]).sum(), min=FLOOR)
        others = torch.where(empty[:, None], 0.0, latent).sum(0) / total
        # Without any column, latents have their prior moments.
        prior = triangle_of(torch.eye(q + 1, dtype=torch.float64))
        average = FLOOR * torch.where(empty.all(), prior, others)
        mended = {
            "latent": torch.where(empty[:, None], average, latent),
            "cross": torch.where(empty[:, None], 0.0, cross),
            "square": torch.where(empty, 0.0, square),
        }
        return mended, empty.any() | (lowest < -1e-9 * size).any()

    # What is asked of the model

    def log_likelihood(self, theta: Tree, batch: Tree) -> Tensor:
        """Return the log-likelihood of the observed values of each row, ``(n,)``; 0 for a row without any."""

        def rows(batch: Tree) -> Tensor:
            there, gap, precision, pull = self._given(theta, batch)
            noise = theta["noise"].expand(self.dimension)
            log_det = there @ torch.log(2 * math.pi * noise) + torch.linalg.slogdet(precision)[1]
            mean = solve(precision, pull)
            found: Tensor = -(log_det + (gap**2 / noise).sum(-1) - (pull * mean).sum(-1)) / 2
            return found

        return rows_in_pieces(rows, {"x": batch["x"]}, self.factors**2 + self.dimension)

    def posterior(self, theta: Tree, batch: Tree) -> Tensor:
        """Return E[z | observed values], ``(n, q)``."""
        width = self.factors**2 + self.dimension
        return rows_in_pieces(lambda piece: self._latent(theta, piece)[0], {"x": batch["x"]}, width)

    def impute(self, theta: Tree, batch: Tree) -> Tensor:
        """Return x with missing values replaced by E[x_j | observed values], ``(n, d)`` float64."""
        x = batch["x"].to(torch.float64)
        expected = theta["mean"] + self.posterior(theta, batch) @ theta["loading"].T
        return torch.where(torch.isnan(x), expected, x)

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = keys.normal(keys.fold(key, "latent"), n, self.factors, dtype=torch.float64)
        noise = keys.normal(keys.fold(key, "noise"), n, self.dimension, dtype=torch.float64)
        return {"x": theta["mean"] + z @ theta["loading"].T + torch.sqrt(theta["noise"]) * noise, "z": z}

    def _given(self, theta: Tree, batch: Tree) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return o, x − μ (0 where missing), M, and the right-hand side of M E[z] = Σ_o Λ_j (x_j − μ_j)/ψ_j."""
        gap = batch["x"].to(torch.float64) - theta["mean"]
        there = (~torch.isnan(gap)).to(torch.float64)
        gap = torch.nan_to_num(gap)
        weighed = theta["loading"] / theta["noise"][:, None]
        information = there @ (outer_triangle(theta["loading"]) / theta["noise"][:, None])
        identity = torch.eye(self.factors, dtype=torch.float64)
        return there, gap, identity + from_triangle(information, self.factors), gap @ weighed

    def _latent(self, theta: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Return the mean, ``(n, q)``, and covariance, ``(n, q, q)``, of z given the observed values."""
        _, _, precision, pull = self._given(theta, batch)
        covariance, _ = torch.linalg.inv_ex(precision)
        return (covariance @ pull[..., None])[..., 0], covariance
