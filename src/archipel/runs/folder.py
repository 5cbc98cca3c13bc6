"""A run's folder: its lock, its checkpoints and ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from archipel.core.lock import locked
from archipel.engines.carrier import Carrier
from archipel.runs.events import EVENTS, MOST_NAMES, add_event
from archipel.runs.run import Run
from archipel.states.checkpoint import LATEST, PREVIOUS, UNFINISHED, Checkpoint, discard_previous

METRICS = "metrics.jsonl"
FILES = (METRICS, EVENTS, "config.yaml", "environment.json", "evaluation.json", "tracker.json")
FOLDERS = (LATEST, UNFINISHED, PREVIOUS, "diverged", "figures", "local", "best", "tensorboard", "wandb")


class RunFolder:
    """Where a run keeps its files, or nowhere.

    Args:
        path: the folder; ``None``: nothing is written.
        identity: what the run computes, in JSON's types; a checkpoint of another identity is refused.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self.path = path
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._anew = True

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None, identity: dict[str, Any]) -> Iterator[Self]:
        """Yield the folder, locked until the end of the block.

        Raises:
            ValueError: another process is writing to it, or something else lies in a file's or folder's place.
        """
        if path is None:
            yield cls(None, identity)
            return
        with locked(path, nested=True):
            check_entries(path)
            files = cls(path, identity)
            try:
                yield files
            except KeyboardInterrupt as stop:
                files.tell("interrupted", why=str(stop))
                raise
            except Exception as error:
                with suppress(OSError):  # of a full disk, which may be why the run failed
                    files.tell("failed", why=f"{type(error).__name__}: {str(error)[:500]}")
                raise
            files.tell("ended")

    def resume(self, run: Run, carrier: Carrier) -> int:
        """Load the latest checkpoint into a run and its carrier, and return the number of rounds done.

        Raises:
            ValueError: the folder holds another run, or damaged checkpoints.
        """
        checkpoint = None if self.path is None else Checkpoint.load(self.path)
        if checkpoint is None:
            return 0
        there = checkpoint.facts.get("identity", {})
        different = [name for name, value in self._identity.items() if there.get(name) != value]
        if different:
            raise ValueError(
                f"{self.path} holds a run with another {' and '.join(different)}. Choose another folder, or start anew "
                "there with resume=False."
            )
        carrier.states.load(checkpoint.clients)
        run.server = checkpoint.server
        run.history, run.table = checkpoint.facts["history"], checkpoint.facts["table"]
        run.unadapted = checkpoint.facts.get("unadapted", [])
        self._anew = False
        return checkpoint.round

    def save(self, run: Run, carrier: Carrier) -> None:
        """Write a checkpoint."""
        if self.path is None:
            return
        self.save_to(self.path, run, carrier)
        self.tell("checkpoint", round=len(run.history))
        if self._anew:  # the previous checkpoint, if there is one, is of a run that was replaced
            discard_previous(self.path)
            self._anew = False

    def set_aside(self, run: Run, carrier: Carrier) -> Path | None:
        """Write the state of a run that diverged to the subfolder ``diverged``; checkpoints stay as they are."""
        if self.path is None:
            return None
        self.save_to(self.path / "diverged", run, carrier)
        return self.path / "diverged"

    def rescue(self, run: Run, carrier: Carrier, *, complete: bool) -> str:
        """Save a run that an exception ends, where its states are those of a whole round; say what can be resumed."""
        done = len(run.history)
        if self.path is None:
            return f"{done} rounds were done; nothing was saved, because fit was given no folder."
        if complete and run.server:
            self.save(run, carrier)
            return f"The checkpoint in {self.path} is of round {done}; the same call resumes it."
        found = Checkpoint.load(self.path)
        if found is None:
            return f"{done} rounds were done; {self.path} has no checkpoint yet."
        return f"The checkpoint in {self.path} is of round {found.round}; the same call resumes it."

    def save_to(self, place: Path, run: Run, carrier: Carrier) -> None:
        """Write a checkpoint to another folder."""
        run.clients = carrier.states
        run.save(place, self._identity | {"engine": carrier.describe()})

    def start_metrics(self, history: list[dict[str, Any]]) -> None:
        """Write ``metrics.jsonl`` as far as the history goes; later rounds are made, and written, again."""
        if self.path is not None:
            with self._metrics("w") as file:
                file.writelines(json.dumps(record) + "\n" for record in history)

    def add_metrics(self, record: dict[str, Any], who: Sequence[str]) -> None:
        """Append a round's record to ``metrics.jsonl``, and tell who took part."""
        if self.path is not None:
            with self._metrics("a") as file:
                file.write(json.dumps(record) + "\n")
            self.tell("round", **record, **({"who": list(who)} if len(who) <= MOST_NAMES else {}))

    def tell(self, event: str, **facts: Any) -> None:
        """Append an event to ``events.jsonl``; see :mod:`archipel.runs.events`."""
        if self.path is not None:
            add_event(self.path, event, **facts)

    def _metrics(self, mode: str) -> Any:
        assert self.path is not None
        check_entries(self.path)  # they may have been changed while the run lasted
        return (self.path / METRICS).open(mode)


def check_entries(folder: Path) -> None:
    """Refuse a run's folder in which something else has the name of one of the run's files or folders.

    Raises:
        ValueError: a symbolic link, a file in a folder's place, or the reverse.
    """
    for name in (*FOLDERS, *FILES):
        path = folder / name
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link, and a run does not write through it. Remove it.")
        if path.exists() and path.is_dir() != (name in FOLDERS):
            kind, other = ("folder", "file") if name in FOLDERS else ("file", "folder")
            raise ValueError(f"{path} is a {other}; a run has a {kind} of that name. Remove it.")
