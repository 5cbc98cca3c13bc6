"""Options of the benchmarks, and what several of them do with these."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.cli.console import out

if TYPE_CHECKING:
    from archipel.papers.fedspm.report import Benchmark

FAST = "Fast setting: smaller networks and fewer rounds than in the paper, so the numbers are not the paper's."

Fast = Annotated[
    bool, typer.Option("--fast", help="A small LeNet, Fashion-MNIST, few rounds, one seed: minutes on two cores.")
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="The number of seeds; default: 3, with --fast 1.", show_default=False)
]
Methods = Annotated[
    str | None,
    typer.Option(help="Some methods, as in fedavg,fedspm,local; default: the paper's and local.", show_default=False),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The folder of the results; default: results/NAME.", show_default=False)
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="The number of processes; default: one for each core.", show_default=False)
]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="The number of rounds; default: the paper's, with --fast 25.", show_default=False),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="The encoder of the full setting; default: resnet18, where the paper says ResNet.", show_default=False
    ),
]


def command_line() -> str:
    """Return the command as it was typed, for the foot of the tables."""
    return " ".join(["archipel", *sys.argv[1:]])


def grid_of(
    name: str, out_dir: Path | None, seeds: int | None, fast: bool, workers: int | None, fresh: bool
) -> Benchmark:
    """Return how a benchmark of FedSPM's is carried out."""
    from archipel.papers.fedspm.report import Benchmark

    logging.getLogger("archipel").setLevel(logging.INFO)
    return Benchmark(
        out=out_dir or Path("results") / (f"{name}-fast" if fast else name),
        seeds=seeds or (1 if fast else 3),
        command=command_line(),
        workers=workers,
        fresh=fresh,
        console=out,
        notes=(FAST,) if fast else (),
    )


def network_of(encoder: str | None, fast: bool) -> str:
    """Return the encoder of the full setting; the fast one has none to choose."""
    if fast and encoder is not None:
        raise ValueError("--fast chooses its own networks, so --encoder can't be combined with it. Leave one out.")
    return encoder or "resnet18"


def found_in(data_dir: Path | None) -> dict[str, Any]:
    """Return the setting for where the data are, if one was given."""
    return {} if data_dir is None else {"data_dir": str(data_dir)}


def with_rounds(settings: dict[str, Any], rounds: int | None) -> dict[str, Any]:
    """Return the settings with another number of rounds, if one was given."""
    if rounds is None:
        return settings
    return {name: replace(setting, rounds=rounds) for name, setting in settings.items()}
