"""The conformance table: one row an algorithm, and it gets every test of ``test_conformance.py``.

To certify a new algorithm add one ``Row`` to ``ROWS``: a function that makes it for a federation of four uneven clients
with three features and three classes (small encoders, minibatches, momentum that is kept where it has one: the more of
its state moves, the more is tested), and the names of the entries of its server's state that hold one row a client, if
there are any. What only this algorithm promises (limits, trajectories) goes into ``tests/algorithms/test_<it>.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from archipel import (
    APFL,
    FPFC,
    IFCA,
    L2SGD,
    SCAFFOLD,
    SGD,
    Algorithm,
    Compressing,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedCR,
    FedDRM,
    FedDyn,
    FedEM,
    FedEMExperts,
    Federation,
    FedGMM,
    FedPer,
    FedProx,
    FedRep,
    FedSplit,
    FedSPM,
    Local,
    Network,
    PersonalFedEM,
    PFedMac,
    PFedMe,
    Pooled,
    ProxSkip,
    Supervised,
    VRFedEM,
    classification,
)
from archipel.compress import Dithering, RandK, TopK
from archipel.families import GaussianMixture
from archipel.learning.schedules import Decay

NORMALS = {
    "weight": torch.tensor([0.5, 0.5], dtype=torch.float64),
    "mean": torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]], dtype=torch.float64),
    "covariance": torch.ones(2, 3, dtype=torch.float64),
}
BLOCK = SGD(lr=0.1, steps=4, batch=5, momentum=0.9, keep_momentum=True, weight_decay=0.01, clip=1.0, schedule="cosine")


@dataclass(frozen=True)
class Row:
    """An algorithm to be tested.

    Args:
        make: the algorithm for a federation.
        per_client: entries of the server's state with one row a client, with slashes (``"ratio/gamma"``).
        per_pair: entries with one row a pair i < j, which change sign where i and j change places.
        per_edge: entries with one row for each of the edges (0, 3) and (1, 2), which the renumbering exchanges.
        groups: ``fit``'s: those edges, for methods of three tiers.
        predicts: whether it has a model of y for x; those that fit a distribution to x have none.
    """

    make: Callable[[Federation], Algorithm]
    per_client: tuple[str, ...] = ()
    per_pair: tuple[str, ...] = ()
    per_edge: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] | None = None
    predicts: bool = True

    @property
    def edges(self) -> tuple[Tensor, ...]:
        """The same as a handle has them."""
        return tuple(map(torch.tensor, self.groups or ()))


def fedavg(federation: Federation) -> Algorithm:
    # Passes over the data: uneven clients make different numbers of steps.
    local = replace(BLOCK, steps=None, epochs=2)
    return FedAvg(classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation), local)


def small(federation: Federation) -> Supervised:
    return classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation)


def ditto(federation: Federation) -> Algorithm:
    # An inner algorithm with a state of its own, and another solver for the personal models.
    inner = FedDyn(small(federation), BLOCK, penalty=1.0)
    return Ditto(inner, replace(BLOCK, steps=2, clip=None), penalty=0.5)


# One pass before evaluation, and nothing kept of it.
TUNING = SGD(lr=0.1, epochs=1, batch=5, momentum=0.9)


def apfl(federation: Federation, **settings: Any) -> Algorithm:
    # Weight decay would pull an adaptive α to 0, and is refused.
    return APFL(small(federation), replace(BLOCK, weight_decay=0.0), alpha=0.4, **settings)


def pfedme(federation: Federation) -> Algorithm:
    # Every inner problem starts afresh: there is no momentum to be kept.
    inner = replace(BLOCK, keep_momentum=False)
    return PFedMe(small(federation), inner, penalty=2.0, rate=0.3, local_rounds=3, mixing=0.8)


# A mean gradient can be read off plain steps only.
PLAIN = replace(BLOCK, momentum=0.0, keep_momentum=False)
FRESH = replace(BLOCK, keep_momentum=False)


def scaffold(federation: Federation) -> Algorithm:
    local = replace(PLAIN, steps=None, epochs=2)
    return SCAFFOLD(small(federation), local, server_rate=0.9, weights="examples")


def pfedmac(federation: Federation) -> Algorithm:
    tiers = {"edge_penalty": 0.2, "edge_rounds": 2}
    return PFedMac(small(federation), FRESH, penalty=0.5, local_rounds=2, mixing=0.8, sparsity=0.05, **tiers)


def fedem(federation: Federation) -> Algorithm:
    # Half of the clients hold fewer examples than a batch.
    return FedEM(GaussianMixture(2, 3, "diag"), NORMALS, Dithering(levels=3), rate=Decay(0.3), batch=14)


def personal_fedem(federation: Federation) -> Algorithm:
    return PersonalFedEM(GaussianMixture(2, 3, "diag"), NORMALS, Dithering(levels=3), rate=Decay(0.3), batch=14)


def vrfedem(federation: Federation) -> Algorithm:
    family = GaussianMixture(2, 3, "tied")
    start = NORMALS | {"covariance": torch.eye(3, dtype=torch.float64)[None]}
    return VRFedEM(family, start, batch=5, inner=2, compressor=RandK(k=6), rate=0.2, replacement=True)


def fedspm(federation: Federation, **settings: str) -> Algorithm:
    encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    task, router = classification(encoder, federation), Network(nn.Linear(3, 4), federation.inputs)
    return FedSPM(task, router, components=2, local=BLOCK, routing=BLOCK, **settings)  # type: ignore[arg-type]


def fedgmm(federation: Federation, **settings: Any) -> Algorithm:
    router = Network(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), federation.inputs)
    return FedGMM(
        small(federation), BLOCK, router=router, routing=replace(BLOCK, steps=3), components=2, gaussians=3, **settings
    )


TILTS = ("tau", "ratio/gamma", "ratio/xi")

MODEL = ("encoder/0/weight", "encoder/0/bias", "head/weight", "head/bias")

ROWS = {
    "APFL": Row(apfl),
    "APFL adaptive": Row(lambda federation: apfl(federation, adaptive=True, averaging=2.0)),
    "Compressing Dithering": Row(lambda federation: Compressing(fedavg(federation), Dithering(levels=4))),
    "Compressing TopK": Row(lambda federation: Compressing(fedspm(federation), TopK(fraction=0.3)), TILTS),
    "Ditto": Row(ditto),
    "FedAvg": Row(fedavg),
    "FedAvgFT": Row(lambda federation: FedAvgFT(small(federation), BLOCK, TUNING)),
    "FedBABU": Row(lambda federation: FedBABU(small(federation), BLOCK, TUNING)),
    "FedBABU all": Row(lambda federation: FedBABU(small(federation), BLOCK, TUNING, tune="all")),
    "FedCR": Row(lambda federation: FedCR(small(federation), BLOCK, beta=0.1, weights="examples")),
    "FedDRM": Row(
        lambda federation: FedDRM(small(federation), BLOCK, weight=0.3),
        per_client=("sizes", "model/clients/weight", "model/clients/bias"),
    ),
    "FedDyn": Row(lambda federation: FedDyn(small(federation), BLOCK, penalty=0.5)),
    "FedEM": Row(fedem, predicts=False),
    "FedEMExperts 1×": Row(lambda federation: FedEMExperts(small(federation), BLOCK, components=2, encoders="shared")),
    "FedEMExperts C×": Row(lambda federation: FedEMExperts(small(federation), BLOCK, components=3)),
    "FedGMM": Row(fedgmm, per_client=("tau",)),
    "FedGMM learned 1×": Row(
        lambda federation: fedgmm(federation, encoders="shared", embedding="learned"), per_client=("tau",)
    ),
    "FedPer": Row(lambda federation: FedPer(small(federation), BLOCK)),
    "FedProx": Row(lambda federation: FedProx(small(federation), BLOCK, penalty=0.5)),
    "FedRep": Row(lambda federation: FedRep(small(federation), BLOCK, replace(BLOCK, steps=6))),
    "FedSPM 1×": Row(fedspm, TILTS),
    "FedSPM C×": Row(lambda federation: fedspm(federation, encoders="own"), TILTS),
    "FedSPM incremental": Row(lambda federation: fedspm(federation, expectation="incremental"), TILTS),
    "FedSplit": Row(lambda federation: FedSplit(small(federation), BLOCK, s=2.0)),
    "FPFC": Row(
        lambda federation: FPFC(small(federation), FRESH, penalty=0.5, xi=0.05),
        per_client=tuple(f"models/{name}" for name in MODEL),
        per_pair=("pairs",),
    ),
    "IFCA": Row(lambda federation: IFCA(small(federation), BLOCK, clusters=3)),
    "L2SGD": Row(lambda federation: L2SGD(small(federation), replace(BLOCK, steps=1), penalty=3.0, p=0.4)),
    "Local": Row(lambda federation: Local(small(federation), BLOCK)),
    "pFedMac": Row(pfedmac),
    "pFedMac three tiers": Row(pfedmac, per_edge=tuple(f"edges/{name}" for name in MODEL), groups=((0, 3), (1, 2))),
    "PersonalFedEM": Row(personal_fedem, predicts=False),
    "pFedMe": Row(pfedme),
    "Pooled": Row(lambda federation: Pooled(small(federation), BLOCK)),
    "ProxSkip": Row(lambda federation: ProxSkip(small(federation), PLAIN, p=0.4, weights="examples")),
    "SCAFFOLD": Row(scaffold),
    "SCAFFOLD option I": Row(lambda federation: replace(scaffold(federation), option="I")),
    "VR-FedEM": Row(vrfedem, predicts=False),
}
