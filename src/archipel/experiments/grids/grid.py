"""A grid of independent cells, run in parallel: finished cells are kept, and the same call resumes the grid."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from archipel.core.lock import locked
from archipel.experiments.grids.display import GridBar
from archipel.experiments.grids.workers import Event, in_processes, in_this_process
from archipel.experiments.running import flat
from archipel.runs.identity import describe

RESULT = "result.json"


@dataclass(frozen=True)
class Cell:
    """One piece of work of a grid.

    Args:
        name: the cell's folder below the grid's, as in ``"fedavg/seed0"``; no cell's folder lies inside another's.
        work: a function at the top level of a module or script, which maps ``(folder, **arguments)`` to a dict of
            JSON's types. Files in its folder are still there when it is called again after an interruption.
        arguments: of JSON's types, paths or dataclasses. A result is reused only for equal arguments.
        cost: expected time relative to other cells; the longest begin first.
    """

    name: str
    work: Callable[..., dict[str, Any]]
    arguments: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0

    def __post_init__(self) -> None:
        parts = Path(self.name).parts
        if not parts or ".." in parts or Path(self.name).is_absolute():
            raise ValueError(
                f"A cell's name must be a folder below its grid's, such as 'fedavg/seed0'; given {self.name!r}."
            )
        if "<" in (where := getattr(self.work, "__qualname__", "<>")):
            raise ValueError(
                f"The work of cell {self.name} must be a function at the top level of a module, so that another "
                f"process can import it; given {where}."
            )
        if not self.cost > 0:
            raise ValueError(f"The cost of cell {self.name} must be above 0; given {self.cost}.")

    @property
    def record(self) -> dict[str, Any]:
        """Work and arguments in JSON's types."""
        arguments = {name: _plain(value) for name, value in self.arguments.items()}
        record = {"work": _identity(self.work), "arguments": arguments}
        found: dict[str, Any] = json.loads(json.dumps(record))  # tuples become lists, as in the file
        return found

    @property
    def fingerprint(self) -> str:
        """SHA-256 of work and arguments."""
        return hashlib.sha256(json.dumps(self.record, sort_keys=True).encode()).hexdigest()


class CellsFailed(ValueError):  # noqa: N818 (it names the event)
    """Some cells failed; all others are done.

    Args:
        results: of the finished cells, by name.
        messages: of the failed cells, by name.
    """

    def __init__(self, results: dict[str, dict[str, Any]], messages: dict[str, str]) -> None:
        self.results, self.messages = results, messages
        lines = "\n".join(f"  {name}: {message}" for name, message in messages.items())
        many = f"{len(messages)} of {len(messages) + len(results)} cells failed"
        super().__init__(f"{many}; the others are done. The same command tries the failed ones again.\n{lines}")


def run_grid(
    cells: Sequence[Cell],
    folder: str | Path,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> dict[str, dict[str, Any]]:
    """Run the cells that are not done yet.

    A cell's result is written to ``folder/name/result.json`` in one step, and what the cell prints goes to ``log.txt``
    beside it. A failed cell does not affect the others. Ctrl-C interrupts each running cell once, so that a run
    finishes its round and is saved; a second Ctrl-C ends all of them at once.

    Args:
        cells: in the order of the results.
        folder: of the grid.
        workers: number of processes, with one torch thread each; default: one a core. With 1 and without a timeout the
            cells run in this process, one after the other.
        timeout: seconds after which a cell is ended and counts as failed; default: no limit.
        fresh: delete the cells' folders and run all of them.
        console: where progress is shown; default: the error stream.

    Returns:
        What each cell's work returned, by the cell's name.

    Raises:
        ValueError: a result in the folder was made with other arguments, two cells' folders overlap, a cell cannot be
            sent to another process, or another command works in the folder.
        CellsFailed: some cells failed; a ValueError that holds the other cells' results.
        KeyboardInterrupt: after Ctrl-C; the message says how many cells are done.

    >>> import tempfile
    >>> def square(folder, x):
    ...     return {"square": x * x}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_grid([Cell(f"x{x}", square, {"x": x}) for x in (2, 3)], folder, workers=1)
    {'x2': {'square': 4}, 'x3': {'square': 9}}
    """
    place = Path(folder)
    _check_names(cells)
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise ValueError(f"workers must be a whole number of at least 1; given {workers!r}.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0; given {timeout!r}.")
    if workers != 1 or timeout is not None:
        for cell in cells:
            _check_travels(cell)
    if fresh:
        with locked(place):
            for cell in cells:
                if (place / cell.name).exists():
                    shutil.rmtree(place / cell.name)
    records = _records(cells, place)
    messages: dict[str, str] = {}
    if len(records) < len(cells):
        with locked(place):
            messages = _complete(cells, place, workers, timeout, console)
        records = _records(cells, place)
    results = {cell.name: records[cell.name]["result"] for cell in cells if cell.name in records}
    if messages:
        raise CellsFailed(results, messages)
    return results


def _complete(
    cells: Sequence[Cell], place: Path, workers: int | None, timeout: float | None, console: Console | None
) -> dict[str, str]:
    """Run the cells that are not done, and return the messages of those that failed."""
    records = _records(cells, place)  # another command may have finished some before this one had the lock
    left = sorted((cell for cell in cells if cell.name not in records), key=lambda cell: -cell.cost)
    count = min(workers or _cores(), max(len(left), 1))
    events = _events(left, place, count, timeout)
    costs = {cell.name: cell.cost for cell in cells}
    seconds = {name: float(record["seconds"]) for name, record in records.items()}
    messages: dict[str, str] = {}
    with GridBar(costs, seconds, count, console or Console(stderr=True)) as bar:
        try:
            for event in events:
                bar.update(event)
                if event.kind in ("failed", "stopped"):
                    messages[event.task] = event.message
        except KeyboardInterrupt:
            events.close()  # waits for running cells, which may still finish
            raise KeyboardInterrupt(
                f"Stopped: {len(_records(cells, place))} of {len(cells)} cells are done, in {place}. The same command "
                "resumes the grid, and interrupted cells from their last checkpoints."
            ) from None
        finally:
            events.close()
    return messages


def _records(cells: Sequence[Cell], place: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the cells that are done."""
    return {cell.name: record for cell in cells if (record := _read(cell, place))}


def perform(cell: Cell, folder: Path) -> float:
    """Do a cell's work in its folder, write its result, and return the seconds it took."""
    began = time.perf_counter()
    result = cell.work(folder, **cell.arguments)
    seconds = time.perf_counter() - began
    record = {"fingerprint": cell.fingerprint, **cell.record, "seconds": float(f"{seconds:.4g}"), "result": result}
    new = folder / f"{RESULT}.new"
    new.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(new, folder / RESULT)  # in one step
    return seconds


def _events(left: Sequence[Cell], place: Path, workers: int, timeout: float | None) -> Generator[Event]:
    tasks = [(cell.name, (cell, place / cell.name)) for cell in left]
    if workers == 1 and timeout is None:
        return in_this_process(perform, tasks)
    return in_processes(perform, tasks, workers, timeout)


def _read(cell: Cell, place: Path) -> dict[str, Any] | None:
    """Return a cell's record, or ``None`` if it is not done."""
    path = place / cell.name / RESULT
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        there, here = flat(record["arguments"]), flat(cell.record["arguments"])
        fingerprint, _, _ = record["fingerprint"], float(record["seconds"]), record["result"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a cell's result: {error}. Remove it, or start anew with --fresh.") from None
    if fingerprint == cell.fingerprint:
        return record
    differ = [key for key in there | here if there.get(key, "not set") != here.get(key, "not set")]
    lines = [f"  {key}: {there.get(key, 'not set')} there, {here.get(key, 'not set')} now" for key in differ]
    if not lines:
        lines = [f"  made by {record.get('work')} there, by {cell.record['work']} now"]
    raise ValueError(
        f"{path} was made with other settings:\n" + "\n".join(lines) + "\nGive another folder with --out, or --fresh "
        "to start anew in this one."
    )


def _check_names(cells: Sequence[Cell]) -> None:
    folders = sorted(Path(cell.name).parts for cell in cells)
    for one, other in pairwise(folders):
        if other[: len(one)] == one:
            raise ValueError(
                f"Each cell needs a folder of its own; the folders of {'/'.join(one)} and {'/'.join(other)} overlap."
            )


def _check_travels(cell: Cell) -> None:
    if cell.work.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            f"The work of cell {cell.name} is defined in an interactive session, from which another process cannot "
            "import it. Define it in a module, or give workers=1 and no timeout."
        )
    try:
        pickle.dumps(cell)
    except Exception as error:  # an object may raise anything when it is pickled
        raise ValueError(
            f"Cell {cell.name} cannot be sent to another process: {error}. Give its arguments as numbers, texts, "
            "lists, dicts and paths, for example by config.model_dump(mode='json')."
        ) from error


def _identity(work: Callable[..., Any]) -> str:
    """Name a function alike in this process and in a worker, which imports a script under another name."""
    script = getattr(sys.modules.get(work.__module__), "__file__", None)
    if work.__module__ in ("__main__", "__mp_main__") and script is not None:
        return f"{Path(script).name}:{work.__qualname__}"
    return f"{work.__module__}.{work.__qualname__}"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return describe(value) if is_dataclass(value) else value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
