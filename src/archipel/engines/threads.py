"""Threads that carry steps out: results in order, the same bits for any number of them."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from archipel.algorithm import Algorithm, Step

Task = TypeVar("Task")
Result = TypeVar("Result")


class Threads:
    """A pool of threads, each with one intra-op thread and a copy of the algorithm.

    They serve operations that are large: torch lets go of the interpreter inside them. A module can't be called
    functionally by two threads at a time, so that each has its own.

    Args:
        algorithm: whose steps are run.
        workers: how many.
    """

    def __init__(self, algorithm: Algorithm, workers: int) -> None:
        self.algorithm, self.workers = algorithm, workers
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Step, Task], Result], step: Step, tasks: Iterable[Task]) -> Iterator[Result]:
        """``function(step, task)`` for each task, in order; the step is each thread's own."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "archipel", torch.set_num_threads, (1,))
        # At most two tasks a worker are under way, so that results waiting for their turn don't pile up.
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(self._run, function, step, task))
                if len(waiting) == 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _run(self, function: Callable[[Step, Task], Result], step: Step, task: Task) -> Result:
        if not hasattr(self._local, "algorithm"):
            self._local.algorithm = copy.deepcopy(self.algorithm)
        # A step is a method of the algorithm, or of an object that holds it: the copy takes the original's place.
        return function(copy.deepcopy(step, {id(self.algorithm): self._local.algorithm}), task)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
