"""Probabilistic PCA and factor analysis, with missing values: x = μ + Λz + ε, z standard normal, ε independent columns.

M. E. Tipping, C. M. Bishop: Probabilistic principal component analysis. JRSS B, 1999. D. B. Rubin, D. T. Thayer: EM
algorithms for ML factor analysis. Psychometrika, 1982. Missing values, NaN in x, are left out of the complete data,
which is right where they are missing at random: a column is regressed on the latents in the rows that have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.families.covariance import KINDS, packed, symmetric, upper
from archipel.families.family import check_centre, check_table, from_centre, mean_in_pieces, rows_in_pieces, to_centre
from archipel.families.mixture import FLOOR, with_ones
from archipel.families.shrinkage import InverseWishart, check_prior


@dataclass(frozen=True)
class FactorModel:
    """q Gaussian factors behind d columns, of which any may be missing in any row.

    θ is ``{"mean": (d,), "loading": (d, q), "noise": …}``, noise being variances: ``(1,)`` if isotropic (probabilistic
    PCA), ``(d,)`` if diagonal (factor analysis). Where x_ij is there o_ij = 1. Column j's statistics are means over
    examples of E[o_ij upper(ζζᵀ)] with ζ = (1, z_i), ``"latent"``, ``(d, (q + 1)(q + 2)/2)``; of E[o_ij x_ij ζ],
    ``"cross"``, ``(d, q + 1)``; and of o_ij x_ij², ``"square"``, ``(d,)``; x counted from the centre. The penalty is

        R(θ) = Σ_j λ ‖Λ_j‖²/(2ψ_j) + κ/2 Σ (log ψ + s/ψ), the second sum over the variances that there are,

    and T is ridge regression of each column on the latents.

    Given the observed columns o of a row, z has precision M = I + Σ_o Λ_jΛ_jᵀ/ψ_j and mean M⁻¹ Σ_o Λ_j (x_j − μ_j)/ψ_j:
    q × q systems, one a row.

    Args:
        dimension: d.
        factors: q, at most d.
        noise: ``"isotropic"`` or ``"diagonal"``.
        ridge: λ, above 0; per example, as all penalties.
        prior: κ and s, the strength and scale of what is known of the noise beforehand; it keeps a column that the
            factors explain altogether (a Heywood case) from having none.
        centre: c, d numbers near the data's mean; default: 0. It changes rounding and nothing else.

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
        d, q = self.dimension, self.factors
        # Rotations of the factors, q(q − 1)/2 angles, change nothing.
        return d + d * q - q * (q - 1) // 2 + (1 if self.noise == "isotropic" else d)

    def check(self, batch: Tree) -> None:
        check_table("FactorModel", batch["x"], self.dimension, missing=True)

    def initial(self, key: Tensor, scale: float = 1.0) -> Tree:
        """Parameters to start from: loadings drawn at random, the mean at the centre, unit noise.

        Args:
            key: int64 of shape ``()``.
            scale: the columns' standard deviation, by which all is multiplied.
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
            second = torch.cat([zeta, upper(mean) + packed(covariance)], dim=-1)  # E of the upper triangle of ζζᵀ
            x = from_centre(batch["x"], self.centre)
            there = (~torch.isnan(x)).to(torch.float64) * weights[:, None]
            x = torch.nan_to_num(x)
            return {"latent": there.T @ second, "cross": (there * x).T @ zeta, "square": (there * x**2).sum(0)}

        return mean_in_pieces(total, batch, mask, self.factors**2 + self.dimension)

    def maximise(self, s: Tree) -> Tree:
        q = self.factors
        latent = symmetric(s["latent"], q + 1)
        pull = self.ridge * torch.diag(torch.tensor([0.0] + [1.0] * q, dtype=torch.float64))
        seen = latent[:, :1, :1] > 0  # a column that nobody has: its mean is the centre
        pull = pull + torch.where(seen, 0.0, 1.0) * torch.eye(q + 1, dtype=torch.float64)
        coefficients = torch.linalg.solve(latent + pull, s["cross"][..., None])[..., 0]
        # At the minimum λ ‖Λ_j‖² and the squares add up to this.
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
        """Each column's moments of (ζ, x) become the nearest that are positive semi-definite.

        A column that nobody has, or next to nobody, starts anew: at the centre, with latents as the other columns'.
        """
        q = self.factors
        size = s["latent"].abs().amax(-1) + s["square"].abs()
        moments = torch.cat([symmetric(s["latent"], q + 1), s["cross"][:, None]], dim=1)
        last = torch.cat([s["cross"], s["square"][:, None]], dim=-1)[:, :, None]
        nearest, lowest = KINDS["full"].clip(torch.cat([moments, last], dim=-1))
        latent, cross, square = packed(nearest[:, :-1, :-1]), nearest[:, -1, :-1], nearest[:, -1, -1]
        empty = ~(latent[:, 0] >= FLOOR)
        total = torch.clamp(torch.where(empty, 0.0, latent[:, 0]).sum(), min=FLOOR)
        others = torch.where(empty[:, None], 0.0, latent).sum(0) / total
        # If no column is left, latents are as before the first example.
        prior = packed(torch.eye(q + 1, dtype=torch.float64))
        average = FLOOR * torch.where(empty.all(), prior, others)
        mended = {
            "latent": torch.where(empty[:, None], average, latent),
            "cross": torch.where(empty[:, None], 0.0, cross),
            "square": torch.where(empty, 0.0, square),
        }
        return mended, empty.any() | (lowest < -1e-9 * size).any()

    # What is asked of the model

    def log_likelihood(self, theta: Tree, batch: Tree) -> Tensor:
        """Of what was observed in each row, ``(n,)``; 0 for a row of missing values."""

        def rows(batch: Tree) -> Tensor:
            there, gap, precision, pull = self._given(theta, batch)
            noise = theta["noise"].expand(self.dimension)
            log_det = there @ torch.log(2 * math.pi * noise) + torch.linalg.slogdet(precision)[1]
            mean = torch.linalg.solve(precision, pull[..., None])[..., 0]
            found: Tensor = -(log_det + (gap**2 / noise).sum(-1) - (pull * mean).sum(-1)) / 2
            return found

        return rows_in_pieces(rows, {"x": batch["x"]}, self.factors**2 + self.dimension)

    def posterior(self, theta: Tree, batch: Tree) -> Tensor:
        """E[z | what was observed], ``(n, q)``."""
        width = self.factors**2 + self.dimension
        return rows_in_pieces(lambda piece: self._latent(theta, piece)[0], {"x": batch["x"]}, width)

    def impute(self, theta: Tree, batch: Tree) -> Tensor:
        """X with E[x_j | what was observed] in the places of missing values, ``(n, d)`` float64."""
        x = batch["x"].to(torch.float64)
        expected = theta["mean"] + self.posterior(theta, batch) @ theta["loading"].T
        return torch.where(torch.isnan(x), expected, x)

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        z = keys.normal(keys.fold(key, "latent"), n, self.factors, dtype=torch.float64)
        noise = keys.normal(keys.fold(key, "noise"), n, self.dimension, dtype=torch.float64)
        return {"x": theta["mean"] + z @ theta["loading"].T + torch.sqrt(theta["noise"]) * noise, "z": z}

    def _given(self, theta: Tree, batch: Tree) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is there, x − μ or 0, M and the right-hand side of M E[z] = Σ_o Λ_j (x_j − μ_j)/ψ_j."""
        gap = batch["x"].to(torch.float64) - theta["mean"]
        there = (~torch.isnan(gap)).to(torch.float64)
        gap = torch.nan_to_num(gap)
        weighed = theta["loading"] / theta["noise"][:, None]
        information = there @ (upper(theta["loading"]) / theta["noise"][:, None])
        identity = torch.eye(self.factors, dtype=torch.float64)
        return there, gap, identity + symmetric(information, self.factors), gap @ weighed

    def _latent(self, theta: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Mean, ``(n, q)``, and covariance, ``(n, q, q)``, of z given what was observed."""
        _, _, precision, pull = self._given(theta, batch)
        covariance, _ = torch.linalg.inv_ex(precision)
        return (covariance @ pull[..., None])[..., 0], covariance
