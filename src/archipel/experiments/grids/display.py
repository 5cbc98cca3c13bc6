"""The progress of a grid: finished and running cells, elapsed and remaining time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from archipel.experiments.grids.workers import Event

log = logging.getLogger("archipel")
SHOWN = 4
"""Largest number of running cells shown by name."""


class GridBar:
    """A progress bar over a grid's cells; one line for each cell if the console is not a terminal."""

    def __init__(
        self, costs: Mapping[str, float], seconds: Mapping[str, float], workers: int, console: Console
    ) -> None:
        self._costs, self._seconds, self._workers = dict(costs), dict(seconds), workers
        self._began: dict[str, float] = {}
        self._failed: set[str] = set()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[running]}"),
            console=console,
            # cells that run in this process write to a file of their own, not through the bar
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("cells", total=len(costs), completed=len(seconds), left="", running="")

    def __enter__(self) -> Self:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress.console.is_terminal:
            self._progress.stop()

    def update(self, event: Event) -> None:
        """Record what happened to a cell."""
        if event.kind == "started":
            self._began[event.task] = time.perf_counter()
        else:
            self._began.pop(event.task, None)
            if event.kind == "done":
                self._seconds[event.task] = event.seconds
            else:
                self._failed.add(event.task)
            self._say(event)
        estimate = self.seconds_left()
        left = "" if estimate is None else f"{timedelta(seconds=round(estimate))} left"
        more = len(self._began) - SHOWN
        running = ", ".join(list(self._began)[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        completed = len(self._seconds) + len(self._failed)
        self._progress.update(self._task, completed=completed, left=left, running=escape(running))

    def seconds_left(self) -> float | None:
        """Estimate the remaining time from finished cells; ``None`` if there are none."""
        over = self._seconds.keys() | self._failed
        passed = [(self._costs[name], time.perf_counter() - began) for name, began in self._began.items()]
        waiting = [c for name, c in self._costs.items() if name not in over and name not in self._began]
        done = [(self._costs[name], seconds) for name, seconds in self._seconds.items()]
        return time_left(done, passed, waiting, self._workers)

    def _say(self, event: Event) -> None:
        words = f"done in {event.seconds:.0f} s" if event.kind == "done" else f"failed: {event.message}"
        over = len(self._seconds) + len(self._failed)
        line = f"{event.task}: {words} ({over} of {len(self._costs)})"
        if not self._progress.console.is_terminal:
            log.info("%s", line)
        elif event.kind == "failed":
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def time_left(
    done: Sequence[tuple[float, float]],
    running: Sequence[tuple[float, float]],
    waiting: Sequence[float],
    workers: int,
) -> float | None:
    """Estimate the seconds until a grid is done, if a cell's time is proportional to its cost.

    Args:
        done: cost and seconds of each finished cell.
        running: cost and seconds so far of each running cell.
        waiting: cost of each cell that has not begun.
        workers: how many run at a time.

    Returns:
        The larger of an even share of the remaining time and the longest remaining cell; ``None`` if nothing is done.

    >>> time_left([(1.0, 10.0), (2.0, 20.0)], [(1.0, 4.0)], [3.0, 1.0], workers=2)
    30.0
    """
    if not done:
        return None
    rate = sum(seconds for _, seconds in done) / sum(cost for cost, _ in done)
    left = [max(rate * cost - seconds, 0.0) for cost, seconds in running] + [rate * cost for cost in waiting]
    return max(sum(left) / workers, max(left, default=0.0))
