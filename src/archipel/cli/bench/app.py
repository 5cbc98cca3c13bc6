"""The command group ``archipel bench``, put together."""

from __future__ import annotations

import typer

from archipel.cli.bench import consensus, federated_em, fedspm

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Tables and figures of the papers, as grids of runs that can be stopped and resumed.",
)

for command in (
    fedspm.table1,
    fedspm.table2,
    fedspm.figure2,
    fedspm.theorem1,
    fedspm.figure3,
    fedspm.figure4,
    consensus.consensus,
    consensus.paths,
    fedspm.routing,
    fedspm.strangers,
    federated_em.em,
):
    app.command()(command)
