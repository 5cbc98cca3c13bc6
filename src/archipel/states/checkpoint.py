"""Checkpoints of a run: the server's state, and the table of the clients', as safetensors, replaced in one step."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from archipel.core.trees import Tree
from archipel.states.encoding import decode, encode
from archipel.states.table import States
from archipel.states.table_file import read_states, write_states

FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Args:
        round: rounds done.
        server: the server's state.
        clients: every client's state; of a checkpoint that was loaded, read from its file when it is asked for.
        facts: what else must be known to go on or to serve, in JSON's types.
    """

    round: int
    server: Tree
    clients: States
    facts: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Writes ``folder/checkpoint``; an interruption at any moment leaves the old one or the new one whole."""
        new, current, old = (folder / name for name in ("checkpoint.new", "checkpoint", "checkpoint.old"))
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        (new / "server.safetensors").write_bytes(encode(self.server))
        write_states(self.clients, new / "clients.safetensors")
        about = {"format": FORMAT, "round": self.round, "facts": self.facts}
        (new / "checkpoint.json").write_text(json.dumps(about))
        if current.exists():  # if not, an earlier save was interrupted, and the old one is all there is
            shutil.rmtree(old, ignore_errors=True)
            current.rename(old)
        new.rename(current)
        shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """The latest checkpoint in a run's folder, or ``None``.

        Raises:
            ValueError: files that are missing or damaged, or a format of another version.
        """
        place = folder / "checkpoint"
        if not place.exists():
            # A save was interrupted between its two renames: the old one is whole.
            place = folder / "checkpoint.old"
        if not (place / "checkpoint.json").exists():
            return None
        try:
            about = json.loads((place / "checkpoint.json").read_text())
            if about["format"] == FORMAT:
                server = decode((place / "server.safetensors").read_bytes())
                return cls(about["round"], server, read_states(place / "clients.safetensors"), about["facts"])
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError, SafetensorError) as error:
            raise ValueError(
                f"The checkpoint {place} is damaged: {error}. Put its files back from a copy, or remove the folder to "
                "start anew."
            ) from error
        raise ValueError(f"{place} has format {about['format']}; this version of archipel reads {FORMAT}.")
