"""Runs that have a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A named run.

    Args:
        about: it in one line.
        settings: what differs from the defaults.
    """

    about: str
    settings: dict[str, Any]


FASHION = {"rounds": 60, "data": {"source": "fashion-mnist"}}
DIGITS = {"rounds": 60, "data": {"source": "digits"}}

# A client of the digits trains on 160 examples: the paper's 128 a step would be nearly all of them.
SMALL = {"batch": 32}

PRESETS = {
    "fmnist-fedavg": Preset(
        "Fashion-MNIST under dual heterogeneity, one model for all",
        FASHION | {"algorithm": {"name": "fedavg"}},
    ),
    "fmnist-fedspm": Preset(
        "the same data, mixtures and routing; components share an encoder (1×)",
        FASHION | {"algorithm": {"name": "fedspm"}},
    ),
    "fmnist-fedspm-cx": Preset(
        "as fmnist-fedspm, an encoder for each component (C×)",
        FASHION | {"algorithm": {"name": "fedspm", "encoders": "own"}},
    ),
    "fmnist-fedspm-incremental": Preset(
        "as fmnist-fedspm, faster: the E-step looks at the drawn examples only",
        FASHION | {"algorithm": {"name": "fedspm", "expectation": "incremental"}},
    ),
    "digits-fedavg": Preset(
        "scikit-learn's digits under dual heterogeneity, one model for all",
        DIGITS | {"algorithm": {"name": "fedavg", "local": SMALL}},
    ),
    "digits-fedspm": Preset(
        "the same data, mixtures and routing",
        DIGITS | {"algorithm": {"name": "fedspm", "expectation": "incremental", "local": SMALL, "routing": SMALL}},
    ),
}
