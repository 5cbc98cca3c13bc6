"""Callbacks: what a run tells its caller after each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
        history: records of all rounds so far, this one included.
        rounds: planned rounds of the whole run.
        save: writes a checkpoint of this moment to a folder.
    """

    round: int
    record: dict[str, Any]
    server: Tree
    clients: Clients
    algorithm: Algorithm
    federation: Federation
    history: Sequence[dict[str, Any]]
    rounds: int
    save: Callable[[Path], None]


Callback = Callable[[Moment], bool | None]
"""Called after each round. If it returns True, the run is evaluated, saved, and ends; callbacks after it in the list
see the evaluation. An exception that it raises ends the run at once."""
