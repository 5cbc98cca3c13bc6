"""Federated EM for statisticians: starts, estimators in scikit-learn's manner, selection of models, reports."""

from archipel.core.lazy import export

export(__name__)
