"""Families of curved exponential type for federated expectation-maximisation."""

from archipel.em.discrete import BernoulliMixture, CategoricalMixture, PoissonMixture
from archipel.em.factor import FactorModel
from archipel.em.family import Family
from archipel.em.gaussian import GaussianMixture
from archipel.em.mixture import Mixture
from archipel.em.regression import RegressionMixture
from archipel.em.shrinkage import InverseWishart, Ridge
from archipel.em.start import KMeansPlusPlus, RandomResponsibilities

__all__ = [
    "BernoulliMixture",
    "CategoricalMixture",
    "FactorModel",
    "Family",
    "GaussianMixture",
    "InverseWishart",
    "KMeansPlusPlus",
    "Mixture",
    "PoissonMixture",
    "RandomResponsibilities",
    "RegressionMixture",
    "Ridge",
]
