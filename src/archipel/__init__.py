"""Archipel: personalised, mixture-based and routing-enabled federated learning."""

from archipel.core.lazy import export

export(__name__)

__version__ = "0.1.0"
