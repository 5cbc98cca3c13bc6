"""Checkpoints of a run: the server's state and the table of the clients' states, as safetensors, with checksums.

A folder holds two: ``checkpoint``, the latest, and ``checkpoint.old``, the one before it. Each has the files
``server.safetensors``, ``clients.safetensors`` and ``checkpoint.json``, which holds the SHA-256 of all of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from archipel.core.trees import Tree
from archipel.states.encoding import decode, encode
from archipel.states.table import States
from archipel.states.table_file import read_states, write_states

FORMAT = 3
"""Version of the files' layout."""
LATEST, PREVIOUS, UNFINISHED = "checkpoint", "checkpoint.old", "checkpoint.new"
SERVER, CLIENTS, ABOUT = "server.safetensors", "clients.safetensors", "checkpoint.json"
SIGNATURE = ', "sha256": "'
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    RuntimeError,
    OSError,
    SafetensorError,
)
"""What reading damaged files can raise."""
log = logging.getLogger("archipel")


class FormatError(ValueError):
    """A checkpoint of another version of the format."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Args:
        round: number of rounds done.
        server: the server's state.
        clients: every client's state; those of a loaded checkpoint are read from its file when they are asked for.
        facts: what else resuming or serving needs, in JSON's types.
    """

    round: int
    server: Tree
    clients: States
    facts: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write the checkpoint; what was the latest becomes the previous one.

        An interruption, a crash or a loss of power at any moment leaves at least one whole checkpoint, if there was
        one.
        """
        new, latest, previous = (folder / name for name in (UNFINISHED, LATEST, PREVIOUS))
        shutil.rmtree(new, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        new.chmod(stat.S_IMODE(folder.stat().st_mode))  # as private as the folder itself
        (new / SERVER).write_bytes(encode(self.server))
        write_states(self.clients, new / CLIENTS)
        files = {name: _digest(new / name) for name in (SERVER, CLIENTS)}
        about = {"format": FORMAT, "round": self.round, "facts": self.facts, "files": files}
        (new / ABOUT).write_text(_signed(json.dumps(about)))
        for path in (*new.iterdir(), new):
            _flush(path)
        if latest.exists():  # if not, an earlier save was interrupted, and the previous one is all there is
            shutil.rmtree(previous, ignore_errors=True)
            latest.rename(previous)
        new.rename(latest)
        _flush(folder)

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """Read the latest whole checkpoint of a run's folder; return ``None`` where there is none.

        Where the latest is damaged the previous one is read, and a warning says so. A save that was interrupted just
        before its last step has left a whole checkpoint under another name; it is read where there is no latest one.

        Raises:
            ValueError: all checkpoints are damaged, or the format is of another version.
        """
        problems = []
        for name in (LATEST, UNFINISHED, PREVIOUS):
            if not (folder / name).exists():
                continue
            try:
                found = cls._read(folder / name)
            except FormatError:
                raise
            except DAMAGE as error:
                if name != UNFINISHED:  # most are unfinished indeed
                    problems.append(f"{folder / name} is damaged: {_sentence(error)}")
                continue
            if problems:
                log.warning("%s The previous checkpoint is used, of round %d.", problems[0], found.round)
            return found
        if problems:
            raise ValueError(f"{' '.join(problems)} Restore the files from a copy, or remove the folder to start anew.")
        return None

    @classmethod
    def _read(cls, place: Path) -> Checkpoint:
        text = (place / ABOUT).read_text()
        about = json.loads(text)
        if not isinstance(about, dict) or not isinstance(about.get("format"), int):
            raise ValueError(f"{ABOUT} does not describe a checkpoint.")
        if about["format"] != FORMAT:
            raise FormatError(
                f"{place} has format {about['format']}; this version of archipel reads format {FORMAT}. Train the run "
                "again, or read it with the version that wrote it."
            )
        if text != _signed(text.rpartition(SIGNATURE)[0] + "}"):
            raise ValueError(f"{ABOUT} does not have its checksum.")
        for name in (SERVER, CLIENTS):
            if about["files"][name] != _digest(place / name):
                raise ValueError(f"{name} does not have its checksum, or belongs to another checkpoint.")
        found = cls(about["round"], decode((place / SERVER).read_bytes()), read_states(place / CLIENTS), about["facts"])
        found._check()
        return found

    def _check(self) -> None:
        """Raise a ValueError where round, history and clients contradict each other."""
        round, facts = self.round, self.facts
        if isinstance(round, bool) or not isinstance(round, int) or round < 0:
            raise ValueError(f"its round is {round!r}, which must be a whole number of at least 0.")
        if not isinstance(facts, dict):
            raise ValueError("its facts are not a mapping.")
        history = facts.get("history")
        if history is not None and (
            len(history) != round or any(record["round"] != n for n, record in enumerate(history, start=1))
        ):
            raise ValueError(f"its history does not have the rounds 1 to {round}.")
        serving = facts.get("serving")
        if serving is not None:
            names, sizes = serving["names"], serving["sizes"]
            if len(set(names)) != len(names) or sizes != self.clients.counts.tolist() or len(names) != len(sizes):
                raise ValueError("its clients are not those that its states are of.")


def discard_previous(folder: Path) -> None:
    """Remove the previous checkpoint of a folder, where a new run has replaced an old one."""
    shutil.rmtree(folder / PREVIOUS, ignore_errors=True)


def _sentence(error: Exception) -> str:
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _signed(text: str) -> str:
    """Add the checksum of a JSON mapping's text as its last entry."""
    return f'{text[:-1]}{SIGNATURE}{hashlib.sha256(text.encode()).hexdigest()}"}}'


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
