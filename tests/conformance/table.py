"""The conformance table: one row an algorithm, and it gets every test of ``test_conformance.py``.

To certify a new algorithm add one ``Row`` to ``ROWS``: a function that makes it for a federation of four uneven clients
with three features and three classes (small encoders, minibatches, momentum that is kept where it has one: the more of
its state moves, the more is tested), and the names of the entries of its server's state that hold one row a client, if
there are any. What only this algorithm promises (limits, trajectories) goes into ``tests/algorithms/test_<it>.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from archipel import SGD, Algorithm, FedAvg, Federation, FedSPM, Network, classification

BLOCK = SGD(lr=0.1, steps=4, batch=5, momentum=0.9, keep_momentum=True, weight_decay=0.01, clip=1.0, schedule="cosine")


@dataclass(frozen=True)
class Row:
    """An algorithm to be tested.

    Args:
        make: the algorithm for a federation.
        per_client: entries of the server's state with one row a client, with slashes (``"ratio/gamma"``).
    """

    make: Callable[[Federation], Algorithm]
    per_client: tuple[str, ...] = ()


def fedavg(federation: Federation) -> Algorithm:
    # Passes over the data: uneven clients make different numbers of steps.
    local = replace(BLOCK, steps=None, epochs=2)
    return FedAvg(classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation), local)


def fedspm(federation: Federation, **settings: str) -> Algorithm:
    encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    task, router = classification(encoder, federation), Network(nn.Linear(3, 4), federation.inputs)
    return FedSPM(task, router, components=2, local=BLOCK, routing=BLOCK, **settings)  # type: ignore[arg-type]


TILTS = ("tau", "ratio/gamma", "ratio/xi")

ROWS = {
    "FedAvg": Row(fedavg),
    "FedSPM 1×": Row(fedspm, TILTS),
    "FedSPM C×": Row(lambda federation: fedspm(federation, encoders="own"), TILTS),
    "FedSPM incremental": Row(lambda federation: fedspm(federation, expectation="incremental"), TILTS),
}
