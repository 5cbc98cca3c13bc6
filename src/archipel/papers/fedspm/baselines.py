"""The methods of the FedSPM paper's tables, and the configuration of each.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 3.1 and App. D.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archipel.experiments.config import RunConfig
from archipel.experiments.explain import nearest
from archipel.experiments.methods import SECTIONS, SolverSection
from archipel.experiments.reading import validate
from archipel.experiments.sections import RouterSection


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    Args:
        title: as the paper calls it, with its capacity.
        algorithm: settings of its section that differ from the defaults.
        cost: a round's time relative to FedAvg's, roughly; the longest cells start first.
    """

    title: str
    algorithm: Mapping[str, Any]
    cost: float = 1.0


COMPONENTS = 3
"""C of the cluster- and mixture-based methods."""

METHODS: dict[str, Method] = {
    "fedavg": Method("FedAvg (1×)", {"name": "fedavg"}),
    # The paper gives no μ; its FedProx is within 0.1 of FedAvg, as with a small one.
    "fedprox": Method("FedProx (1×)", {"name": "fedprox", "penalty": 0.01}),
    "fedavgft": Method("FedAvgFT (1×)", {"name": "fedavgft", "tuning": {"epochs": 1}}),
    "ditto": Method("Ditto (1×)", {"name": "ditto", "penalty": 0.1}, cost=2),
    "clusterfl": Method("ClusterFL (C×)", {"name": "ifca", "clusters": COMPONENTS}, cost=6),
    "fedbabu": Method("FedBABU (1×)", {"name": "fedbabu", "tuning": {"epochs": 1}}),
    "fedem": Method("FedEM (C×)", {"name": "fedemexperts", "components": COMPONENTS, "encoders": "own"}, cost=7),
    "fedgmm": Method(
        "FedGMM (C×)",
        {"name": "fedgmm", "components": COMPONENTS, "gaussians": COMPONENTS, "encoders": "own"},
        cost=8,
    ),
    "feddrm": Method("FedDRM (1×)", {"name": "feddrm", "weight": 0.1}),
    "fedspm": Method("FedSPM (1×)", {"name": "fedspm", "components": COMPONENTS, "encoders": "shared"}, cost=3),
    "fedspm-cx": Method("FedSPM (C×)", {"name": "fedspm", "components": COMPONENTS, "encoders": "own"}, cost=8),
    "local": Method("Local (1×)", {"name": "local"}),
    "fedper": Method("FedPer (1×)", {"name": "fedper"}),
    "fedrep": Method("FedRep (1×)", {"name": "fedrep"}, cost=2),
}

PAPER = tuple(METHODS)[:11]
"""The eleven methods of Table 1, in its order."""

DEFAULT = (*PAPER, "local")
"""The paper's methods and Local, against which gains are measured."""


@dataclass(frozen=True)
class Setting:
    """Data, networks and rounds that all methods share.

    Args:
        data: a configuration's data section.
        encoder: the predictive encoder's section.
        router: the routing encoder's section.
        rounds: T.
        batch: examples a local step.
        expectation: FedSPM's E-step.
        evaluate_every: rounds between evaluations; ``None``: only the last model.
    """

    data: Mapping[str, Any]
    encoder: Mapping[str, Any]
    router: Mapping[str, Any]
    rounds: int
    batch: int = 128
    expectation: str = "exact"
    evaluate_every: int | None = None

    def config(self, method: str, seed: int, **algorithm: Any) -> RunConfig:
        """Return the run of a method with a seed.

        Args:
            method: a key of :data:`METHODS`.
            seed: of the run and, unless the data section holds one, of the division of the data.
            algorithm: settings that replace the method's.
        """
        section = {**METHODS[method].algorithm, **algorithm}
        fields = SECTIONS[section["name"]].model_fields
        for name, info in fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, SolverSection):
                section[name] = {"batch": self.batch} | section.get(name, {})
            elif isinstance(kind, type) and issubclass(kind, RouterSection):
                section[name] = dict(self.router)
            elif name == "inner":
                section[name] = {"name": "fedavg", "local": {"batch": self.batch}}
        if "expectation" in fields:
            section["expectation"] = self.expectation
        settings = {
            "name": method,
            "seed": seed,
            "rounds": self.rounds,
            "engine": "loop",
            "workers": 1,
            "evaluate_every": self.evaluate_every,
            "data": dict(self.data),
            "encoder": dict(self.encoder),
            "algorithm": section,
        }
        return validate(settings, METHODS[method].title)


LIGHT = {"name": "lenet", "options": {"channels": [8, 16]}}
"""The paper's "lightweight CNN" for routing."""


def full(source: str, encoder: str = "resnet18", **data: Any) -> Setting:
    """Return the paper's setting for a data set.

    Args:
        source: ``"fashion-mnist"``, ``"cifar10"``, ``"cifar100"`` (by its 20 superclasses) or ``"fed-isic2019"``.
        encoder: which ResNet; the paper does not state it.
        data: further settings of the data section.
    """
    features, routing, rounds, batch = {
        "fashion-mnist": (32, 32, 200, 128),
        "cifar10": (64, 64, 400, 128),
        "cifar100": (64, 64, 400, 128),
        "fed-isic2019": (256, 128, 400, 32),
    }[source]
    if source == "cifar100":
        data = {"superclasses": True} | data
    return Setting(
        data={"source": source, **data},
        encoder={"name": encoder, "features": features},
        router={**LIGHT, "features": routing},
        rounds=rounds,
        batch=batch,
        evaluate_every=rounds // 4,
    )


def fast(rounds: int = 25, **data: Any) -> Setting:
    """Return a small setting: Fashion-MNIST with a LeNet and few rounds, minutes on two cores.

    Args:
        rounds: T.
        data: further settings of the data section.
    """
    return Setting(
        data={"source": "fashion-mnist", **data},
        encoder={"name": "lenet", "features": 32},
        router={**LIGHT, "features": 32},
        rounds=rounds,
        expectation="incremental",
    )


def chosen(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods that a text such as ``"fedavg,fedspm-cx"`` names; ``None``: the paper's and Local.

    >>> chosen("fedspm, fedavg")
    ('fedspm', 'fedavg')
    >>> chosen("fedsmp")
    Traceback (most recent call last):
    ValueError: There is no method 'fedsmp'. Did you mean 'fedspm'? There are: fedavg, fedprox, ...
    """
    if names is None:
        return DEFAULT
    words = names.split(",") if isinstance(names, str) else names
    given = tuple(dict.fromkeys(word.strip().lower() for word in words))
    for name in given:
        if name not in METHODS:
            raise ValueError(
                f"There is no method {name!r}.{nearest(name, METHODS)} There are: {', '.join(METHODS)}. Separate "
                "several by commas."
            )
    return given
