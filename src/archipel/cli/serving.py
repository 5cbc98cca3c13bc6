"""The commands that take a run to its users: ``export`` and ``serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.console import echo, say, tell
from archipel.cli.options import Folder, Imports, Shares, import_all, shares

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that hands its arguments to another."""


def export(
    folder: Folder,
    out_dir: Annotated[Path, typer.Option("--out", help="The folder of the bundle; it must not exist.")],
    site: Annotated[
        str | None,
        typer.Option(
            help="A client, whose bundle holds its own answer model and the router only; default: all clients.",
            show_default=False,
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            help="A file with an Ed25519 private key that signs the bundle: `openssl genpkey -algorithm ed25519`.",
            show_default=False,
        ),
    ] = None,
    imports: Imports = None,
) -> None:
    """Write a run's router and answer models as a bundle, which `archipel serve` answers queries from."""
    from archipel.experiments.loading import load
    from archipel.experiments.running import federation_of
    from archipel.serving.bundle import export_bundle

    import_all(imports)
    run = load(folder)
    try:
        federation = federation_of(folder)
    except FileNotFoundError:
        tell("The run's data are not found, so the model card says nothing of them.")
        federation = None
    made = export_bundle(run, out_dir, site=site, sign=sign, federation=federation)
    say(f"Model card: {made / 'card.html'}", f"Serve it:   archipel serve {made}")


def serve(context: typer.Context) -> None:
    """Serve a bundle: the command `archipel-serve`, with its options (`archipel serve --help`)."""
    from archipel_serve.server.command import main

    main(context.args)


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The file that `archipel serve --decisions` writes.")],
    bundle: Annotated[Path, typer.Option(help="The bundle that decided; another one with --again.")],
    prior: Shares = None,
    again: Annotated[
        bool, typer.Option("--again", help="Ask the bundle's router again, by the queries that were stored.")
    ] = False,
) -> None:
    """Decide again by a log of decisions, under another prior or by another bundle, and list what changes."""
    from archipel_serve.models import Models
    from archipel_serve.watching.decisions import replay

    count, changed = 0, 0
    for change in replay(log, Models(bundle), shares(prior), again):
        count += 1
        if change is not None:
            changed += 1
            echo(f"{change.time}  {change.query[:12]}  {change.before} → {change.after}")
    say(f"{changed} of {count} decisions change.")
