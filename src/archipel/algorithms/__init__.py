"""One file a paper."""

from archipel.algorithms.registry import modules
from archipel.core.lazy import export

export(__name__, modules())
