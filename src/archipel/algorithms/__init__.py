"""One file a paper."""

from archipel.core.lazy import export

export(__name__)
