"""A run assessed beside training alone, methods compared on the same splits, and sweeps over any settings."""

from archipel.core.lazy import export

export(__name__)
