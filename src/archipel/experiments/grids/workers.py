"""Cells in worker processes: one that fails, dies, hangs or is interrupted does not affect the others.

The processes are pebble's. If a worker dies, pebble names its task and the exit code, replaces it, and keeps the others
running; it also ends a task after a timeout. loky and ``concurrent.futures`` have no such timeout, and declare the
whole pool broken when a worker dies.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import IO, Any, Literal

import torch
from pebble import ProcessExpired, ProcessPool

from archipel.algorithm import DivergenceError

Perform = Callable[[Any, Path], float]
Task = tuple[str, tuple[Any, Path]]
"""A cell's name, and the arguments of :data:`Perform`: the cell and its folder."""

LOG = "log.txt"
NEVER_STARTED = (
    "no worker process could start. A script must call run_grid below `if __name__ == '__main__':`, because each "
    "worker imports the script; workers=1 needs no processes"
)
log = logging.getLogger("archipel")


@dataclass(frozen=True)
class Event:
    """What happened to a cell.

    Args:
        kind: of the event.
        task: the cell's name.
        seconds: that the cell took, if it is done.
        message: why it failed.
    """

    kind: Literal["started", "done", "failed", "stopped"]
    task: str
    seconds: float = 0.0
    message: str = ""


def in_this_process(perform: Perform, tasks: Sequence[Task]) -> Generator[Event]:
    """Perform the tasks one after the other."""
    for name, (what, folder) in tasks:
        yield Event("started", name)
        event = _attempt(perform, name, what, folder)
        if event.kind == "stopped":
            raise KeyboardInterrupt
        yield event


def in_processes(
    perform: Perform, tasks: Sequence[Task], workers: int, timeout: float | None = None
) -> Generator[Event]:
    """Perform the tasks in the order given, as many at a time as there are workers.

    When the generator is closed or interrupted, each running task is interrupted once, as by Ctrl-C, and awaited. A
    second Ctrl-C ends all processes at once.

    Args:
        perform: what to do with a task.
        tasks: in the order of their start.
        workers: number of processes.
        timeout: seconds after which a task is ended and counts as failed; ``None``: no limit.
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may deadlock
    stop = context.Event()
    waiting = list(reversed(tasks))
    running: dict[Future[Event], str] = {}
    pool = ProcessPool(min(workers, len(tasks)), initializer=_begin, initargs=(stop,), context=context)
    with _one_thread():
        try:
            while running or waiting:
                # No more tasks than workers are given out, so that a task that was given out runs.
                while waiting and len(running) < workers:
                    name, (what, folder) = waiting.pop()
                    if not pool.active:
                        yield Event("failed", name, message=NEVER_STARTED)
                        continue
                    future: Future[Event] = pool.schedule(_attempt, (perform, name, what, folder), timeout=timeout)
                    running[future] = name
                    yield Event("started", name)
                for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    yield _outcome(future, running.pop(future), timeout)
                if running and not pool.active:  # pebble's own threads have failed
                    yield from (Event("failed", name, message=NEVER_STARTED) for name in running.values())
                    running.clear()
        except BaseException:
            if running:
                log.warning("Stopping: running cells finish their round and are saved. Ctrl-C again stops at once.")
            stop.set()
            wait(running)
            raise
        finally:
            pool.stop()
            pool.join()


def _outcome(future: Future[Event], name: str, timeout: float | None) -> Event:
    """Return what a worker says of its task, or why it says nothing."""
    try:
        return future.result()
    except ProcessExpired as expired:
        code = expired.exitcode
        why = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return Event("failed", name, message=f"its process ended {why}: out of memory, or killed?")
    except TimeoutError:
        return Event("failed", name, message=f"it took longer than {timeout:g} s, and was ended")
    except (KeyboardInterrupt, CancelledError):
        return Event("stopped", name, message="it was interrupted")
    except Exception as error:  # pebble declares its pool broken
        return Event("failed", name, message=f"{NEVER_STARTED}: {error}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start here compute with one thread: libraries read these variables when they are loaded."""
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

_working = threading.Event()
_stops: list[Flag] = []
"""The parent's request to stop; empty outside of a worker."""


def _begin(stop: Flag) -> None:
    """Prepare a worker: one thread, interrupted by the parent alone, ended with the parent."""
    _stops.append(stop)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal's Ctrl-C reaches the parent alone, which then interrupts each worker exactly once
    threading.Thread(target=_interrupt_on, args=(stop,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _interrupt_on(stop: Flag) -> None:
    stop.wait()
    if _working.is_set():
        os.kill(os.getpid(), signal.SIGINT)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when the parent is gone, whatever ended it
        os._exit(1)


def _attempt(perform: Perform, name: str, what: Any, folder: Path) -> Event:
    """Perform a task with its output in its folder's log, and return what happened."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("a", buffering=1) as file, _written_to(file):
            try:
                _working.set()
                if any(stop.is_set() for stop in _stops):  # before this task began
                    raise KeyboardInterrupt
                return Event("done", name, seconds=perform(what, folder))
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                _working.clear()
    except KeyboardInterrupt:
        return Event("stopped", name, message="it was interrupted")
    except (ValueError, OSError, ImportError, DivergenceError) as error:
        return Event("failed", name, message=str(error))
    except SystemExit as error:
        return Event("failed", name, message=f"it called sys.exit({error.code!r}); {_where(folder)}")
    except Exception as error:
        return Event("failed", name, message=f"{type(error).__name__}: {error}; {_where(folder)}")


def _where(folder: Path) -> str:
    return f"its traceback is in {folder / LOG}"


@contextmanager
def _written_to(file: IO[str]) -> Iterator[None]:
    """Send what is printed and logged to the file; other handlers keep only warnings."""
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
