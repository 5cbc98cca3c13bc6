"""The commands that lead from runs to a decision: ``report``, ``compare`` and ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.bench.options import Workers, command_line
from archipel.cli.console import listed, out, quiet, say, tell
from archipel.cli.options import Fresh, Imports, PositiveClass, Settings, What, WithLocal, import_all


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


def compare(
    what: Annotated[str, typer.Argument(metavar="FOLDER|PRESET|FILE.yaml", help="Your data, a preset or a file.")],
    settings: Settings = None,
    methods: Annotated[str, typer.Option(help="Names, as in ditto,fedavg,local.")] = "fedavg,ditto,fedspm,local",
    seeds: Annotated[int, typer.Option(min=1, help="Splits of the data; each is also a seed of training.")] = 5,
    tune: Annotated[
        int, typer.Option(min=0, help="Settings that each method tries on each split; 0: as they are.")
    ] = 20,
    metric: Annotated[
        str | None, typer.Option(help="What is tuned for and compared; default: auc, or r2.", show_default=False)
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The folder; default: results/compare-NAME.", show_default=False)
    ] = None,
    workers: Workers = None,
    fresh: Fresh = False,
    imports: Imports = None,
) -> None:
    """Compare methods on the same splits, all tuned alike: paired differences, and which method for which site."""
    from archipel.experiments.comparing.comparison import base_config, compare
    from archipel.reports.comparison import write

    import_all(imports)
    quiet()
    base = base_config(what, settings or [])
    place = out_dir or Path("results") / f"compare-{base.name}"
    found = compare(
        base, methods.split(","), place / "cells", seeds=seeds, tries=tune, metric=metric, workers=workers, fresh=fresh
    )
    listed(write(found, place, command_line(), out))


def sweep(
    what: What,
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE,VALUE...", help="Settings; several values of each, by commas.")
    ],
    metric: Annotated[
        str | None, typer.Option(help="What settings are chosen by; default: auc, or r2.", show_default=False)
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The folder; default: results/sweep.", show_default=False)
    ] = None,
    workers: Workers = None,
    fresh: Fresh = False,
    imports: Imports = None,
) -> None:
    """Train a run for every combination of settings, and choose by the sites' validation examples."""
    from archipel.experiments.comparing.sweeping import sweep
    from archipel.reports.comparison import sweep_rows, sweep_table

    import_all(imports)
    quiet()
    place = out_dir or Path("results") / "sweep"
    found = sweep(what, settings, place, metric=metric, workers=workers, fresh=fresh)
    out.print(sweep_table(found))
    (place / "sweep.csv").write_text(sweep_rows(found))
    if found.best is None:
        tell("Every run diverged. Try lower learning rates.")
    else:
        best = " ".join(f"{key}={value}" for key, value in found.best.settings.items())
        say(f"Best on validation examples: {best}; on test examples: {found.metric} {found.test:.4f}")
    listed([place / "sweep.csv"])
