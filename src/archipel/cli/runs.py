"""The commands about one run: ``run``, ``show``, ``evaluate``, ``route``; and ``list``, what a run can be made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli.console import echo, out, say, tell
from archipel.cli.options import (
    AsJson,
    Folder,
    Fresh,
    Imports,
    PositiveClass,
    Settings,
    Shares,
    What,
    WithLocal,
    import_all,
    shares,
)

if TYPE_CHECKING:
    pass


def run(
    what: What,
    settings: Settings = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the run; default: runs/NAME-seedSEED.", show_default=False),
    ] = None,
    fresh: Fresh = False,
    imports: Imports = None,
) -> None:
    """Train a federation, or resume a run that was stopped."""
    from archipel.algorithm import Routes
    from archipel.engines.group import rank
    from archipel.experiments.own_code import own_modules
    from archipel.experiments.reading import read_config
    from archipel.experiments.running import on_ranks, train
    from archipel.reports.catalogue import draw
    from archipel.reports.run_tables import clients_table, metrics_table

    import_all(imports)
    config = on_ranks(read_config(what, settings or []))
    folder = out_dir or Path("runs") / f"{config.name}-seed{config.seed}"
    outcome = train(config, folder, fresh=fresh)
    if rank():
        return  # the first rank has the files, and tells the result
    if outcome.found == "all":
        tell(f"{folder} is complete: this is its result. --fresh trains it again.")
    draw(config, outcome.run, folder)
    out.print(metrics_table(outcome.run.metrics), clients_table(outcome.run.table))
    allowed = "".join(f" --import {module}" for module in own_modules(config.model_dump()))
    say(f"Figures:           {folder / 'figures'}", f"Evaluate it again: archipel evaluate {folder}{allowed}")
    if (folder / "best").is_dir():
        say(f"Best round by validation: archipel evaluate {folder / 'best'}{allowed}")
    if isinstance(outcome.run.algorithm, Routes):
        say(f"Route queries:     archipel route {folder} FILE{allowed}")


def list_() -> None:
    """List algorithms, data, encoders and presets."""
    from archipel.reports.catalogue import catalogue

    out.print(catalogue())


def show(what: What, settings: Settings = None, imports: Imports = None) -> None:
    """Print the configuration of a run with every default, as a file to start from."""
    from archipel.experiments.reading import read_config, to_yaml

    import_all(imports)
    echo(to_yaml(read_config(what, settings or [])), nl=False)


def evaluate(
    folder: Folder,
    as_json: AsJson = False,
    positive: PositiveClass = None,
    local: WithLocal = False,
    imports: Imports = None,
) -> None:
    """Evaluate the last model of a run on the run's data: metrics with 95 % intervals for each site and pooled."""
    from archipel.experiments.comparing.assessing import assessed
    from archipel.reports.run_tables import clients_table, metrics_table
    from archipel.reports.site_tables import HOW, site_tables

    import_all(imports)
    found, evaluation = assessed(folder, positive=positive, local=local)
    recorded, sites = found.metrics, evaluation.sites
    if as_json:
        record = {"run": str(folder), "round": len(found.history), "metrics": evaluation.metrics}
        counted = None if sites is None else sites.to_json()
        echo(json.dumps(record | {"recorded": recorded, "clients": evaluation.clients, "sites": counted}))
        return
    out.print(metrics_table(evaluation.metrics), clients_table(evaluation.clients))
    if sites is not None:
        out.print(*site_tables(sites, out.width))
        out.print(HOW, markup=False, highlight=False)
        for line in sites.warnings:
            tell(f"Warning: {line}")
        if "Local" not in sites.models:
            tell(f"To compare with each site's training alone: archipel evaluate {folder} --local")
    if len(found.history) < found.rounds:
        tell(f"The run is unfinished: {len(found.history)} of {found.rounds} rounds are done.")
    different = [name for name, value in evaluation.metrics.items() if recorded.get(name, value) != value]
    if evaluation.metrics and not recorded:
        tell("Training recorded no metrics: it ended before its first evaluation.")
    elif different:
        tell(f"Training recorded other values of {', '.join(different)}: another machine or version?")
    else:
        tell("These are the values that training recorded.")


def route(
    folder: Folder,
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT...", help="Images; .npz (x), .npy, .csv, .tsv or .parquet files; or folders."),
    ],
    top: Annotated[int, typer.Option(min=1, help="The number of clients to name for each query.")] = 3,
    as_json: AsJson = False,
    client: Annotated[
        str | None,
        typer.Option(help="The client whose personal model answers; default: the one that a query is routed to."),
    ] = None,
    prior: Shares = None,
    imports: Imports = None,
) -> None:
    """Find the client that each query most likely comes from, and answer the query."""
    from archipel.algorithm import Routes
    from archipel.experiments.loading import load
    from archipel.experiments.queries import read_queries
    from archipel.reports.run_tables import answers_as_json, answers_table

    import_all(imports)
    federation = load(folder)
    routes = isinstance(federation.algorithm, Routes)
    if not routes and client is None:
        raise ValueError(
            f"{type(federation.algorithm).__name__} doesn't route queries. Train a method that does (fedspm), or ask "
            f"one client with --client NAME; there are {', '.join(federation.facts.names[:20])}."
        )
    if not routes and prior is not None:
        raise ValueError(f"{type(federation.algorithm).__name__} doesn't route queries, so --prior has no effect.")
    queries = read_queries(inputs, federation.facts.inputs)
    weights = shares(prior)
    routing = federation.route(queries.x, weights) if routes else None
    answers = federation.predict(queries.x, client, weights)
    records = answers_as_json(queries.names, routing, answers, top)
    if as_json:
        for record in records:
            echo(json.dumps(record))
    else:
        out.print(answers_table(records))
