"""Density ratio models and empirical likelihood: dP_l/dG(x) = exp(γ_l + ξ_lᵀh(x)) with a free baseline G."""

from archipel.core.lazy import export

export(__name__)
