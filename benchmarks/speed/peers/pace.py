"""The protocol between contender and benchmark: a contender works the rounds it is told, and returns their times."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FOREVER = 1_000_000
"""Number of rounds given to frameworks that need one; the benchmark ends them earlier."""


class Pace:
    """One end of the conversation; the other is :class:`speed.process.Running`.

    A contender calls :meth:`mark` at the end of each round. The first round is told apart, since it holds whatever is
    compiled, opened or allocated once. Between turns :meth:`mark` waits, outside of what is timed.
    """

    def __init__(self) -> None:
        # What frameworks print goes to the error stream, so that this stream holds answers alone.
        sys.stdout.flush()
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._seconds: list[float] | None = None
        self._left = 0
        self._began = 0.0

    def mark(self, moved: Callable[[], float] | None = None) -> None:
        """Mark the end of a round.

        Args:
            moved: how far the shared model has moved from its start, asked for after the first round: whoever did the
                same work moved about as far.

        Raises:
            SystemExit: that was the last turn.
        """
        now = time.perf_counter()
        if self._seconds is None:
            self._say({"first": time.time(), "moved": None if moved is None else moved()})
            self._wait()
        else:
            self._seconds.append(now - self._began)
            self._left -= 1
            if self._left == 0:
                self._say({"seconds": self._seconds})
                self._wait()
        self._began = time.perf_counter()

    def _say(self, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line.strip().isdigit():
            raise SystemExit(0)
        self._left, self._seconds = int(line), []
