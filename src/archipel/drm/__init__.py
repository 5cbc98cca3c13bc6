"""Density ratio models and empirical likelihood: dP_l/dG(x) = exp(γ_l + ξ_lᵀh(x)) with a baseline G that is free."""

from archipel.drm.estimates import distribution_functions, means, quantiles
from archipel.drm.goodness import GoodnessOfFit, goodness_of_fit
from archipel.drm.model import DensityRatioModel, linear, pool, quadratic
from archipel.drm.multipliers import Multipliers, multipliers
from archipel.drm.objectives import balancing, normalising, profile, q2, responsibilities, surrogate
from archipel.drm.reliability import Reliability, reliability
from archipel.drm.root import multipliers_by_root

__all__ = [
    "DensityRatioModel",
    "GoodnessOfFit",
    "Multipliers",
    "Reliability",
    "balancing",
    "distribution_functions",
    "goodness_of_fit",
    "linear",
    "means",
    "multipliers",
    "multipliers_by_root",
    "normalising",
    "pool",
    "profile",
    "q2",
    "quadratic",
    "quantiles",
    "reliability",
    "responsibilities",
    "surrogate",
]
