"""The commands that watch a run: ``status`` and ``tail``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.cli.console import echo
from archipel.cli.options import AsJson, Folder

if TYPE_CHECKING:
    from archipel.runs.events import Status

POLL = 0.5
"""Seconds between two looks at a run that is followed."""


def status(folder: Folder, as_json: AsJson = False) -> None:
    """Tell where a run stands: running, complete, stopped, interrupted, failed or killed."""
    from archipel.runs.events import status as status_of

    found = status_of(folder)
    if as_json:
        echo(json.dumps(asdict(found)))
        return
    for line in _described(found, folder):
        echo(line)


def tail(
    folder: Folder,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Events to show at first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show further events until the run ends.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="With --follow: end after so many seconds.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last events of a run, and with --follow the next ones."""
    from archipel.core.lock import is_locked
    from archipel.runs.events import read_events

    def show(event: dict[str, Any]) -> None:
        echo(json.dumps(event) if as_json else _told(event))

    known, place = read_events(folder)
    for event in known[len(known) - lines :] if lines < len(known) else known:
        show(event)
    end = None if seconds is None else time.monotonic() + seconds
    while follow:
        running = is_locked(folder)  # before the look: what is written in between is seen
        new, place = read_events(folder, place)
        for event in new:
            show(event)
        if not running or (end is not None and time.monotonic() >= end):
            break
        time.sleep(POLL)


def _described(found: Status, folder: Path) -> list[str]:
    lines = [
        f"{folder}: {found.state}, round {found.round} of {found.rounds} ({found.method}, {found.clients} clients)"
    ]
    if found.why:
        lines.append(f"why:        {found.why}")
    if found.seconds is not None:
        left = (found.rounds - found.round) * found.seconds
        pace = f"{found.seconds:.2g} s a round"
        lines.append(f"pace:       {pace}{f', about {left:.0f} s left' if found.state == 'running' else ''}")
    lines.append(f"checkpoint: {'none yet' if found.checkpoint is None else f'round {found.checkpoint}'}")
    if found.metrics:
        lines.append("metrics:    " + ", ".join(f"{name} {value:.4g}" for name, value in found.metrics.items()))
    if found.dropped:
        lines.append("left out:   " + "; ".join(f"{name} ({why})" for name, why in found.dropped.items()))
    if found.state in ("interrupted", "failed", "killed"):
        lines.append("The command that started it resumes it from the checkpoint.")
    return lines


def _told(event: dict[str, Any]) -> str:
    facts = {name: value for name, value in event.items() if name not in ("time", "event", "who")}
    shown = "; ".join(f"{name} {_shown(value)}" for name, value in facts.items())
    return f"{event.get('time', '')} {event['event']}: {shown}".rstrip(": ")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
