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

from torch import nn

from archipel import (
    APFL,
    FPFC,
    L2SGD,
    SCAFFOLD,
    SGD,
    Algorithm,
    Ditto,
    FedAvg,
    FedCR,
    FedDyn,
    Federation,
    FedPer,
    FedProx,
    FedSplit,
    FedSPM,
    Local,
    Network,
    PFedMac,
    PFedMe,
    ProxSkip,
    Supervised,
    classification,
)

BLOCK = SGD(lr=0.1, steps=4, batch=5, momentum=0.9, keep_momentum=True, weight_decay=0.01, clip=1.0, schedule="cosine")


@dataclass(frozen=True)
class Row:
    """An algorithm to be tested.

    Args:
        make: the algorithm for a federation.
        per_client: entries of the server's state with one row a client, with slashes (``"ratio/gamma"``).
        per_pair: entries with one row a pair i < j, which change sign where i and j change places.
        per_edge: entries with one row for each of the edges (0, 3) and (1, 2), which the renumbering exchanges.
    """

    make: Callable[[Federation], Algorithm]
    per_client: tuple[str, ...] = ()
    per_pair: tuple[str, ...] = ()
    per_edge: tuple[str, ...] = ()


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
    tiers = {"edges": ((0, 3), (1, 2)), "edge_penalty": 0.2, "edge_rounds": 2}
    return PFedMac(small(federation), FRESH, penalty=0.5, local_rounds=2, mixing=0.8, sparsity=0.05, **tiers)


def fedspm(federation: Federation, **settings: str) -> Algorithm:
    encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    task, router = classification(encoder, federation), Network(nn.Linear(3, 4), federation.inputs)
    return FedSPM(task, router, components=2, local=BLOCK, routing=BLOCK, **settings)  # type: ignore[arg-type]


TILTS = ("tau", "ratio/gamma", "ratio/xi")

MODEL = ("encoder/0/weight", "encoder/0/bias", "head/weight", "head/bias")

ROWS = {
    "APFL": Row(apfl),
    "APFL adaptive": Row(lambda federation: apfl(federation, adaptive=True, averaging=2.0)),
    "Ditto": Row(ditto),
    "FedAvg": Row(fedavg),
    "FedCR": Row(lambda federation: FedCR(small(federation), BLOCK, beta=0.1, weights="examples")),
    "FedDyn": Row(lambda federation: FedDyn(small(federation), BLOCK, penalty=0.5)),
    "FedPer": Row(lambda federation: FedPer(small(federation), BLOCK)),
    "FedProx": Row(lambda federation: FedProx(small(federation), BLOCK, penalty=0.5)),
    "FedSPM 1×": Row(fedspm, TILTS),
    "FedSPM C×": Row(lambda federation: fedspm(federation, encoders="own"), TILTS),
    "FedSPM incremental": Row(lambda federation: fedspm(federation, expectation="incremental"), TILTS),
    "FedSplit": Row(lambda federation: FedSplit(small(federation), BLOCK, s=2.0)),
    "FPFC": Row(
        lambda federation: FPFC(small(federation), FRESH, penalty=0.5, xi=0.05),
        per_client=tuple(f"models/{name}" for name in MODEL),
        per_pair=tuple(f"pairs/{name}" for name in MODEL),
    ),
    "L2SGD": Row(lambda federation: L2SGD(small(federation), replace(BLOCK, steps=1), penalty=3.0, p=0.4)),
    "Local": Row(lambda federation: Local(small(federation), BLOCK)),
    "pFedMac": Row(pfedmac, per_edge=tuple(f"edges/{name}" for name in MODEL)),
    "pFedMac two tiers": Row(lambda federation: replace(pfedmac(federation), edges=None)),
    "pFedMe": Row(pfedme),
    "ProxSkip": Row(lambda federation: ProxSkip(small(federation), PLAIN, p=0.4, weights="examples")),
    "SCAFFOLD": Row(scaffold),
}
