"""Carriers: who carries a step out. Each runs pure steps at clients, and keeps the clients' states in a table."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, leaves
from archipel.data.federation import Federation
from archipel.states.table import States

log = logging.getLogger("archipel")


@dataclass(frozen=True)
class Outcome:
    """Replies of some clients, in client order.

    Args:
        ids: whose they are.
        replies: stacked along a first dimension, as they arrive: what was compressed is unpacked.
        usable: ``(k,)`` bool; false where the reply or the new state held NaN or infinities.
        reply_bytes: bytes of one client's reply on its way.
    """

    ids: Sequence[int]
    replies: Tree
    usable: Tensor
    reply_bytes: int


class Carrier(Protocol):
    """Runs steps and keeps client states. An instance serves one run, inside a ``with`` statement."""

    @property
    def states(self) -> States:
        """Every client's state as it stands."""

    def describe(self) -> dict[str, Any]:
        """What was chosen, for the resolved configuration."""

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        """Runs the step at each client in order; new states are kept for usable outcomes, and in training only."""

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


def step_name(step: Step) -> str:
    """Name a step by the class of its algorithm, which may have inherited it: ``FedProx.train``."""
    return f"{type(step.__self__).__name__}.{step.__name__}" if isinstance(step, MethodType) else step.__qualname__


UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)
"""What pickling raises of an object that can't be."""


def not_sent(why: str, algorithm: Algorithm, error: Exception) -> ValueError:
    """The error of an algorithm that would have to be pickled and can't be: why it would have to, and what to do."""
    return ValueError(
        f"{why}, and this {type(algorithm).__name__} can't be pickled: {error}. Define its modules, losses and "
        "functions at the top of a file instead of inside others or as a lambda, or take engine='loop'."
    )


def usable(stacked: Tree, count: int) -> Tensor:
    """``(count,)``, true where no entry of a row is NaN or infinite."""
    found = [leaf for leaf in leaves(stacked) if leaf.is_floating_point()]
    # One entry that isn't finite makes a sum that isn't; only where a sum may have overflowed all are looked at.
    if math.isfinite(sum([float(leaf.sum()) for leaf in found])):
        return torch.ones(count, dtype=torch.bool)
    return torch.stack([torch.isfinite(leaf).reshape(count, -1).all(dim=1) for leaf in found]).all(dim=0).cpu()
