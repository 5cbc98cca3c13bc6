"""Families of curved exponential type: what federated EM asks of a latent-variable model.

The complete-data density of an example y with latent z is exp(⟨s(y, z), φ(θ)⟩ − ψ(θ)), times a factor without θ. EM
then works on statistics [1]. With s̄_i(θ) = E[s(y_i, z) | y_i; θ], an iteration is

    θ ← T(n⁻¹ Σ_i s̄_i(θ)),    T(s) = argmin_θ −⟨s, φ(θ)⟩ + ψ(θ) + R(θ),

and it never raises the objective F(θ) = −n⁻¹ Σ_i log p(y_i; θ) + R(θ). Statistics are means over examples. The mean of
the clients' statistics, weighted by their numbers of examples, therefore equals the statistics of the pooled data:
federating approximates nothing. Penalties are per example: k pseudo-examples among n weigh k/n.

[1] A. Dieuleveut, G. Fort, E. Moulines, G. Robin: Federated-EM with heterogeneity mitigation and variance reduction.
NeurIPS 2021. In our notation: docs/methods/federated-em.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from archipel.core.checks import setting
from archipel.core.trees import Tree, add, tree_map


def _describes(value: object) -> bool:
    return hasattr(value, "statistics") and not isinstance(value, type)


@setting("a model of archipel.families, such as GaussianMixture(components, dimension)", _describes)
class Family(Protocol):
    """A latent-variable model of curved exponential type; implementations are frozen dataclasses.

    A batch is a tree of tensors with n rows: ``{"x": (n, d)}``, and ``{"y": (n,)}`` where the family regresses.
    Parameters θ and statistics s are trees of float64 tensors.
    """

    def statistics(self, theta: Tree, batch: Tree, mask: Tensor) -> Tree:
        """Return s̄(θ): the mean of E[s(y, z) | y; θ] over the examples with a true ``mask``, ``(n,)``; zeros for none.

        Works inside ``torch.func.vmap``, over clients and over parameters.
        """

    def maximise(self, s: Tree) -> Tree:
        """Return T(s)."""

    def log_likelihood(self, theta: Tree, batch: Tree) -> Tensor:
        """Return log p(y; θ) of each example, ``(n,)``."""

    def penalty(self, theta: Tree) -> Tensor:
        """Return R(θ), shape ``()``."""

    def project(self, s: Tree) -> tuple[Tree, Tensor]:
        """Return the nearest statistics in the domain of T, and a bool of shape ``()``: was s outside."""

    def sample(self, theta: Tree, n: int, key: Tensor) -> Tree:
        """Draw a batch of n examples, with their latents under ``"z"``."""

    def parameters(self) -> int:
        """Count the free parameters, for BIC and AIC."""

    def posterior(self, theta: Tree, batch: Tree) -> Tensor:
        """Return log-responsibilities, ``(n, K)``, of a mixture; the latents' means, ``(n, q)``, of a factor model."""

    def check(self, batch: Tree) -> None:
        """Raise ValueError for data that the family has no density for. Not for use inside vmap: it reads values."""


def mean_in_pieces(total: Callable[[Tree, Tensor], Tree], batch: Tree, mask: Tensor, width: int) -> Tree:
    """Average a statistic over examples, piece by piece.

    Args:
        total: ``(rows of the batch, (rows,) float64 weights 0 or 1) → Σ weight · statistic``.
        batch: n rows.
        mask: ``(n,)`` bool, the rows that count.
        width: how many float64 numbers ``total`` holds for each row; pieces are cut to fit the cache.

    >>> x = torch.arange(4.0, dtype=torch.float64)
    >>> mask = torch.tensor([True, True, True, False])
    >>> mean_in_pieces(lambda batch, weights: {"sum": weights @ batch["x"]}, {"x": x}, mask, width=1)
    {'sum': tensor(1., dtype=torch.float64)}
    """
    rows = max(64, 2**18 // width)  # 2 MB; half or twice as much costs little, as measured
    found: Tree = None
    for start in range(0, max(1, len(mask)), rows):
        weights = mask[start : start + rows].to(torch.float64)
        piece = total(tree_map(lambda t, start=start: t[start : start + rows], batch), weights)
        found = piece if found is None else add(found, piece)
    count = torch.clamp(mask.sum(), min=1)
    return tree_map(lambda t: t / count, found)


def rows_in_pieces(function: Callable[[Tree], Tensor], batch: Tree, width: int) -> Tensor:
    """Apply ``function`` to the rows of a batch, piece by piece as in :func:`mean_in_pieces`; returns ``(n, …)``."""
    rows, n = max(64, 2**18 // width), len(batch["x"])
    starts = range(0, max(1, n), rows)
    return torch.cat([function(tree_map(lambda t, start=start: t[start : start + rows], batch)) for start in starts])


HALVINGS = 30
"""How often a step that leaves T's domain is halved before the point is projected: to a billionth of its length."""


def step_inside(family: Family, statistics: Tree, direction: Tree, rate: float) -> tuple[Tree, Tensor]:
    """Return s + γh in T's domain, and whether γ had to be shortened.

    Noise can carry s out of the domain. A projection would put it on the boundary, where a component has no mass or no
    width, and its mean or its covariance may be anything. The domain is convex, so a shorter step stays inside: γ is
    halved until it does, and once more to keep away from the boundary. Only if no step is short enough, because s lies
    on the boundary itself, is the point projected.

    Args:
        family: whose domain.
        statistics: s.
        direction: h.
        rate: γ.
    """
    projected, outside = family.project(add(statistics, direction, rate))
    if outside:
        for shorter in (rate / 2**j for j in range(1, HALVINGS)):
            if not family.project(add(statistics, direction, shorter))[1]:
                return family.project(add(statistics, direction, shorter / 2))[0], outside
    return projected, outside


def from_centre(x: Tensor, centre: tuple[float, ...] | None) -> Tensor:
    """Return x − c in float64."""
    x = x.to(torch.float64)
    return x if centre is None else x - torch.tensor(centre, dtype=torch.float64)


def to_centre(x: Tensor, centre: tuple[float, ...] | None) -> Tensor:
    """Return x + c."""
    return x if centre is None else x + torch.tensor(centre, dtype=torch.float64)


def check_centre(owner: str, centre: tuple[float, ...] | None, d: int) -> None:
    """Raise ValueError for anything but None or a tuple of d finite numbers."""
    if centre is None:
        return
    numbers = isinstance(centre, tuple) and all(isinstance(c, int | float) and math.isfinite(c) for c in centre)
    if not numbers or len(centre) != d:
        raise ValueError(
            f"{owner}'s centre must be a tuple of {d} finite numbers, one for each dimension; given {centre!r}."
        )


REACH = 1e7
"""Standard deviations from the centre beyond which a variance has two correct digits at most: (1e7)² · 2⁻⁵³ is 0.01."""


@runtime_checkable
class Centred(Protocol):
    """A family whose statistics are moments about a centre."""

    def check_reach(self, theta: Tree, s: Tree) -> None:
        """Raise ValueError for data so far from the centre that moments about it lose their digits.

        Args:
            theta: T(s).
            s: the statistics.
        """


def check_reach(
    owner: str,
    mean: Tensor,
    variance: Tensor,
    centre: tuple[float, ...] | None,
    advice: str = "Give centre=federation.inputs.mean",
) -> None:
    """Raise ValueError if a mean lies more than `REACH` standard deviations from the centre."""
    far = from_centre(mean, centre).abs() / variance.clamp(min=1e-300).sqrt()
    if bool((far > REACH).any()):
        column = int(far.amax(tuple(range(far.dim() - 1))).argmax())
        raise ValueError(
            f"{owner}'s centre is so far from column {column}, {float(far.max()):.0e} of its standard deviations, that "
            f"rounding would leave nothing of variances. {advice}, standardise the columns, or fit "
            "groups that are so far apart separately."
        )


def check_table(owner: str, x: Tensor, dimension: int, missing: bool = False) -> None:
    """Raise ValueError for anything but a table ``(n, d)`` of finite numbers; NaN is allowed if ``missing``."""
    if x.dim() != 2 or x.shape[1] != dimension:
        raise ValueError(f"{owner} is of dimension {dimension}, so x must be (n, {dimension}); given {tuple(x.shape)}.")
    if torch.isinf(x).any():
        raise ValueError(f"{owner}: x has infinite values, first in row {_first(torch.isinf(x))}. Remove or clip them.")
    if not missing and torch.isnan(x).any():
        raise ValueError(
            f"{owner} doesn't accept missing values, but x has NaN, first in row {_first(torch.isnan(x))}. Remove "
            "those rows or impute them; FactorModel accepts NaN as missing."
        )


def check_targets(owner: str, batch: Tree) -> None:
    """Raise ValueError unless there is one finite target for each example."""
    x, y = batch["x"], batch.get("y")
    if y is None or y.shape != x.shape[:1]:
        shape = "nothing" if y is None else tuple(y.shape)
        raise ValueError(f"{owner} needs one target for each example, y of shape ({len(x)},); given {shape}.")
    if not torch.isfinite(y).all():
        raise ValueError(f"{owner}: y isn't finite, first in row {_first(~torch.isfinite(y))}. Remove those rows.")


def _first(where: Tensor) -> int:
    return int(torch.nonzero(where)[0, 0])
