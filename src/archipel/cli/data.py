"""The command ``archipel data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from archipel.cli.console import echo, out, say
from archipel.cli.options import DataDir

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Data sets and federations.")


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the data sets: content, clients, licence, and whether their files are found."""
    from archipel.data.sources.catalogue import CATALOGUE

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "data", "clients", "licence", "found"):
        table.add_column(column, no_wrap=column in ("name", "found"))
    for about in CATALOGUE:
        found = "built in" if not about.files else "yes" if about.found(data_dir) else "no"
        table.add_row(about.name, f"{about.title}: {about.size}", about.clients or "none", about.licence, found)
    out.print(table)


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Data sets; default: all whose files are found.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Load data sets, compare their content with the published facts, and count the examples."""
    from archipel.data.sources.catalogue import CATALOGUE, load_source

    known = {about.name: about for about in CATALOGUE}
    names = names or [about.name for about in CATALOGUE if about.found(data_dir)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "examples", "shape", "classes", "clients", "compared", "SHA-256"):
        table.add_column(
            column, no_wrap=True, justify="right" if column in ("examples", "classes", "clients") else "left"
        )
    for wanted in names:
        embedded = wanted in known and not known[wanted].files
        source = load_source(wanted, None if embedded else data_dir)
        table.add_row(
            source.name,
            f"{len(source):,}",
            f"{'×'.join(map(str, source.x.shape[1:]))} {str(source.x.dtype).removeprefix('torch.')}",
            str(len(source.classes) or "–"),
            str(len(source.client_names) or "–"),
            known[source.name].check,
            source.checksum[:12],
        )
    out.print(table)


@app.command()
def show(
    what: Annotated[
        str,
        typer.Argument(metavar="PRESET|FILE.yaml|FOLDER", help="The data of a run, or a folder of Federation.save."),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as data.alpha_inter=0.5.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Draw samples, labels and weights into it.", show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the card as Markdown.")] = False,
) -> None:
    """Print the card of a federation: its clients, and how much they differ."""
    from archipel.data.card import card
    from archipel.data.federation import Federation
    from archipel.data.federation_folder import ABOUT
    from archipel.experiments.building import federation_from
    from archipel.experiments.reading import read_config

    if (Path(what) / ABOUT).exists():
        if settings:
            raise ValueError(f"{what} is a saved federation, which has no settings; given {settings[0]!r}.")
        federation = Federation.load(what)
    else:
        federation = federation_from(read_config(what, settings or []))
    shown = card(federation)
    if markdown:
        echo(shown.markdown())
    else:
        out.print(shown)
    if figures is not None:
        from archipel.reports import portraits  # loads matplotlib, which takes a second

        drawn = sorted(path.name for path in portraits.draw(federation, figures))
        say(f"{figures}: {', '.join(drawn)}")
