"""Families of curved exponential type: latent-variable models that federated EM can fit."""

from archipel.families.discrete import BernoulliMixture, CategoricalMixture, PoissonMixture
from archipel.families.factor import FactorModel
from archipel.families.family import Family
from archipel.families.gaussian import GaussianMixture
from archipel.families.mixture import Mixture
from archipel.families.regression import RegressionMixture
from archipel.families.shrinkage import InverseWishart, Ridge

__all__ = [
    "BernoulliMixture",
    "CategoricalMixture",
    "FactorModel",
    "Family",
    "GaussianMixture",
    "InverseWishart",
    "Mixture",
    "PoissonMixture",
    "RegressionMixture",
    "Ridge",
]
