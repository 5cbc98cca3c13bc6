"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

What = Annotated[
    str,
    typer.Argument(metavar="PRESET|FILE.yaml", help="The name of a preset (`archipel list` shows them) or a file."),
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as algorithm.local.lr=0.05.")
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module of your own that the configuration names; the current folder is searched too.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete the run that is in the folder and start again.")]
PositiveClass = Annotated[
    str | None,
    typer.Option("--positive", help="The positive one of two classes; default: the second.", show_default=False),
]
WithLocal = Annotated[
    bool,
    typer.Option("--local", help="Train each site alone, once, in RUN/local, and show it beside the method."),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The folder that holds the files; default: $ARCHIPEL_DATA.", show_default=False),
]

Shares = Annotated[
    str | None,
    typer.Option(
        "--prior",
        metavar="uniform|SHARE,…",
        help="How many of the queries come from each client: uniform, or a share for each client in their order; "
        "default: in proportion to the clients' training examples.",
        show_default=False,
    ),
]


def shares(text: str | None) -> Literal["uniform"] | list[float] | None:
    """Return what --prior says."""
    if text is None:
        return None
    if text == "uniform":
        return "uniform"
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise ValueError(f"--prior is uniform, or shares such as 0.2,0.3,0.5; given {text!r}.") from None


def import_all(modules: list[str] | None) -> None:
    """Import the modules that --import names."""
    if modules:
        from archipel.experiments.own_code import import_own

        for module in modules:
            import_own(module)
