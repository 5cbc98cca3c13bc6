"""From a run to a service: the bundles that `archipel export` writes."""

from archipel.core.lazy import export

export(__name__)
