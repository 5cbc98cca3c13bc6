"""Families of curved exponential type: the latent-variable models that federated EM fits."""

from archipel.core.lazy import export

export(__name__)
