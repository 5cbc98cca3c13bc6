"""The command ``archipel bench``."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from archipel.papers.fedspm.report import Benchmark

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Tables and figures of the papers, as grids of runs that can be stopped and gone on with.",
)
out = Console()
FAST = "Fast setting: other networks and fewer rounds than the paper's, beside whose numbers it stands."

Fast = Annotated[
    bool, typer.Option("--fast", help="A small LeNet, Fashion-MNIST, few rounds, one seed: minutes on two cores.")
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many seeds; default: 3, with --fast 1.", show_default=False)
]
Methods = Annotated[
    str | None,
    typer.Option(help="Some methods, as in fedavg,fedspm,local; default: the paper's and local.", show_default=False),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The results' folder; default: results/NAME.", show_default=False)
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.", show_default=False)]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew, whatever is there.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="Rounds; default: the paper's, with --fast 25.", show_default=False)
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="The full setting's encoder; default: resnet18, where the paper says ResNet.", show_default=False
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="A folder that holds the files; default: $ARCHIPEL_DATA.", show_default=False),
]


def _grid(
    name: str, out_dir: Path | None, seeds: int | None, fast: bool, workers: int | None, fresh: bool
) -> Benchmark:
    from archipel.papers.fedspm.report import Benchmark

    logging.getLogger("archipel").setLevel(logging.INFO)
    return Benchmark(
        out=out_dir or Path("results") / (f"{name}-fast" if fast else name),
        seeds=seeds or (1 if fast else 3),
        command=" ".join(["archipel", *sys.argv[1:]]),
        workers=workers,
        fresh=fresh,
        console=out,
        notes=(FAST,) if fast else (),
    )


def _network(encoder: str | None, fast: bool) -> str:
    """The full setting's encoder, which the fast one hasn't got."""
    if fast and encoder is not None:
        raise ValueError(
            "--encoder is of the full setting; --fast has small networks of its own. Leave one of them out."
        )
    return encoder or "resnet18"


def _where(data_dir: Path | None) -> dict[str, Any]:
    return {} if data_dir is None else {"data_dir": str(data_dir)}


@app.command()
def table1(
    fast: Fast = False,
    seeds: Seeds = None,
    methods: Methods = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Rounds = None,
    encoder: Encoder = None,
    data_dir: DataDir = None,
) -> None:
    """FedSPM's Table 1: all methods on Fashion-MNIST, CIFAR-10 and CIFAR-100, those that are found."""
    from archipel.data.sources.catalogue import CATALOGUE
    from archipel.papers.fedspm import accuracy_tables as fedspm
    from archipel.papers.fedspm import baselines, published

    network = _network(encoder, fast)
    grid = _grid("table1", out_dir, seeds, fast, workers, fresh)
    where = _where(data_dir)
    if fast:
        settings = {"fashion-mnist": baselines.fast(**where)}
    else:
        absent = [about.name for about in CATALOGUE if about.name in published.DATA and not about.found(data_dir)]
        settings = {name: baselines.full(name, network, **where) for name in published.DATA if name not in absent}
        if not settings:
            raise ValueError(
                f"none of {', '.join(published.DATA)} is found; `archipel data list` says how to get them."
            )
        if absent:
            grid = replace(grid, notes=(f"Left out, since not at hand: {', '.join(absent)}.",))
    fedspm.table1(_for(settings, rounds), baselines.chosen(methods), grid)


@app.command()
def table2(
    fast: Fast = False,
    seeds: Seeds = None,
    methods: Methods = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Rounds = None,
    encoder: Encoder = None,
    data_dir: DataDir = None,
) -> None:
    """FedSPM's Table 2: how heterogeneous clients are, and how mixed within (five times Table 1's work)."""
    from archipel.papers.fedspm import accuracy_tables as fedspm
    from archipel.papers.fedspm import baselines

    network = _network(encoder, fast)
    grid = _grid("table2", out_dir, seeds, fast, workers, fresh)
    where = _where(data_dir)
    setting = baselines.fast(**where) if fast else baselines.full("fashion-mnist", network, **where)
    fedspm.table2(_for({"": setting}, rounds)[""], baselines.chosen(methods or ",".join(baselines.PAPER)), grid)


@app.command()
def figure2(
    fast: Fast = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; default: 1.", show_default=False)] = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Annotated[
        int | None, typer.Option(min=2, help="Rounds; default: the paper's, with --fast 25.", show_default=False)
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Rounds from one measurement to the next.")] = 1,
    encoder: Encoder = None,
    data_dir: DataDir = None,
) -> None:
    """FedSPM's Figure 2: momentum, convergence, and bridge errors between surrogate and exact objective."""
    from archipel.papers.fedspm import figure2 as figure

    network = _network(encoder, fast)
    grid = _grid("figure2", out_dir, seeds or 1, fast, workers, fresh)
    where = _where(data_dir)
    setting = figure.fast(**where) if fast else figure.full(network, **where)
    if fast:
        grid = replace(grid, notes=("Fast setting: 16 × 16 pixels, small multi-layer perceptrons, few rounds.",))
    figure.figure2(_for({"": setting}, rounds)[""], grid, every=every)


@app.command()
def theorem1(
    out_dir: Annotated[Path, typer.Option("--out", help="The results' folder.")] = Path("results/theorem1"),
) -> None:
    """FedSPM's Theorem 1: its bound beside measured gradients, on quadratics with known constants. A minute."""
    from archipel.papers.fedspm.theorem1_report import theorem1 as write

    out.print(*write(out_dir), sep="\n", markup=False, highlight=False, soft_wrap=True)


@app.command()
def figure3(
    fast: Fast = False,
    seeds: Seeds = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Rounds = None,
    encoder: Encoder = None,
    data_dir: DataDir = None,
) -> None:
    """FedSPM's Figure 3: one to five components that share their encoder."""
    from archipel.papers.fedspm import baselines
    from archipel.papers.fedspm import figure3 as figure

    network = _network(encoder, fast)
    grid = _grid("figure3", out_dir, seeds, fast, workers, fresh)
    where = _where(data_dir)
    setting = baselines.fast(**where) if fast else baselines.full("fashion-mnist", network, **where)
    figure.figure3(_for({"": setting}, rounds)[""], range(1, 6), grid)


@app.command()
def figure4(
    fast: Fast = False,
    seeds: Seeds = None,
    methods: Methods = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Rounds = None,
    encoder: Encoder = None,
    data_dir: DataDir = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=16, help="Pixels a side; default: 64, with --fast 32; the paper doesn't say.", show_default=False
        ),
    ] = None,
    generated: Annotated[
        bool, typer.Option("--generated", help="Draw pictures by rule, in the same layout, and take these.")
    ] = False,
) -> None:
    """FedSPM's Figure 4: Fed-ISIC2019, skin lesions at six centres."""
    from archipel.papers.fedspm import figure4 as fed_isic

    grid = _grid("figure4-generated" if generated else "figure4", out_dir, seeds, fast, workers, fresh)
    fed_isic.fed_isic(
        grid,
        methods,
        fast=fast,
        rounds=rounds,
        encoder=_network(encoder, fast),
        data_dir=data_dir,
        size=size or (32 if fast else 64),
        generated=generated,
    )


@app.command("consensus")
def consensus_(
    fast: Annotated[bool, typer.Option("--fast", help="Six clients, few rounds and settings, one seed.")] = False,
    seeds: Seeds = None,
    data: Annotated[str, typer.Option(help="Data sets, comma-separated.")] = "hapt,femnist,heart-disease",
    methods: Annotated[
        str | None, typer.Option(help="Some methods, as in ditto,local,apfl; default: all.", show_default=False)
    ] = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; default: 20 or 30.", show_default=False)] = None,
    data_dir: DataDir = None,
) -> None:
    """Methods between training alone and consensus, tuned alike, on people, writers and hospitals."""
    from archipel.papers.consensus import entrants
    from archipel.papers.consensus import report as consensus_report
    from archipel.papers.consensus import tuning as consensus

    logging.getLogger("archipel").setLevel(logging.WARNING)  # hundreds of runs of seconds
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
    consensus_report.report(place, found, plan, " ".join(["archipel", *sys.argv[1:]]), out)


@app.command()
def paths(
    out_dir: Annotated[Path, typer.Option("--out", help="Where consensus-paths.png and .pdf go.")] = Path("results"),
) -> None:
    """Draw how personal models move between local optima and consensus as a penalty grows. A minute or two."""
    from archipel.papers.consensus.paths_plot import draw  # matplotlib costs a second
    from archipel.reports.figures import save

    written = save(draw(), out_dir, "consensus-paths")
    out.print(", ".join(str(path) for path in written), markup=False, soft_wrap=True)


@app.command()
def routing(
    out_dir: Annotated[Path, typer.Option("--out", help="Where routing.png and .pdf go.")] = Path("results"),
) -> None:
    """Fitted density ratios against the Bayes rule of normal clients, and how calibrated they are. Seconds."""
    from archipel.papers.fedspm.routing_figure import figure, learn, three_clients
    from archipel.reports.figures import save

    written = save(figure(*learn(three_clients(), (60, 200, 600, 2000, 6000))), out_dir, "routing")
    out.print(", ".join(str(path) for path in written), markup=False, soft_wrap=True)


@app.command()
def strangers(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of fmnist-fedspm-incremental.")] = 12,
    out_dir: Annotated[Path, typer.Option("--out", help="The results' folder.")] = Path("results/strangers"),
    fresh: Fresh = False,
    data_dir: DataDir = None,
) -> None:
    """Digits and letters among the queries to a FedSPM of Fashion-MNIST: how many are told as strangers. Minutes."""
    from archipel.papers.fedspm.strangers import report

    written = report(rounds, out_dir, fresh=fresh, data_dir=data_dir)
    out.print(", ".join(str(path) for path in written), markup=False, soft_wrap=True)


@app.command()
def em(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the first table and figure.")] = 3,
    out_dir: Annotated[Path, typer.Option("--out", help="The results' folder.")] = Path("results/em"),
    workers: Workers = None,
    fresh: Fresh = False,
) -> None:
    """FedEM and VR-FedEM: ‖h‖² against rounds, expectations and bits, and the regimes of compression. Minutes."""
    from archipel.papers.federated_em.report import bench

    bench(out_dir, seeds, " ".join(["archipel", *sys.argv[1:]]), workers=workers, fresh=fresh, console=out)


def _for(settings: dict[str, Any], rounds: int | None) -> dict[str, Any]:
    """Settings with other rounds, where that was asked for."""
    if rounds is None:
        return settings
    return {name: replace(setting, rounds=rounds) for name, setting in settings.items()}
