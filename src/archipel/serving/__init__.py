"""From a run to a service: bundles to export, calibration, and sites that join or leave."""

from archipel.core.lazy import export

export(__name__)
