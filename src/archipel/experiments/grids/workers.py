"""Tasks in worker processes: one that fails, dies or is interrupted loses no other, and no process is left behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, Literal

import torch

from archipel.algorithm import DivergenceError

Perform = Callable[[Any, Path], float]
Task = tuple[str, tuple[Any, Path]]
"""A name, and what and where to perform."""

LOG = "log.txt"
log = logging.getLogger("archipel")


@dataclass(frozen=True)
class Event:
    """What happened to a task.

    Args:
        kind: what.
        task: its name.
        seconds: it took, when it is done.
        message: why it failed.
    """

    kind: Literal["started", "done", "failed", "stopped"]
    task: str
    seconds: float = 0.0
    message: str = ""


def in_this_process(perform: Perform, tasks: Sequence[Task]) -> Generator[Event]:
    """The tasks one after the other."""
    for name, (what, folder) in tasks:
        yield Event("started", name)
        event = _attempt(perform, name, what, folder)
        if event.kind == "stopped":
            raise KeyboardInterrupt
        yield event


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: str | None = None


def in_processes(perform: Perform, tasks: Sequence[Task], workers: int) -> Generator[Event]:
    """The tasks in the order given, as many at a time as there are workers.

    When the generator is closed or interrupted, each running task is interrupted once, as by Ctrl-C, and waited for; a
    second Ctrl-C ends all processes at once.
    """
    waiting = list(reversed(tasks))
    pool = [_start(perform) for _ in range(min(workers, len(tasks)))]
    try:
        for worker in pool:
            yield _give(worker, waiting.pop())
        while busy := [worker for worker in pool if worker.task is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                yield _take(worker)
                if waiting:
                    if not worker.process.is_alive():
                        pool[pool.index(worker)] = worker = _start(perform)
                    yield _give(worker, waiting.pop())
    finally:
        _stop(pool)


def _start(perform: Perform) -> _Worker:
    here, there = multiprocessing.Pipe()
    # A new interpreter: a fork of a process with torch's threads may lock up.
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, perform), daemon=True)
    with _one_thread():
        process.start()
    there.close()  # so that the end of the process is the end of the connection
    return _Worker(process, here)


def _give(worker: _Worker, task: Task) -> Event:
    worker.task = task[0]
    worker.connection.send(task)
    return Event("started", task[0])


def _take(worker: _Worker) -> Event:
    """What a worker says of its task, or that it is gone."""
    name, worker.task = worker.task, None
    assert name is not None
    try:
        event: Event = worker.connection.recv()
        return event
    except (EOFError, OSError):
        worker.process.join(10)
        code = worker.process.exitcode
        why = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return Event("failed", name, message=f"its process ended {why}: out of memory, or killed?")


def _stop(pool: Sequence[_Worker]) -> None:
    try:
        busy = [worker for worker in pool if worker.task is not None and worker.process.is_alive()]
        if busy:
            log.warning("Stopping: what runs ends its round and is saved. Ctrl-C again stops at once.")
        for worker in busy:
            assert worker.process.pid is not None
            os.kill(worker.process.pid, signal.SIGINT)
        for worker in pool:
            if worker in busy:
                _take(worker)
            worker.connection.close()
        for worker in pool:
            worker.process.join(10)
    finally:
        for worker in pool:
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started here compute with one thread: libraries read these variables when they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# In a worker


def _serve(connection: Connection, perform: Perform) -> None:
    """Performs tasks until nobody gives any more."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal's Ctrl-C reaches the parent alone, which then interrupts each worker exactly once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        try:
            name, (what, folder) = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        connection.send(_attempt(perform, name, what, folder))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # it never returns while the parent lives, and at once when it was killed
        os._exit(1)


def _attempt(perform: Perform, name: str, what: Any, folder: Path) -> Event:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("a", buffering=1) as file, _written_to(file):
            try:
                return Event("done", name, seconds=perform(what, folder))
            except BaseException:
                traceback.print_exc()
                raise
    except KeyboardInterrupt:
        return Event("stopped", name, message="it was interrupted")
    except (ValueError, OSError, ImportError, DivergenceError) as error:
        return Event("failed", name, message=str(error))
    except Exception as error:
        where = f"its traceback is in {folder / LOG}"
        return Event("failed", name, message=f"{type(error).__name__}: {error}; {where}")


@contextmanager
def _written_to(file: IO[str]) -> Iterator[None]:
    """What is printed and logged goes to the file; elsewhere only warnings are logged."""
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    others, level = [(other, other.level) for other in log.handlers], log.level
    for other, _ in others:
        other.setLevel(max(other.level, logging.WARNING))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with redirect_stdout(file), redirect_stderr(file):
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        for other, was in others:
            other.setLevel(was)
