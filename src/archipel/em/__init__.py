"""Federated EM for statisticians: starts, estimators in scikit-learn's manner, selection of models, reports."""

from archipel.em.starts import KMeansPlusPlus, RandomResponsibilities

__all__ = ["KMeansPlusPlus", "RandomResponsibilities"]
