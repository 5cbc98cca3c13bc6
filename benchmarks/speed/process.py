"""Contenders as processes that take turns: one works, all others are stopped."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds to wait for an answer."""


class ContenderFailed(RuntimeError):  # noqa: N818 (it names the event)
    """A contender ended or stopped answering; the message ends with the last line it wrote."""


class Running:
    """A contender's process with its children, and its answers.

    Args:
        command: what to run.
        log: file for everything it writes besides its answers.
        environment: additional variables.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._began = time.time()
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | dict(environment),
                start_new_session=True,  # Ctrl-C reaches only the benchmark, which ends its contenders itself
                preexec_fn=_end_with_parent,
            )

    def first(self) -> dict[str, Any]:
        """Wait for the first round; return ``"first"``, the seconds from the start to its end, and ``"moved"``."""
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer | {"first": answer["first"] - self._began}

    def turn(self, rounds: int, watch: Callable[[], None] | None = None) -> list[float]:
        """Let it work a number of rounds.

        Args:
            rounds: number of rounds.
            watch: called repeatedly meanwhile.

        Returns:
            The seconds of each round.
        """
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        seconds: list[float] = self._answer(watch)["seconds"]
        self._signal(signal.SIGSTOP)
        return seconds

    def memory(self) -> float:
        """Return the megabytes of all its processes: proportional set sizes, which count shared memory once."""
        return sum(_proportional(pid) for pid in self._tree()) / 1024

    def close(self) -> None:
        """Tell it to end, and after a few seconds kill it."""
        tree = self._tree()
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write("stop\n")
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pid in reversed(tree):  # the remaining processes
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _answer(self, watch: Callable[[], None] | None = None) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(0.02 if watch else 1.0):
                if watch:
                    watch()
                if time.monotonic() > until:
                    raise ContenderFailed(f"no answer for {PATIENCE:.0f} s; {self._last_words()}")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(10)
            raise ContenderFailed(f"it ended with exit code {self._process.returncode}; {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its last line: {lines[-1][:200]}" if lines else "it wrote nothing"

    def _tree(self) -> list[int]:
        return descendants(self._process.pid)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._tree():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return a process and its descendants, parents before children.

    >>> os.getpid() in descendants(os.getpid())
    True
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _end_with_parent() -> None:
    """Ask Linux to kill this process when the benchmark is gone: a stopped contender would wait forever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _proportional(pid: int) -> int:
    """Return a process' kilobytes; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
