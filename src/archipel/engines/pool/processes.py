"""Processes: steps on all cores, or on several GPUs, in workers that share memory with the run."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core.checks import above_zero, one_of, positive_int
from archipel.core.trees import Tree, decoded, leaves, nbytes, tree_map
from archipel.data.federation import Federation
from archipel.engines.batched import Batched
from archipel.engines.carrier import UNPICKLABLE, log, not_sent
from archipel.engines.outcome import Outcome, SameForm, step_name
from archipel.engines.pool.memory import Memory
from archipel.engines.pool.pool import Job, Pool
from archipel.engines.pool.worker import Operation, Payload, TaskPart, known_to_all, serve, split_message
from archipel.engines.setting import DEFAULT, Setting
from archipel.states.table import States

Kernel = Literal["loop", "batched"]
Start = Literal["fork", "spawn"]


PARTS, LEAST = 16, 50
"""Largest number of batches of a cohort, and smallest bound of their size: smaller batches call operations so often
that several workers gain nothing."""
MOST, BYTES = 8, 2**24
"""Bounds of the number of clients in a task, and of the bytes they send, if each client runs separately."""


class Processes:
    """Runs steps in worker processes, one client at a time in each, or a batch of clients.

    Workers keep no state: the client states stay in this process, and what a task needs is put into shared memory.
    A worker that is killed or hangs costs only time: another one runs its tasks again. Results do not depend on the
    number of workers; they have the bits of :class:`Loop`, or of :class:`Batched` with the same ``chunk``.

    Workers are forked when they are first needed, if the system supports it, and inherit algorithm and data. Otherwise
    they are spawned, and get both through shared memory. With several GPUs each worker takes one.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        setting: how steps compute; its ``workers`` are processes, one by default. Each computes on one thread.
        states: where the clients' states are kept; default: in memory.
        kernel: how a worker runs a step: ``"loop"`` or ``"batched"``.
        chunk: clients a batch; default: as in :class:`Batched`, or fewer, so that there are tasks for several workers.
            It does not depend on the number of workers.
        timeout: seconds after which a worker that has not answered is replaced.
        start: ``"fork"`` or ``"spawn"``; default: forks on Linux without GPUs.

    Raises:
        ValueError: a value that is not allowed; an algorithm that cannot be pickled, if workers are spawned; or a
            process that may not start others.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        setting: Setting = DEFAULT,
        states: States | None = None,
        *,
        kernel: Kernel = "loop",
        chunk: int | None = None,
        timeout: float = 600.0,
        start: Start | None = None,
    ) -> None:
        positive_int("Processes", chunk=1 if chunk is None else chunk)
        above_zero("Processes", timeout=timeout)
        one_of("Processes", "kernel", kernel, "loop", "batched")
        if multiprocessing.current_process().daemon:
            raise ValueError(
                "This process may not start others: it is a daemon, like those of multiprocessing.Pool. Use "
                "engine='loop' or 'batched' here."
            )
        self.algorithm, self.federation, self.kernel = algorithm, federation, kernel
        self.workers = workers = setting.workers or 1
        self.states = states or States(federation.sizes)
        # In a worker everything runs on one thread.
        self._batched = Batched(algorithm, federation, replace(setting, workers=1), self.states, chunk)
        self._setting = self._batched.setting
        # Threads of a GPU's runtime and of torch's differentiation on it do not survive a fork.
        forks = sys.platform == "linux" and self._setting.on_cpu and not torch.accelerator.is_available()
        self._context = multiprocessing.get_context(start or ("fork" if forks else "spawn"))
        self._chunks: dict[str, int] = {}
        self._names = {id(part): number for number, part in enumerate(known_to_all(algorithm, federation))}
        self._operation_memory = Memory()
        advice = (
            "If memory is short, use fewer workers; engine='loop' runs the step in this process and shows its error."
        )
        if self._context.get_start_method() == "spawn":
            advice += " Workers are spawned here: a script must call fit under if __name__ == '__main__'."
        self._pool = Pool(workers, self._start, timeout, advice)
        self._payload = None if self._context.get_start_method() == "fork" else self._packed()

    def describe(self) -> dict[str, Any]:
        kernel = (self._batched if self.kernel == "batched" else self._batched.loop).describe()
        chunk = {"chunk": dict(self._chunks)} if kernel["engine"] == "batched" and self._batched.chunk is None else {}
        return kernel | {"engine": "processes", "kernel": kernel["engine"], "workers": self.workers} | chunk

    def close(self) -> None:
        self._pool.close()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        together = self.kernel == "batched" and self._batched.ready(step, message, key, training)
        kernel = self._batched if together else self._batched.loop
        chunks = self._batches(step, message, ids) if together else self._groups(ids, message)
        shared, own = split_message(decoded(message))
        self._pool.abandon()
        try:
            content, _ = self._operation_memory.dump(Operation(step, shared, key, training), self._names)
        except UNPICKLABLE as error:
            log.warning("%s can't be sent to workers, so it runs in this process: %s", step_name(step), error)
            yield from kernel.run(step, message, ids, key, training=training)
            return

        def pack(number: int, memory: Memory) -> bytes:
            chunk = chunks[number]
            if together:
                which = torch.tensor(chunk)
                parts = [TaskPart(chunk, self.states.read(which), [leaf.row(which) for leaf in own])]
            else:
                parts = [TaskPart(client, self.states[client], [leaf.row(client) for leaf in own]) for client in chunk]
            return memory.dump([tuple(part) for part in parts], self._names)[0]

        work = Job(content, len(chunks), pack, lambda number: self._name(step, chunks[number]))
        if not self._setting.on_cpu and not together:
            work.pinned = [client for (client,) in chunks]  # a client's data stay on one GPU
        form = SameForm(step)
        self._pool.begin(work)
        for number in range(len(chunks)):
            answer = self._pool.answer(work, number)
            if answer.failed:
                raise pickle.loads(answer.content)
            done, _ = answer.memory.load(answer.content)
            outcomes = [_copied(kernel.keep(one, training, form)) for one in done]
            self._pool.release(work, answer)
            for outcome in outcomes:
                if outcome.error is not None and together:  # one by one, to know at whom
                    yield from self._batched.loop.run(step, message, outcome.ids, key, training=training)
                else:
                    yield outcome

    def _batches(self, step: Step, message: Tree, ids: Sequence[int]) -> list[list[int]]:
        """Return the batches of a cohort. They decide how sums are rounded, so they depend on the cohort alone."""
        chunks = self._batched.split(step, message, ids)
        if self._batched.chunk is not None or not chunks:
            return [chunk.tolist() for chunk in chunks]
        size = min(len(chunks[0]), max(LEAST, math.ceil(len(ids) / PARTS)))
        self._chunks[step_name(step)] = size = math.ceil(len(ids) / math.ceil(len(ids) / size))
        return [list(ids[start : start + size]) for start in range(0, len(ids), size)]

    def _groups(self, ids: Sequence[int], message: Tree) -> list[list[int]]:
        """Return groups of clients that a worker runs one after another: several if clients are many and small."""
        part = nbytes([leaf for leaf in leaves(message) if isinstance(leaf, Tensor)]) + self.states.bytes
        size = max(1, min(MOST, len(ids) // (4 * self.workers), BYTES // (1 + part))) if self._setting.on_cpu else 1
        return [list(ids[start : start + size]) for start in range(0, len(ids), size)]

    def _name(self, step: Step, chunk: Sequence[int]) -> str:
        names = [self.federation.clients[client].name for client in chunk]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"{step_name(step)} for {shown}"

    def _packed(self) -> Payload:
        try:
            return Payload.of(self._batched)
        except UNPICKLABLE as error:
            raise not_sent("Workers are spawned here and are sent the algorithm", self.algorithm, error) from error

    def _start(self, index: int, connection: Connection, slots: Sequence[Memory]) -> BaseProcess:
        if self._payload is None and self.kernel == "batched":
            self._batched.gather()  # once here, not in each worker
        arguments = (connection, self._operation_memory, slots, self._payload or self._batched, index)
        process = self._context.Process(target=serve, args=arguments, daemon=True, name=f"archipel-{index}")  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # Python warns about forks beside other threads. A worker uses nothing that they might hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started: BaseProcess = process
        return started


def _copied(outcome: Outcome) -> Outcome:
    """Return the outcome with copies of its tensors."""
    replies = tree_map(torch.clone, outcome.replies)
    return replace(outcome, replies=replies, usable=outcome.usable.clone(), largest=outcome.largest.clone())
