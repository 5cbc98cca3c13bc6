"""Models: small encoders, modules from (n, *shape) floats to (n, features)."""

from archipel.core.lazy import export

export(__name__)
