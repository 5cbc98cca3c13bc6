"""The commands that lead from runs to a decision: ``report``, ``compare`` and ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.console import say, tell
from archipel.cli.options import Imports, PositiveClass, WithLocal, import_all


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of runs.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The page; default: RUN/report.html.", show_default=False)
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN[=LIMIT,…]",
            help="Show subgroups by a column, as in age=50,65; without limits below and above the training mean.",
            show_default=False,
        ),
    ] = None,
    minimum: Annotated[
        int, typer.Option(min=1, help="Test examples of a subgroup at a site, below which it sends no counts.")
    ] = 10,
    positive: PositiveClass = None,
    local: WithLocal = False,
    title: Annotated[str | None, typer.Option(help="The page's title.", show_default=False)] = None,
    imports: Imports = None,
) -> None:
    """Write a report on runs: one HTML file without scripts, for clinicians, to be read and printed."""
    from archipel.reports.page.page import By, report

    import_all(imports)
    groups = [By.parse(text) for text in by or []]
    page = report(folders, positive=positive, local=local, by=groups, minimum=minimum, title=title)
    place = out_file or folders[0] / "report.html"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page)
    say(f"Report: {place}")
    if not local and not (folders[0] / "local").exists():
        tell("--local puts each site's training alone beside the method.")
