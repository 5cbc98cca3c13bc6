"""Density ratio models: populations that are exponential tilts of one baseline, which isn't modelled.

J. A. Anderson: Multivariate logistic compounds, Biometrika 66, 1979; J. Chen, Y. Liu: Quantile and quantile-function
estimations under density ratio model, Annals of Statistics 41, 2013. Equation numbers are those of Z. Wang et al.:
FedSPM, arXiv 2607.04085, 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import above_zero, at_least_zero, kind_of, positive_int
from archipel.data.arrays import Values
from archipel.drm.objectives import normalising
from archipel.drm.points import Basis, as_float64, as_points, features_of, refuse_not_finite
from archipel.drm.separation import Separation
from archipel.drm.tilts import fit_tilts
from archipel_serve.arrays import Array


def linear(x: Values) -> Tensor:
    """Compute h(x) = x, ``(n, d)`` float64: correct for normal populations with one covariance."""
    x = as_float64(x, "x")
    return x.reshape(len(x), -1)


def quadratic(x: Values) -> Tensor:
    """Compute h(x) = (x_a, x_a x_b for a ≤ b), ``(n, d + d (d + 1)/2)`` float64: correct for any normal populations.

    >>> quadratic(torch.tensor([[2.0, 3.0]]))
    tensor([[2., 3., 4., 6., 9.]], dtype=torch.float64)
    """
    flat = linear(x)
    a, b = torch.triu_indices(flat.shape[1], flat.shape[1])
    return torch.cat([flat, flat[:, a] * flat[:, b]], dim=1)


def pool(samples: Sequence[Tensor | Array]) -> tuple[Tensor, Tensor]:
    """Pool samples of L populations, ``(n_l, …)`` each, into points ``(n, …)`` and memberships ``(n, L)``.

    Points are float64 unless all samples are tensors of one dtype, which they keep.

    Raises:
        ValueError: no samples, anything but tensors or arrays, or points of different shapes.

    >>> points, memberships = pool([torch.zeros(2, 3), torch.ones(1, 3)])
    >>> points.shape, memberships.tolist()
    (torch.Size([3, 3]), [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    """
    arrays = all(isinstance(sample, Tensor | np.ndarray) and sample.ndim for sample in samples)
    if not len(samples) or not arrays or len({tuple(sample.shape[1:]) for sample in samples}) > 1:
        raise ValueError(
            f"pool takes tensors (n_l, …) with the same columns, one for each population; given {len(samples)}: "
            f"{', '.join(str(tuple(s.shape)) if hasattr(s, 'shape') else kind_of(s) for s in samples)}."
        )
    sizes = torch.tensor([len(sample) for sample in samples])
    labels = torch.repeat_interleave(torch.arange(len(samples)), sizes)
    tensors = [sample for sample in samples if isinstance(sample, Tensor)]
    if len(tensors) < len(samples) or len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [as_float64(sample, f"sample {i}") for i, sample in enumerate(samples)]
    return torch.cat(tensors), torch.nn.functional.one_hot(labels, len(samples)).double()


@dataclass(frozen=True, eq=False)
class DensityRatioModel:
    """A fitted model dP_l/dG(x) = exp(γ_l + ξ_lᵀh(x)) (eq. 3) of L populations; G has mass on the pooled points.

    Make one with :meth:`fit`. Means, quantiles and distribution functions are weighted averages over the pooled points:
    use :mod:`archipel.drm.estimates` with the weights ``distributions``.

    Args:
        basis: h.
        gamma: ``(L,)`` γ, such that G and all P_l have mass one.
        xi: ``(L, d)`` ξ.
        points: ``(n, …)`` the pooled points.
        features: ``(n, d)`` h of them.
        memberships: ``(n, L)`` w; rows sum to one.
        baseline: ``(n,)`` r_j, the masses of G (eq. 5).

    >>> x = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    >>> model = DensityRatioModel.fit(*pool([x[:10_000], x[10_000:] + 1]), reference=0)
    >>> gap = model.log_ratios(torch.tensor([[2.0]])) - torch.tensor([[0.0, 1.5]])  # N(1, 1) is exp(x − 1/2) N(0, 1)
    >>> bool(gap.abs().max() < 0.1)
    True
    >>> model.distributions.sum(0)
    tensor([1.0000, 1.0000], dtype=torch.float64)
    """

    basis: Basis
    gamma: Tensor
    xi: Tensor
    points: Tensor
    features: Tensor
    memberships: Tensor
    baseline: Tensor

    @classmethod
    def fit(
        cls,
        points: Values,
        memberships: Values,
        basis: Basis = linear,
        *,
        reference: int | None = None,
        ridge: float = 0.0,
        tolerance: float = 1e-12,
        max_iterations: int = 100,
    ) -> DensityRatioModel:
        """Maximise the profile log empirical likelihood Σ_j log r_j + Σ_jl w_jl (γ_l + ξ_lᵀh(x_j)).

        At its maximum λ_l = τ_l/n with τ_l = Σ_j w_jl (App. C.5). It is therefore also the maximum of the dual
        empirical likelihood, a multinomial logistic regression with the offsets log τ_l, which is concave. Then
        r_j = 1/Σ_l τ_l exp(γ_l + ξ_lᵀh(x_j)).

        Args:
            points: ``(n, …)`` the pooled sample, of any numeric dtype.
            memberships: ``(n, L)`` w: one-hot for known populations (:func:`pool`), responsibilities for latent ones;
                rows sum to one.
            basis: h, for example a network. It is evaluated without gradient, on float64 points; a torch module gets
                them in the dtype of its parameters.
            reference: the population that is G (γ = 0, ξ = 0). ``None``: G is such that Σ_l τ_l ξ_l = 0. The choice
                doesn't change the populations.
            ridge: the penalty ridge/2 · ‖ξ‖² on standardised features. Populations keep mass one. Needed if the basis
                separates populations.
            tolerance: on the likelihood's gradient, as a share of n.
            max_iterations: the most Newton steps.

        Raises:
            ValueError: shapes that don't match, NaN, an empty population, or populations that the basis separates,
                completely or quasi-completely (:mod:`archipel.drm.separation`).
        """
        x = as_points(points, "points")
        model, separated = cls.fit_limit(
            x, as_float64(memberships, "memberships"), basis, reference, ridge, tolerance, max_iterations
        )
        if separated is not None:
            inner, outer, count = separated
            raise ValueError(
                f"the basis separates population {inner} from population {outer}: in some direction {count} points of "
                f"{inner} lie beyond all points of {outer}, so that their density ratio grows without bound. Give "
                "ridge=1e-3 or more, a basis of fewer features, or more data."
            )
        return model

    @classmethod
    def fit_limit(
        cls,
        points: Tensor,
        memberships: Tensor,
        basis: Basis,
        reference: int | None,
        ridge: float,
        tolerance: float,
        max_iterations: int,
    ) -> tuple[DensityRatioModel, Separation | None]:
        """Fit like :meth:`fit`; if the basis separates populations, return a model close to the limit, and say so.

        Along the diverging tilts the distributions converge, so that distances between distributions have a limit.
        """
        at_least_zero("DensityRatioModel", ridge=ridge)
        above_zero("DensityRatioModel", tolerance=tolerance)
        positive_int("DensityRatioModel", max_iterations=max_iterations)
        w, features = memberships, features_of(basis, points)
        _check(points, w, features, reference)
        tilts, separated = fit_tilts(features, w, ridge, tolerance, max_iterations)
        tau = w.sum(0)
        origin = (tau / tau.sum()) @ tilts if reference is None else tilts[reference]
        tilts = tilts - origin
        gamma, xi = tilts[:, 0], tilts[:, 1:]
        gamma = gamma + (normalising(gamma + features @ xi.T, tau) if reference is None else 0.0)
        baseline = (-torch.logsumexp(tau.log() + gamma + features @ xi.T, dim=1)).exp()
        return cls(basis, gamma, xi, points, features, w, baseline), separated

    def __repr__(self) -> str:
        """Describe the model without its points, which may be patients' data."""
        n, L, d = len(self.points), len(self.tau), self.features.shape[1]
        basis = getattr(self.basis, "__name__", type(self.basis).__name__)
        return f"DensityRatioModel({L} populations, {n} points, {d} features, basis={basis})"

    @property
    def tau(self) -> Tensor:
        """``(L,)`` τ: how many pooled points each population holds."""
        return self.memberships.sum(0)

    @property
    def distributions(self) -> Tensor:
        """``(n, L)``: the mass dP_l/dG(x_j) r_j of population l on pooled point j; columns sum to one."""
        return self.baseline[:, None] * (self.gamma + self.features @ self.xi.T).exp()

    @property
    def empirical(self) -> Tensor:
        """``(n, L)``: the masses w_jl/τ_l of population l from its own points only."""
        return self.memberships / self.tau

    @property
    def log_likelihood(self) -> float:
        """The profile log empirical likelihood Σ_j log r_j + Σ_jl w_jl (γ_l + ξ_lᵀh(x_j))."""
        a = self.gamma + self.features @ self.xi.T
        return float(self.baseline.log().sum() + (self.memberships * a).sum())

    def log_ratios(self, x: Values) -> Tensor:
        """Compute log dP_l/dG(x) = γ_l + ξ_lᵀh(x), ``(n', L)`` float64.

        Args:
            x: ``(n', …)`` queries, of any numeric dtype; each has the shape of the model's points.

        Raises:
            ValueError: queries of another shape, NaN or infinity.
        """
        queries = as_points(x, "x")
        if queries.shape[1:] != self.points.shape[1:] or not queries.dim():
            shape = ", ".join(["n", *map(str, self.points.shape[1:])])
            raise ValueError(
                f"x has the shape {tuple(queries.shape)}; give queries like the model's points, ({shape})."
            )
        features = features_of(self.basis, queries)
        refuse_not_finite(features, "the features of x")
        return self.gamma + features @ self.xi.T

    def route(self, x: Values, prior: Values | None = None) -> Tensor:
        """Compute log P(l|x) of each population, ``(n', L)`` float64.

        Args:
            x: ``(n', …)`` queries, as in :meth:`log_ratios`.
            prior: ``(L,)`` shares ρ of populations among queries; ``None``: τ/n, as in the sample.

        Raises:
            ValueError: a prior that isn't a share of each population; queries of another shape, or with NaN.
        """
        rho = self.tau / self.tau.sum() if prior is None else as_float64(prior, "prior")
        if rho.shape != self.tau.shape or not (bool((rho >= 0).all()) and bool(rho.isfinite().all() & rho.any())):
            raise ValueError(
                f"prior is {rho.tolist()}; give a share, 0 or above, for each of {len(self.tau)} populations."
            )
        return torch.log_softmax(rho.log() + self.log_ratios(x), dim=1)


def _check(points: Tensor, w: Tensor, features: Tensor, reference: int | None) -> None:
    n = len(points)
    if w.dim() != 2 or len(w) != n or features.dim() != 2 or len(features) != n:
        raise ValueError(
            f"{n} points have memberships of the shape {tuple(w.shape)} and features of the shape "
            f"{tuple(features.shape)}; give ({n}, populations) and ({n}, features), see pool(samples)."
        )
    refuse_not_finite(features, "features")
    refuse_not_finite(w, "memberships")
    if bool((w < 0).any()) or not torch.allclose(w.sum(1), torch.ones(n, dtype=w.dtype), atol=1e-6):
        raise ValueError("memberships aren't shares: entries must be 0 or above, and every row must sum to one.")
    L = w.shape[1]
    empty = (w.sum(0) <= 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(f"populations {empty} hold no points. Leave them out.")
    if reference is not None and (type(reference) is not int or not 0 <= reference < L):
        raise ValueError(f"reference is {reference!r}; give None or a population from 0 to {L - 1}.")
