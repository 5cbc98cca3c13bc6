"""Families of curved exponential type: latent-variable models that federated EM can fit."""

from archipel.core.lazy import export

export(__name__)
