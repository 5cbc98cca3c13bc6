"""Runs from configurations: presets, folders that can be gone on with, results and figures."""

from archipel.experiments.building import build, federation_from
from archipel.experiments.config import RunConfig, algorithm_from
from archipel.experiments.loading import load
from archipel.experiments.oracle import oracle_of
from archipel.experiments.presets import PRESETS
from archipel.experiments.reading import read_config, to_yaml
from archipel.experiments.running import reevaluate, train

__all__ = [
    "PRESETS",
    "RunConfig",
    "algorithm_from",
    "build",
    "federation_from",
    "load",
    "oracle_of",
    "read_config",
    "reevaluate",
    "to_yaml",
    "train",
]
