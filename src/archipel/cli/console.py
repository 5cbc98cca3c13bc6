"""What the command prints, cleaned in one place.

Names of clients, classes, columns and files come from other people's data. In a terminal an escape sequence in a name
could hide text, move the cursor or set the window's title. Both consoles below, the log and :func:`echo` therefore
leave out every control character except line breaks and tabs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment

from archipel.core.checks import clean


class _Clean:
    """Something to be printed, without control characters in its text. Rich's own colours stay."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else clean(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Clean(renderable) for renderable in renderables]


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    console.push_render_hook(_Hook())
    return console


out, err = _console(), _console(stderr=True)


def echo(text: str, nl: bool = True) -> None:
    """Print text for programs: as it is, without wrapping or colours."""
    typer.echo(clean(text), nl=nl)


def say(*lines: object) -> None:
    """Print lines that may be copied: never wrapped, no markup."""
    out.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)


def tell(line: str) -> None:
    """Print a line on the error stream, beside the results."""
    err.print(line, markup=False, highlight=False, soft_wrap=True)


def complain(what: str, message: str) -> None:
    """Print an error."""
    err.print(f"[bold red]{what}:[/] {escape(message)}", highlight=False, soft_wrap=True)


def listed(paths: Iterable[object]) -> None:
    """Print the paths of written files in one line."""
    say(", ".join(str(path) for path in paths))


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(clean(self.format(record)), err=True)


def prepare(level: int = logging.INFO) -> None:
    """Send the log and warnings of Archipel to the error stream."""
    log = logging.getLogger("archipel")
    if not log.handlers:
        log.addHandler(_Handler())
        log.setLevel(level)

    def note(message: Any, *rest: Any, **more: Any) -> str:
        return f"Note: {clean(str(message))}\n"

    warnings.formatwarning = note


def quiet() -> None:
    """Leave out what runs log of themselves, such as the choice of an engine."""
    logging.getLogger("archipel").setLevel(logging.WARNING)
