"""Events of a run: ``events.jsonl``, one JSON object a line, for people and programs that watch it.

Every line has ``time`` (UTC, ISO 8601) and ``event``:

- ``started``: ``round`` (rounds done before), ``rounds``, ``method``, ``clients``, ``process``;
- ``round``: the round's record as in ``metrics.jsonl``, and ``who`` took part, by name, up to 100 clients;
- ``checkpoint``: ``round``;
- at the end ``ended``, ``interrupted`` (Ctrl-C, SIGTERM) or ``failed``, with ``why``.

A line is written at once. Lines are appended: rounds that a resumed run repeats stand there twice. A run that ends
without a last event was killed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from archipel.core.lock import is_locked

EVENTS = "events.jsonl"
MOST_NAMES = 100
ENDS = ("ended", "interrupted", "failed")
State = Literal["running", "complete", "stopped", "interrupted", "failed", "killed"]


def add_event(folder: Path, event: str, **facts: Any) -> None:
    """Append an event to a run's folder."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with (folder / EVENTS).open("a") as file:
        file.write(json.dumps({"time": now, "event": event} | facts) + "\n")


def read_events(folder: Path, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the events from a place in the file on, and the place after them. An unfinished last line is left out.

    Raises:
        FileNotFoundError: the folder has no events.
    """
    path, found = folder / EVENTS, []
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {EVENTS}: no run was trained there.")
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            start += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a line that was cut short when the disk was full or the machine stopped
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                found.append(event)
    return found, start


@dataclass(frozen=True)
class Status:
    """Where a run stands.

    Args:
        state: ``"running"``; ``"complete"``: all rounds are done; ``"stopped"``: fewer, as its caller or early stopping
            wanted; ``"interrupted"``, ``"failed"``; or ``"killed"``: it ended without a word.
        round: the last round done.
        rounds: of the whole run.
        checkpoint: the last checkpoint's round; ``None``: there is none yet.
        method: the algorithm's class.
        clients: how many there are.
        seconds: of the last round; ``None`` before the first.
        dropped: who was left out of the last round, and why.
        metrics: of the last evaluation.
        why: what ended a run that failed or was interrupted.
        since: the time of the last event.
    """

    state: State
    round: int
    rounds: int
    checkpoint: int | None
    method: str
    clients: int
    seconds: float | None
    dropped: dict[str, str]
    metrics: dict[str, float]
    why: str
    since: str


def status(folder: Path) -> Status:
    """Tell where the run in a folder stands, from its events and its lock.

    Raises:
        FileNotFoundError: no run was trained there.
    """
    found: dict[str, Any] = {"round": 0, "rounds": 0, "checkpoint": None, "method": "", "clients": 0, "seconds": None}
    found |= {"dropped": {}, "metrics": {}, "why": "", "since": ""}
    last = ""
    for event in read_events(folder)[0]:
        last, found["since"] = event["event"], event.get("time", "")
        if last == "started":
            found |= {name: event.get(name, found[name]) for name in ("round", "rounds", "method", "clients")}
            found["why"] = ""
        elif last == "round":
            found |= {"round": event["round"], "seconds": event.get("seconds"), "dropped": event.get("dropped", {})}
            found["metrics"] = event.get("metrics", found["metrics"])
        elif last == "checkpoint":
            found["checkpoint"] = event["round"]
        elif last in ENDS:
            found["why"] = event.get("why", "")
    state: State
    if is_locked(folder):
        state = "running"
    elif last == "ended":
        state = "complete" if found["round"] >= found["rounds"] else "stopped"
    else:
        state = "interrupted" if last == "interrupted" else "failed" if last == "failed" else "killed"
    return Status(state=state, **found)
