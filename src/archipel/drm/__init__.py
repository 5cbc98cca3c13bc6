"""Density ratio models and empirical likelihood: dP_l/dG(x) = exp(γ_l + ξ_lᵀh(x)) with a baseline G that is free."""

from archipel.core.lazy import export

export(__name__)
