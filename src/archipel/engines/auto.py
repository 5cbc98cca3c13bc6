"""Which engine carries the steps: given by hand, or chosen for each step from what it is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from archipel.algorithm import Algorithm, Step
from archipel.core.torch_internals import BatchNormBase, ConvolutionBase
from archipel.core.trees import Tree, decoded
from archipel.data.federation import Federation
from archipel.engines.batched import Batched
from archipel.engines.carrier import Carrier, Outcome, log
from archipel.engines.device import Setting
from archipel.engines.loop import Loop
from archipel.engines.operations import LARGE, Operations
from archipel.engines.pool.processes import Processes
from archipel.engines.wire import Wire
from archipel.learning.networks import modules_of
from archipel.states.table import States

Engine = Literal["auto", "loop", "threads", "batched", "processes", "wire"] | Callable[[Algorithm, Federation], Carrier]
NAMES = ("auto", "loop", "threads", "batched", "processes", "wire")


def choose(
    engine: Engine,
    algorithm: Algorithm,
    federation: Federation,
    workers: int | None = None,
    states: States | None = None,
    setting: Setting | None = None,
) -> tuple[Carrier, str]:
    """A carrier, and one line that says why it was chosen.

    On CPUs convolutions gain nothing from batching over clients and run fastest one client a core; small dense models
    are bound by overhead, which batching shares. BatchNorm must not see padding, recurrent layers batch slowly. On a
    GPU everything is batched that can be.

    Args:
        engine: a name, or a function that makes a carrier.
        workers: threads or processes; ``None``: one a core, or a GPU.
        states: where the clients' states are kept; default: in memory.
        setting: where steps compute.
    """
    if callable(engine):
        return engine(algorithm, federation), "given by hand"
    if engine not in NAMES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, NAMES))}, or a function; given {engine!r}.")
    setting, given = setting or Setting(), "given by hand"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    several = min(workers or cores, len(federation.clients))
    apart = _one_by_one(algorithm, federation, setting)
    if engine == "loop":
        return Loop(algorithm, federation, several if workers else 1, states, setting), given
    if engine == "threads":
        return Loop(algorithm, federation, several, states, setting), given
    if engine == "batched":
        return Batched(algorithm, federation, None, states, setting, workers or 1), given
    if engine == "processes":
        kernel: Literal["loop", "batched"] = "loop" if apart else "batched"
        if not setting.at_home:
            several = workers or torch.cuda.device_count()
        return Processes(algorithm, federation, several, kernel, states=states, setting=setting), given
    if engine == "wire":
        if settings := setting.describe():
            raise ValueError(
                f"engine='wire' is for tests, and computes as the defaults say; given {settings}. Leave the settings "
                "out, or take another engine."
            )
        return Wire(algorithm, federation, states), given
    if apart:
        threads = several if apart == "convolutions" and setting.at_home else 1
        on = f" on {threads} threads" if threads > 1 else ""
        return Loop(algorithm, federation, threads, states, setting), f"{apart}: clients one by one{on}"
    if not setting.at_home:
        return Batched(algorithm, federation, None, states, setting), "a GPU: clients in batches"
    return Auto(algorithm, federation, several, states, setting), "each step by the size of its operations"


def _one_by_one(algorithm: Algorithm, federation: Federation, setting: Setting) -> str:
    """Why clients can't, or shouldn't, be batched; empty if they may."""
    found = list(modules_of(algorithm))
    if any(isinstance(m, BatchNormBase | nn.RNNBase) for m in found):
        return "BatchNorm or recurrent layers"
    if setting.at_home and any(isinstance(m, ConvolutionBase) for m in found):
        return "convolutions"
    counts = federation.sizes
    return "sizes too uneven to pad" if int(counts.max()) * len(counts) > 4 * int(counts.sum()) else ""


class Auto:
    """Carries each step out by the engine that suits it: in batches, or one client after another on threads.

    The first time a step runs, the smallest client does it once under a counter of operations. Where the largest matrix
    product is small, calling operations takes most of the time, and batches share that; where it is large (see
    :mod:`archipel.engines.operations`), threads take clients one by one. Work is counted, not timed, so that the same
    run chooses the same on every machine and in every repetition.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        workers: threads, of the loop and of batches whose operations are large.
        states: where the clients' states are kept; default: in memory.
        setting: where steps compute.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        workers: int = 1,
        states: States | None = None,
        setting: Setting | None = None,
    ) -> None:
        self.states = states or States(federation.sizes)
        self._loop = Loop(algorithm, federation, workers, self.states, setting)
        self._batched = Batched(algorithm, federation, None, self.states, setting, workers)
        self._smallest = int(federation.sizes.argmin())
        self._chosen: dict[str, Loop | Batched] = {}

    def describe(self) -> dict[str, Any]:
        steps = {name: carrier.describe() for name, carrier in self._chosen.items()}
        return {"engine": "auto", "steps": steps} | self.states.describe()

    def close(self) -> None:
        self._loop.close()
        self._batched.close()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        if step.__qualname__ not in self._chosen:
            self._chosen[step.__qualname__] = self._choice(step, message, key, training)
        yield from self._chosen[step.__qualname__].run(step, message, ids, key, training=training)

    def _choice(self, step: Step, message: Tree, key: Tensor, training: bool) -> Loop | Batched:
        with Operations() as counted:
            self._loop.compute(step, decoded(message), self._smallest, key, training)
        large = counted.largest >= LARGE
        log.info(
            "%s: %d operations a client, the largest of %.2g floating-point operations: %s.",
            step.__qualname__,
            counted.number,
            counted.largest,
            f"one by one on {self._loop.workers} threads" if large else "in batches",
        )
        return self._loop if large else self._batched
