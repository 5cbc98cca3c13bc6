"""Which engine runs the steps: chosen by the user, or for each step by the size of its operations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archipel.algorithm import Algorithm, Step
from archipel.core.torch_internals import BatchNormBase, ConvolutionBase
from archipel.core.trees import Tree, decoded
from archipel.data.federation import Federation
from archipel.engines.batched import Batched
from archipel.engines.carrier import Carrier, log
from archipel.engines.group import meet, told_by
from archipel.engines.loop import Loop
from archipel.engines.operation_counter import LARGE, OperationCounter
from archipel.engines.outcome import Outcome, WroteIntoInputsError, step_name
from archipel.engines.pool.processes import Processes
from archipel.engines.rank_kernels import BatchedShards
from archipel.engines.ranks import Ranks
from archipel.engines.setting import DEFAULT, Setting
from archipel.engines.shards import owners
from archipel.engines.wire import Wire
from archipel.learning.contents import find_modules
from archipel.states.table import States


def choose(
    algorithm: Algorithm, federation: Federation, setting: Setting = DEFAULT, states: States | None = None
) -> tuple[Carrier, str]:
    """Make a run's carrier, and say in one line why it was chosen.

    On CPUs convolutions gain nothing from batching over clients and run fastest with one client a core; small dense
    models are bound by overhead, which batching shares. BatchNorm must not see padding, and recurrent layers batch
    slowly. On a GPU everything is batched that can be.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        setting: which engine, or ``"auto"``, and how steps compute.
        states: where the clients' states are kept; default: in memory.

    Raises:
        ValueError: a device that this machine does not have, or a setting that the engine does not support.
    """
    engine, given = setting.engine, "chosen by the user"
    setting.check_device()
    states = states or States(federation.sizes)
    if callable(engine):
        return engine(algorithm, federation, setting, states), given
    apart = _one_by_one(algorithm, federation, setting)
    several = replace(setting, workers=min(setting.workers or _cores(), len(federation.clients)))
    if engine == "loop":
        return Loop(algorithm, federation, several if setting.workers else setting, states), given
    if engine == "threads":
        return Loop(algorithm, federation, several, states), given
    if engine == "batched":
        return Batched(algorithm, federation, setting, states), given
    if engine == "processes":
        if not setting.on_cpu:
            several = replace(setting, workers=setting.workers or torch.cuda.device_count())
        return Processes(algorithm, federation, several, states, kernel="loop" if apart else "batched"), given
    if engine == "distributed":
        return _distributed(algorithm, federation, setting, states)
    if engine == "wire":
        return Wire(algorithm, federation, setting, states), given
    alone = replace(setting, workers=1)
    if apart:
        used = several if apart == "convolutions" and setting.on_cpu else alone
        on = f" on {used.workers} threads" if used.workers != 1 else ""
        return Loop(algorithm, federation, used, states), f"{apart}: clients one by one{on}"
    if not setting.on_cpu:
        return Batched(algorithm, federation, alone, states), "a GPU: clients in batches"
    return Auto(algorithm, federation, several, states), "each step by the size of its operations"


def _distributed(algorithm: Algorithm, federation: Federation, setting: Setting, states: States) -> tuple[Carrier, str]:
    """Make the carrier of a rank, whose steps run by the engine ``setting.within``."""
    meet()
    within = setting.within
    if setting.device == "cuda":  # a GPU for each rank of a machine
        setting = replace(setting, device=f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}")
    inside = replace(setting, engine=within, workers=setting.workers or 1)
    if within == "auto" and not _one_by_one(algorithm, federation, setting):
        inner: Carrier = AutoRank(algorithm, federation, inside, states)
        why = "each step by the size of its operations"
    elif within == "batched":
        inner, why = BatchedShards(algorithm, federation, inside, states), "chosen by the user"
    else:
        inner, why = choose(algorithm, federation, inside, states)
    ranks = Ranks(federation, states, inner)
    return ranks, f"{ranks.number} ranks; within each: {why}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _one_by_one(algorithm: Algorithm, federation: Federation, setting: Setting) -> str:
    """Return why clients cannot, or should not, be batched; empty if they can be."""
    found = list(find_modules(algorithm))
    if any(isinstance(m, BatchNormBase | nn.RNNBase) for m in found):
        return "BatchNorm or recurrent layers"
    if setting.on_cpu and any(isinstance(m, ConvolutionBase) for m in found):
        return "convolutions"
    counts = federation.sizes
    return "sizes too uneven to pad" if int(counts.max()) * len(counts) > 4 * int(counts.sum()) else ""


class Auto:
    """Runs each step by the engine that suits it: in batches, or one client after another on threads.

    Before a step runs for the first time, the smallest client runs it once under an operation counter. If the largest
    matrix product is small, most of the time goes into calling operations, which batches share; if it is large (see
    :mod:`archipel.engines.operation_counter`), threads run clients one by one. Operations are counted, not timed,
    so that the choice is the same on every machine and in every repetition.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        setting: how steps compute; its ``workers`` are threads, of the loop and of batches with large operations.
        states: where the clients' states are kept; default: in memory.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        setting: Setting = DEFAULT,
        states: States | None = None,
    ) -> None:
        self.states = states or States(federation.sizes)
        self._loop = Loop(algorithm, federation, setting, self.states)
        self._batched = self._batches(algorithm, federation, setting, self.states)
        self._federation = federation
        self._smallest = int(federation.sizes.argmin())
        self._chosen: dict[str, Loop | Batched] = {}

    def describe(self) -> dict[str, Any]:
        steps = {name: carrier.describe() for name, carrier in self._chosen.items()}
        return {"engine": "auto", "steps": steps} | self.states.describe()

    def close(self) -> None:
        self._loop.close()
        self._batched.close()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        name = step_name(step)
        if name not in self._chosen:
            try:
                self._chosen[name] = self._choice(step, message, key, training)
            except WroteIntoInputsError:
                raise
            except Exception:  # the step fails at this client; the loop says at which clients
                yield from self._loop.run(step, message, ids, key, training=training)
                return
        yield from self._chosen[name].run(step, message, ids, key, training=training)

    _batches: type[Batched] = Batched

    def _choice(self, step: Step, message: Tree, key: Tensor, training: bool) -> Loop | Batched:
        number, largest = self._counted(step, message, key, training)
        large = largest >= LARGE
        log.info(
            "%s: %d operations a client, the largest of %.2g floating-point operations: %s.",
            step_name(step),
            number,
            largest,
            f"one by one on {self._loop.workers} threads" if large else "in batches",
        )
        return self._loop if large else self._batched

    def _counted(self, step: Step, message: Tree, key: Tensor, training: bool) -> tuple[int, float]:
        """Return the number of operations of the smallest client's step, and the size of the largest."""
        with OperationCounter() as counted:
            self._loop.compute(step, decoded(message), self._smallest, key, training)
        return counted.number, counted.largest


class AutoRank(Auto):
    """:class:`Auto` for a rank: the rank that has the smallest client counts for all."""

    _batches = BatchedShards

    def _counted(self, step: Step, message: Tree, key: Tensor, training: bool) -> tuple[int, float]:
        count = super()._counted
        owner = owners(self._federation.sizes, dist.get_world_size())[self._smallest]
        return told_by(int(owner), lambda: count(step, message, key, training))
