"""The benchmark of methods between training alone and consensus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.bench.options import Out, Seeds, Workers, command_line
from archipel.cli.console import listed, out, quiet
from archipel.cli.options import DataDir, Fresh


def consensus(
    fast: Annotated[bool, typer.Option("--fast", help="Six clients, few rounds and settings, one seed.")] = False,
    seeds: Seeds = None,
    data: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "hapt,femnist,heart-disease",
    methods: Annotated[
        str | None, typer.Option(help="Some methods, as in ditto,local,apfl; default: all.", show_default=False)
    ] = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="The number of rounds; default: 20 or 30.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compare methods between training alone and consensus, tuned alike, on people, writers and hospitals."""
    from archipel.papers.consensus import entrants
    from archipel.papers.consensus import report as consensus_report
    from archipel.papers.consensus import tuning as consensus

    quiet()  # hundreds of runs of a few seconds
    plan = consensus.FAST if fast else consensus.FULL
    plan = replace(plan, seeds=seeds or plan.seeds, rounds=rounds or plan.rounds)
    place = out_dir or Path("results") / ("consensus-fast" if fast else "consensus")
    found = consensus.consensus(
        place,
        consensus.known(data),
        entrants.entrants(methods),
        plan,
        data_dir=data_dir,
        workers=workers,
        fresh=fresh,
    )
    consensus_report.report(place, found, plan, command_line(), out)


def paths(
    out_dir: Annotated[Path, typer.Option("--out", help="The folder for consensus-paths.png and .pdf.")] = Path(
        "results"
    ),
) -> None:
    """Draw how personal models move between local optima and consensus as a penalty grows. A minute or two."""
    from archipel.papers.consensus.paths_plot import draw
    from archipel.reports.figures import save

    listed(save(draw(), out_dir, "consensus-paths"))
