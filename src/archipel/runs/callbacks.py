"""Callbacks: what a run tells its caller after each round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archipel.algorithm import Algorithm, Clients
from archipel.core.trees import Tree
from archipel.data.federation import Federation


@dataclass(frozen=True)
class Moment:
    """A run after a round.

    Args:
        round: number of rounds done, from 1.
        record: the round's entry in the history.
        server: the server's state.
        clients: a handle on all clients; evaluating through it changes nothing.
        algorithm: what runs.
        federation: on what.
    """

    round: int
    record: dict[str, Any]
    server: Tree
    clients: Clients
    algorithm: Algorithm
    federation: Federation


Callback = Callable[[Moment], None]
"""Called after each round; an exception that it raises ends the run."""
