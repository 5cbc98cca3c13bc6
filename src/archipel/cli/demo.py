"""The command ``archipel demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.console import out, quiet
from archipel.cli.options import Fresh


def demo(
    rounds: Annotated[int | None, typer.Option(min=1, help="The number of rounds; default: 30.")] = None,
    out_dir: Annotated[Path, typer.Option("--out", help="The folder that the demo's own folder is made in.")] = Path(
        "runs"
    ),
    source: Annotated[
        str | None, typer.Option(help="fashion-mnist or digits; default: fashion-mnist if its files are found.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train FedAvg, FedSPM and an oracle on clients that differ, and compare them. A few minutes."""
    from archipel.reports.demo import show_demo

    quiet()
    show_demo(out_dir, source, rounds, fresh, out)
