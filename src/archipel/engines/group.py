"""The processes of a distributed run: how they meet, and what they tell one another."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from archipel.engines.carrier import log

Told = TypeVar("Told")
TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another one, which may be running a long step."""


def launched() -> bool:
    """Whether torchrun, or a program that sets the same variables, has started this process as one of several ranks.

    >>> launched()
    False
    """
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def rank() -> int:
    """Return the number of this process among the ranks of a run: 0 for the first, and for a process of its own."""
    return int(os.environ["RANK"]) if launched() else 0


def ranks() -> int:
    """Return the number of ranks: 1 for a process of its own."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def meet() -> None:
    """Join the group of all ranks, once a process.

    The server's state and the sums lie in the machine's memory, so that gloo serves machines with and without GPUs.

    Raises:
        ValueError: the process was not started as a rank.
    """
    if dist.is_initialized():
        return
    if not launched():
        raise ValueError(
            "engine='distributed' runs in processes that torchrun has started: torchrun --nproc-per-node 2 -m archipel "
            "run PRESET. In one process, take engine='auto'."
        )
    store, number, all_ranks = next(rendezvous("env://", timeout=TIMEOUT))
    # torchrun keeps one store over its restarts, in which the addresses of the ranks that died would still be found.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"archipel/{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=own, rank=number, world_size=all_ranks, timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)
    if rank():
        log.setLevel(logging.ERROR)  # one log is enough: the ranks do the same


def told(value: Told) -> Told:
    """Return the first rank's value at every rank."""
    meet()
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    first: Told = box[0]
    return first


def told_by(owner: int, find: Callable[[], Told]) -> Told:
    """Return at every rank what one rank finds, or raise there what it raises."""
    box: list[Any] = [None, None]
    if dist.get_rank() == owner:
        try:
            box[0] = find()
        except Exception as error:
            box[1] = str(error) or type(error).__name__
    dist.broadcast_object_list(box, src=owner)
    if box[1] is not None:
        raise RuntimeError(box[1])
    found: Told = box[0]
    return found


def gathered(value: Told) -> list[Told]:
    """Return every rank's value."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
