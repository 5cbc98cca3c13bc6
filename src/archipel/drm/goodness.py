"""Goodness of fit of a density ratio model: the model's distribution functions against the empirical ones.

J. Qin, B. Zhang: A goodness-of-fit test for logistic regression models based on case-control data, Biometrika 84, 1997,
for two populations. For more, the statistic is the largest distance of all populations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from archipel.core.checks import positive_int
from archipel.data.arrays import Values
from archipel.drm.model import DensityRatioModel, linear
from archipel.drm.points import as_float64


@dataclass(frozen=True)
class GoodnessOfFit:
    """The distance of a model from its data, and how often a true model is that far away.

    Args:
        statistic: max over populations l and coordinates of √τ_l sup_t |F̂_l(t) − F̃_l(t)|.
        p_value: (1 + replicates at least as large)/(1 + replicates); small if the basis doesn't fit.
        replicates: ``(B,)`` statistics of samples drawn from the fitted model.
        separated: how many replicates the basis separates. Their likelihood has no finite maximum, but their
            distributions have a limit, and so has the statistic, with which they count.
    """

    statistic: float
    p_value: float
    replicates: Tensor = field(repr=False)
    separated: int = 0


def distance(model: DensityRatioModel, values: Tensor) -> float:
    """Compute max √τ_l sup_t |F̂_l(t) − F̃_l(t)| over l and coordinates; F̂ is the model's, F̃ the empirical distribution.

    Args:
        model: fitted.
        values: ``(n, k)`` coordinates of the pooled points.

    >>> from archipel.drm.model import pool
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> same = DensityRatioModel.fit(*pool([x, x]))  # both have half of their mass at 0
    >>> round(distance(same, same.points), 12)
    0.0
    """
    gap = (model.distributions - model.empirical) * model.tau.sqrt()
    largest = 0.0
    for column in values.T:
        ordered, index = column.sort()
        steps = gap[index].cumsum(0).abs()
        ends = torch.cat([ordered[1:] > ordered[:-1], torch.ones(1, dtype=torch.bool)])  # the last of equal values
        largest = max(largest, float(steps[ends].max()))
    return largest


def goodness_of_fit(
    model: DensityRatioModel,
    values: Values | None = None,
    *,
    replicates: int = 199,
    ridge: float = 0.0,
    seed: int = 0,
) -> GoodnessOfFit:
    """Test by a bootstrap whether populations are tilts of one baseline by the model's basis.

    Each replicate draws n_l points of every population l from its fitted distribution, fits the model again, and
    measures the same distance. Meant for samples of up to some thousand points.

    Args:
        model: fitted on populations that are known (one-hot memberships).
        values: ``(n, k)`` coordinates whose distribution functions are compared; ``None``: the points'.
        replicates: B, at least 1. With 19 the smallest p-value is 0.05.
        ridge: what the model was fitted with.
        seed: of the draws.

    Raises:
        ValueError: memberships that aren't one-hot, since the number of points of a latent population isn't known;
            values that aren't finite numbers, ``(n, k)``.

    >>> from archipel.drm.model import pool
    >>> x = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    >>> model = DensityRatioModel.fit(*pool([x[:100], 3 * x[100:]]))  # h(x) = x can't widen a normal distribution
    >>> goodness_of_fit(model, replicates=19).p_value
    0.05
    """
    positive_int("goodness_of_fit", replicates=replicates)
    sizes = model.tau.round().long()
    if not bool(((model.memberships == 0) | (model.memberships == 1)).all()):
        raise ValueError("memberships are shares; goodness of fit needs known populations (one-hot memberships).")
    x = linear(model.points) if values is None else as_float64(values, "values")
    if x.dim() != 2 or len(x) != len(model.points) or not bool(x.isfinite().all()):
        raise ValueError(
            f"values have the shape {tuple(x.shape)}; give finite numbers, ({len(model.points)}, coordinates), one row "
            "for each pooled point."
        )
    statistic = distance(model, x)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    memberships = torch.nn.functional.one_hot(labels, len(sizes)).double()
    masses = model.distributions.T
    found, separated = [], 0
    for _ in range(replicates):
        drawn = torch.cat(
            [p.multinomial(int(n), True, generator=generator) for p, n in zip(masses, sizes, strict=True)]
        )
        again, apart = DensityRatioModel.fit_limit(model.features[drawn], memberships, linear, None, ridge, 1e-12, 100)
        separated += apart is not None
        found.append(distance(again, x[drawn]))
    stats = torch.tensor(found, dtype=torch.float64)
    # A replicate that equals the statistic up to rounding counts as at least as large.
    extreme = int((stats >= statistic * (1 - 1e-12)).sum())
    return GoodnessOfFit(statistic, (1 + extreme) / (1 + replicates), stats, separated)
