"""Federated EM for statisticians: estimators with scikit-learn's interface, starts, model selection."""

from archipel.core.lazy import export

export(__name__)
