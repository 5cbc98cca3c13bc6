"""The benchmarks of the FedSPM paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.bench.options import (
    Encoder,
    Fast,
    Methods,
    Out,
    Rounds,
    Seeds,
    Workers,
    found_in,
    grid_of,
    network_of,
    with_rounds,
)
from archipel.cli.console import listed, say
from archipel.cli.options import DataDir, Fresh


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
    """Make FedSPM's Table 1: all methods on those of Fashion-MNIST, CIFAR-10 and CIFAR-100 that are found."""
    from archipel.data.sources.catalogue import CATALOGUE
    from archipel.papers.fedspm import accuracy_tables as fedspm
    from archipel.papers.fedspm import baselines, published

    network = network_of(encoder, fast)
    grid = grid_of("table1", out_dir, seeds, fast, workers, fresh)
    where = found_in(data_dir)
    if fast:
        settings = {"fashion-mnist": baselines.fast(**where)}
    else:
        absent = [about.name for about in CATALOGUE if about.name in published.DATA and not about.found(data_dir)]
        settings = {name: baselines.full(name, network, **where) for name in published.DATA if name not in absent}
        if not settings:
            raise ValueError(
                f"none of {', '.join(published.DATA)} was found; `archipel data list` says how to get them."
            )
        if absent:
            grid = replace(grid, notes=(f"Left out, because their files are not found: {', '.join(absent)}.",))
    fedspm.table1(with_rounds(settings, rounds), baselines.chosen(methods), grid)


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
    """Make FedSPM's Table 2: degrees of heterogeneity between and within clients. Five times Table 1's work."""
    from archipel.papers.fedspm import accuracy_tables as fedspm
    from archipel.papers.fedspm import baselines

    network = network_of(encoder, fast)
    grid = grid_of("table2", out_dir, seeds, fast, workers, fresh)
    where = found_in(data_dir)
    setting = baselines.fast(**where) if fast else baselines.full("fashion-mnist", network, **where)
    fedspm.table2(with_rounds({"": setting}, rounds)[""], baselines.chosen(methods or ",".join(baselines.PAPER)), grid)


def figure2(
    fast: Fast = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of seeds; default: 1.", show_default=False)
    ] = None,
    out_dir: Out = None,
    workers: Workers = None,
    fresh: Fresh = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=2, help="The number of rounds; default: the paper's, with --fast 25.", show_default=False),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="The number of rounds between two measurements.")] = 1,
    encoder: Encoder = None,
    data_dir: DataDir = None,
) -> None:
    """Make FedSPM's Figure 2: momentum, convergence, and bridge errors between surrogate and exact objective."""
    from archipel.papers.fedspm import figure2 as figure

    network = network_of(encoder, fast)
    grid = grid_of("figure2", out_dir, seeds or 1, fast, workers, fresh)
    where = found_in(data_dir)
    setting = figure.fast(**where) if fast else figure.full(network, **where)
    if fast:
        grid = replace(grid, notes=("Fast setting: 16 × 16 pixels, small multi-layer perceptrons, few rounds.",))
    figure.figure2(with_rounds({"": setting}, rounds)[""], grid, every=every)


def theorem1(
    out_dir: Annotated[Path, typer.Option("--out", help="The folder of the results.")] = Path("results/theorem1"),
) -> None:
    """Compare the bound of FedSPM's Theorem 1 with measured gradients, on quadratics. A minute."""
    from archipel.papers.fedspm.theorem1_report import theorem1 as write

    say(*write(out_dir))


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
    """Make FedSPM's Figure 3: one to five components that share their encoder."""
    from archipel.papers.fedspm import baselines
    from archipel.papers.fedspm import figure3 as figure

    network = network_of(encoder, fast)
    grid = grid_of("figure3", out_dir, seeds, fast, workers, fresh)
    where = found_in(data_dir)
    setting = baselines.fast(**where) if fast else baselines.full("fashion-mnist", network, **where)
    figure.figure3(with_rounds({"": setting}, rounds)[""], range(1, 6), grid)


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
        bool, typer.Option("--generated", help="Use pictures drawn by rule instead, in the same layout.")
    ] = False,
) -> None:
    """Make FedSPM's Figure 4: Fed-ISIC2019, skin lesions at six centres."""
    from archipel.papers.fedspm import figure4 as fed_isic

    grid = grid_of("figure4-generated" if generated else "figure4", out_dir, seeds, fast, workers, fresh)
    fed_isic.fed_isic(
        grid,
        methods,
        fast=fast,
        rounds=rounds,
        encoder=network_of(encoder, fast),
        data_dir=data_dir,
        size=size or (32 if fast else 64),
        generated=generated,
    )


def routing(
    out_dir: Annotated[Path, typer.Option("--out", help="The folder for routing.png and .pdf.")] = Path("results"),
) -> None:
    """Compare fitted density ratios with the Bayes rule of normal clients, and check their calibration. Seconds."""
    from archipel.papers.fedspm.routing_figure import figure, learn, three_clients
    from archipel.reports.figures import save

    written = save(figure(*learn(three_clients(), (60, 200, 600, 2000, 6000))), out_dir, "routing")
    listed(written)


def strangers(
    rounds: Annotated[int, typer.Option(min=1, help="The number of rounds of fmnist-fedspm-incremental.")] = 12,
    out_dir: Annotated[Path, typer.Option("--out", help="The folder of the results.")] = Path("results/strangers"),
    fresh: Fresh = False,
    data_dir: DataDir = None,
) -> None:
    """Ask a FedSPM of Fashion-MNIST digits and letters, and count those that it tells as strangers. Minutes."""
    from archipel.papers.fedspm.strangers import report

    written = report(rounds, out_dir, fresh=fresh, data_dir=data_dir)
    listed(written)
