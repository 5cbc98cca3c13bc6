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

# Two classes a client: what one model for all finds hard, and a model of one's own easy.
FEW = {"partition": {"name": "pathological", "classes": 2}}

# Thirteen numbers a patient: a small network. Hospitals differ in size: passes over the data instead of steps.
PASSES = {"epochs": 2, "batch": 16}
HEART = {
    "rounds": 50,
    "data": {"source": "heart-disease", "options": {"missing": "impute-median"}},
    "encoder": {"name": "mlp", "options": {"hidden": [32]}},
}
PEOPLE = {"rounds": 60, "data": {"source": "hapt"}, "encoder": {"name": "mlp", "features": 64}}

PRESETS = {
    "fmnist-fedavg": Preset(
        "Fashion-MNIST under dual heterogeneity, one model for all",
        FASHION | {"algorithm": {"name": "fedavg"}},
    ),
    "fmnist-fedspm": Preset(
        "the same data, mixtures and routing; components share an encoder (1×)",
        FASHION | {"algorithm": {"name": "fedspm", "components": 2}},
    ),
    "fmnist-fedspm-cx": Preset(
        "as fmnist-fedspm, an encoder for each component (C×)",
        FASHION | {"algorithm": {"name": "fedspm", "components": 2, "encoders": "own"}},
    ),
    "fmnist-fedspm-incremental": Preset(
        "as fmnist-fedspm, faster: the E-step looks at the drawn examples only",
        FASHION | {"algorithm": {"name": "fedspm", "components": 2, "expectation": "incremental"}},
    ),
    "fmnist-pathological-ditto": Preset(
        "Fashion-MNIST over 20 clients with two classes each, a personal model beside the shared one",
        FASHION | {"data": {"source": "fashion-mnist", "clients": 20} | FEW, "algorithm": {"name": "ditto"}},
    ),
    "heart-fedavg": Preset(
        "UCI heart disease, one client a hospital, one model for all",
        HEART | {"algorithm": {"name": "fedavg", "local": PASSES}},
    ),
    "heart-fedspm": Preset(
        "the same hospitals, mixtures and routing",
        HEART
        | {
            "algorithm": {
                "name": "fedspm",
                "components": 2,
                "router": {"name": "mlp", "features": 8, "options": {"hidden": [32]}},
                "local": PASSES,
                "routing": PASSES,
            }
        },
    ),
    "hapt-fedavg": Preset(
        "activities of 30 people from their phones' sensors, one model for all",
        PEOPLE | {"algorithm": {"name": "fedavg"}},
    ),
    "digits-fedavg": Preset(
        "scikit-learn's digits under dual heterogeneity, one model for all",
        DIGITS | {"algorithm": {"name": "fedavg", "local": SMALL}},
    ),
    "digits-fedspm": Preset(
        "the same data, mixtures and routing",
        DIGITS
        | {
            "algorithm": {
                "name": "fedspm",
                "components": 2,
                "expectation": "incremental",
                "local": SMALL,
                "routing": SMALL,
            }
        },
    ),
    "digits-pathological-ditto": Preset(
        "scikit-learn's digits over 8 clients with two classes each, a personal model beside the shared one",
        DIGITS
        | {
            "data": {"source": "digits"} | FEW,
            "algorithm": {"name": "ditto", "inner": {"name": "fedavg", "local": SMALL}, "personal": SMALL},
        },
    ),
}
