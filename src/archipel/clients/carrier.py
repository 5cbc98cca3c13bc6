"""Carriers: who carries a step out. Each runs pure steps at clients and keeps the clients' states."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from archipel.algorithm import Step
from archipel.data.federation import Federation
from archipel.examples import ClientData, Examples
from archipel.trees import Tree

log = logging.getLogger("archipel")


@dataclass(frozen=True)
class Outcome:
    """Replies of some clients, in client order.

    Args:
        ids: whose they are.
        replies: stacked along a first dimension.
        usable: ``(k,)`` bool; false where the reply or the new state held NaN or infinities.
        reply_bytes: bytes of one client's reply.
    """

    ids: Sequence[int]
    replies: Tree
    usable: Tensor
    reply_bytes: int


class Carrier(Protocol):
    """Runs steps and keeps client states. An instance serves one run, inside a ``with`` statement."""

    def describe(self) -> dict[str, Any]:
        """What was chosen, for the resolved configuration."""

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        """Runs the step at each client in order; new states are kept for usable outcomes, and in training only."""

    def state(self, client: int) -> Tree:
        """A client's state as it stands, unpadded."""

    def restore(self, states: Sequence[Tree]) -> None:
        """Replaces every client's state."""

    def close(self) -> None:
        """Ends workers."""


def client_data(federation: Federation, client: int, *, training: bool) -> ClientData:
    """A client's columns as examples; the held-out parts only where it isn't training."""
    parts = federation.clients[client]
    train = Examples.of(parts.train)
    if training:
        return ClientData(train)
    validation = Examples.of(parts.validation) if parts.validation else None
    return ClientData(train, validation, Examples.of(parts.test) if len(parts.test["x"]) else None)
