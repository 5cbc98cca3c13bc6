"""Threads that run steps: results in order, with the same bits for any number of threads."""

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

    They pay for large operations, in which torch releases the interpreter. Two threads cannot call one module
    functionally at the same time, so that each thread has its own.

    Args:
        algorithm: whose steps are run.
        workers: number of threads.
    """

    def __init__(self, algorithm: Algorithm, workers: int) -> None:
        self.algorithm, self.workers = algorithm, workers
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Step, Task], Result], step: Step, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield ``function(step, task)`` for each task, in order; each thread has its own copy of the step."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "archipel", torch.set_num_threads, (1,))
        # At most two tasks a worker are in progress, so that results that wait for their turn do not pile up.
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
        # A step is a method of the algorithm, or of an object that holds it: the copy replaces the original.
        return function(copy.deepcopy(step, {id(self.algorithm): self._local.algorithm}), task)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
