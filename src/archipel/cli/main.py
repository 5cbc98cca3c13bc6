"""The command ``archipel``: its groups and commands put together.

Modules of this package import what they need when a command runs: ``archipel --help`` loads no torch.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from archipel.cli import data, deciding, demo, em, runs, serving, watching
from archipel.cli.bench import app as bench
from archipel.cli.console import echo, prepare
from archipel.cli.errors import Commands

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a traceback of a fault in Archipel shows no variables, which may hold data
    rich_markup_mode="rich",
    help="Personalised, mixture-based and routing-enabled federated learning.",
    epilog="Exit codes: 0 done; 1 training diverged; 2 wrong input, or too little memory or disk; 130 stopped by "
    "Ctrl-C or SIGTERM, and resumed by the same command.",
)


@app.callback(invoke_without_command=True)
def _prepare(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    prepare()
    if version:
        echo(metadata.version("archipel"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        echo(context.get_help())


app.command()(runs.run)
app.command("list")(runs.list_)
app.command()(runs.show)
app.command()(watching.status)
app.command()(watching.tail)
app.command()(runs.evaluate)
app.command()(runs.route)
app.command()(deciding.report)
app.command()(deciding.compare)
app.command()(deciding.sweep)
app.command()(serving.export)
app.command(add_help_option=False, context_settings=serving.PASSED_ON)(serving.serve)
app.command()(serving.replay)
app.command()(demo.demo)
app.command()(em.em)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command."""
    app()
