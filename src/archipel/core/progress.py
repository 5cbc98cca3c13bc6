"""Progress of a run: rounds, loss, rate and time left."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

log = logging.getLogger("archipel")


class RoundBar:
    """A progress bar over rounds on the error stream; a log line for each evaluation if that is not a terminal."""

    def __init__(self, title: str, rounds: int, done: int, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=False,
        )
        self._task = self._progress.add_task(title, total=rounds, completed=done, rate="", note="")
        self._shown = self._progress.console.is_terminal and not self._progress.console.quiet
        self._rounds = rounds

    def __enter__(self) -> Self:
        if self._shown:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:  # stopping prints a line, even if nothing was shown
            self._progress.stop()

    def update(self, record: dict[str, Any]) -> None:
        """Advance by one round."""
        note = " ".join(f"{name} {record[name]:.3f}" for name in ("loss",) if name in record)
        for name, value in record.get("metrics", {}).items():
            if name.startswith("system"):
                note += f" {name.replace('_', ' ')} {value:.3f}"
        if not self._shown and "metrics" in record:
            log.info("round %d of %d: %s", record["round"], self._rounds, note)  # so that a log file shows progress
        rate = 1 / record["seconds"] if record["seconds"] else 0.0
        shown = f"{rate:.1f} rounds/s" if rate >= 1 else f"{record['seconds']:.1f} s/round"
        self._progress.update(self._task, advance=1, rate=shown, note=note)
