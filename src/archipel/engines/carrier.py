"""Carriers run pure steps at clients, and keep the clients' states in a table."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.engines.outcome import Outcome
from archipel.states.table import States

log = logging.getLogger("archipel")


class Carrier(Protocol):
    """Runs steps and keeps client states. An instance serves one run, inside a ``with`` statement."""

    @property
    def states(self) -> States:
        """Every client's state as it stands."""

    def describe(self) -> dict[str, Any]:
        """Describe what was chosen, for the resolved configuration."""

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        """Run the step at each client in order; keep new states of usable outcomes, in training only.

        What a step raises is yielded as a failed outcome.
        """

    def close(self) -> None:
        """End all workers."""


def client_data(federation: Federation, client: int, *, training: bool) -> ClientData:
    """Return a client's columns as examples; the held-out parts in evaluation only."""
    parts = federation.clients[client]
    train = Examples.of(parts.train)
    if training:
        return ClientData(train)
    validation = Examples.of(parts.validation) if parts.validation else None
    return ClientData(train, validation, Examples.of(parts.test) if len(parts.test["x"]) else None)


UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)
"""What pickling raises for an object that cannot be pickled."""


def not_sent(why: str, algorithm: Algorithm, error: Exception) -> ValueError:
    """Return the error of an algorithm that must be pickled and cannot be: why it must, and what to do."""
    return ValueError(
        f"{why}, and this {type(algorithm).__name__} can't be pickled: {error}. Define its modules, losses and "
        "functions at the top of a file instead of inside others or as a lambda, or take engine='loop'."
    )
