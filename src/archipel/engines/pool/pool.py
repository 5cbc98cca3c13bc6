"""A pool of workers: which worker gets which task, and what happens when a worker ends or hangs."""

from __future__ import annotations

import heapq
import multiprocessing
import os
import pickle
import selectors
import signal
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from archipel.engines.carrier import log
from archipel.engines.pool.memory import Memory
from archipel.engines.pool.worker import Request, Response

AHEAD, SLOTS = 2, 3
"""Tasks that a worker has at most; slots for these and for answers that wait for their turn."""
TRIES = 3
"""How often a task is started; if its worker ends or hangs each time, the run ends."""


@dataclass(eq=False)
class Worker:
    """A worker, as the pool sees it.

    Args:
        index: its number, from 0.
        process: the worker's process.
        connection: to the process.
        slots: memory of tasks and answers.
        free: slots that hold neither.
        tasks: numbers and slots of tasks in progress; the first is running.
        since: when the first one started.
        current: the job whose operation it has.
    """

    index: int
    process: BaseProcess
    connection: Connection
    slots: Sequence[Memory]
    free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    tasks: deque[tuple[int, int]] = field(default_factory=deque)
    since: float = 0.0
    current: Job | None = None


@dataclass
class Answer:
    """An answer that waits for its turn; release it to free its slot."""

    memory: Memory
    content: bytes
    failed: bool
    worker: Worker
    slot: int


@dataclass(eq=False)
class Job:
    """An operation's tasks.

    Args:
        content: the operation's bytes, for workers that do not have it yet.
        count: number of tasks.
        pack: puts a task into a slot's memory.
        name: a task's name in messages.
        pinned: the number of the worker that each task must go to; default: any worker.
    """

    content: bytes
    count: int
    pack: Callable[[int, Memory], bytes]
    name: Callable[[int], str]
    pinned: Sequence[int] | None = None
    answers: dict[int, Answer] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)
    waiting: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = list(range(self.count))


class Pool:
    """Distributes tasks to workers, and receives their answers.

    Workers start when there are tasks for them. A worker that ends, or does not answer in time, is replaced, and its
    tasks are run again.

    Args:
        count: number of workers, at most.
        start: starts the process of a worker.
        timeout: seconds that a task may take.
        advice: what to do if workers are lost repeatedly.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int, Connection, Sequence[Memory]], BaseProcess],
        timeout: float,
        advice: str,
    ) -> None:
        self.count, self.timeout = count, timeout
        self.work: Job | None = None
        self._start, self._advice = start, advice
        self._workers: dict[int, Worker] = {}
        self._selector = selectors.DefaultSelector()
        weakref.finalize(self, _end, self._workers, self._selector, os.getpid())

    def close(self) -> None:
        """Kill all workers."""
        self.work = None
        _end(self._workers, self._selector, os.getpid())

    def abandon(self) -> None:
        """Abandon the current job, and wait until no worker runs its tasks."""
        self.work = None
        while any(worker.tasks for worker in self._workers.values()):
            self._listen()
        for worker in self._workers.values():
            worker.free = list(range(SLOTS))

    def begin(self, work: Job) -> None:
        self.work = work
        self._hand_out(work)

    def answer(self, work: Job, number: int) -> Answer:
        """Wait for the answer to a task, and return it.

        Raises:
            RuntimeError: workers end or hang repeatedly, or another operation was started.
        """
        while number not in work.answers:
            if self.work is not work:
                raise RuntimeError("Another operation was started on these clients before this one was complete.")
            self._hand_out(work)
            self._listen()
        return work.answers.pop(number)

    def release(self, work: Job, answer: Answer) -> None:
        """Free the slot of an answer, for the next task."""
        if self.work is work:
            answer.worker.free.append(answer.slot)
            self._hand_out(work)

    def _hand_out(self, work: Job) -> None:
        while work.waiting:
            worker = self._ready(None if work.pinned is None else work.pinned[work.waiting[0]] % self.count)
            if worker is None:
                return
            number, slot = heapq.heappop(work.waiting), worker.free.pop()
            task = work.pack(number, worker.slots[slot])
            request = Request(number, slot, task, None if worker.current is work else work.content)
            if not worker.tasks:
                worker.since = time.monotonic()
            worker.tasks.append((number, slot))
            worker.current = work
            # If the worker has ended, _listen finds out, after the answers that it sent before.
            with suppress(OSError):
                worker.connection.send_bytes(pickle.dumps(tuple(request)))

    def _ready(self, index: int | None) -> Worker | None:
        """Return a worker that can take a task: the one with the fewest, or a new one, or the one of this index."""
        workers = self._workers
        if index is not None:
            there = [workers[index] if index in workers else self._start_worker(index)]
        else:
            there = list(workers.values())
        able = [worker for worker in there if worker.free and len(worker.tasks) < AHEAD]
        if index is None and len(workers) < self.count and all(worker.tasks for worker in able):
            # No worker is idle. Perhaps none can take a task at all: waiting answers can fill all slots.
            return self._start_worker(min(set(range(self.count)) - set(workers)))
        return min(able, key=lambda worker: len(worker.tasks), default=None)

    def _start_worker(self, index: int) -> Worker:
        here, there = multiprocessing.Pipe()
        slots = [Memory() for _ in range(SLOTS)]
        worker = Worker(index, self._start(index, there, slots), here, slots)
        there.close()
        self._workers[index] = worker
        self._selector.register(here, selectors.EVENT_READ, worker)
        return worker

    def _listen(self) -> None:
        """Wait until a worker answers, ends, or exceeds its time."""
        busy = [worker for worker in self._workers.values() if worker.tasks]
        until = min(worker.since for worker in busy) + self.timeout
        heard = [key.data for key, _ in self._selector.select(max(0.0, until - time.monotonic()))]
        for worker in heard:
            self._hear(worker)
        for worker in busy:
            if worker not in heard and time.monotonic() - worker.since > self.timeout:
                worker.process.kill()
                self._lost(worker, f"did not answer within {self.timeout:g} seconds and was ended")

    def _hear(self, worker: Worker) -> None:
        try:
            response = Response(*pickle.loads(worker.connection.recv_bytes()))
        except (EOFError, OSError):
            self._lost(worker)
            return
        number, slot = worker.tasks.popleft()
        worker.since = time.monotonic()
        if self.work is not None:
            self.work.answers[number] = Answer(worker.slots[slot], response.content, response.failed, worker, slot)

    def _lost(self, worker: Worker, why: str = "") -> None:
        worker.process.join(timeout=5)
        why = why or _cause(worker.process.exitcode)
        _end({worker.index: self._workers.pop(worker.index)}, self._selector, os.getpid())
        work = self.work
        if work is None or not worker.tasks:
            log.warning("A worker process %s.", why)
            return
        # Only the first of its tasks was running.
        suspect = worker.tasks[0][0]
        work.losses[suspect] += 1
        if work.losses[suspect] == TRIES:
            raise RuntimeError(
                f"{TRIES} worker processes in a row were lost at {work.name(suspect)}; the last one {why}. "
                f"{self._advice}"
            )
        log.warning("A worker process %s at %s; another one runs it again.", why, work.name(suspect))
        for number, _ in worker.tasks:
            heapq.heappush(work.waiting, number)


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}" if code else "ended"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (", perhaps because memory is short" if name == "SIGKILL" else "")


def _end(workers: dict[int, Worker], selector: selectors.BaseSelector, owner: int) -> None:
    """Kill workers. They keep no state, so nothing is lost."""
    if os.getpid() != owner:  # a forked process has copies of these objects
        return
    for worker in workers.values():
        worker.process.kill()
        selector.unregister(worker.connection)
        worker.connection.close()
    for worker in workers.values():
        worker.process.join()
    workers.clear()
