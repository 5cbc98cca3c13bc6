"""The command ``archipel``."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from archipel.algorithm import DivergenceError, Routes
from archipel.cli import bench as bench_command
from archipel.cli import data as data_command
from archipel.cli import em as em_command

out, err = Console(), Console(stderr=True)


class People(TyperGroup):
    """Errors for people: what is wrong in one message and exit code 2, instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # of `archipel … | head`: nobody reads on, and nothing is wrong
        except (ValueError, OSError, ImportError) as error:
            _say("Error", str(error))
            raise typer.Exit(2) from None
        except DivergenceError as error:
            _say("Training diverged", str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt as stop:
            message = str(stop) or "Stopped. The same command goes on from the last checkpoint."
            err.print(message, markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None


def _say(what: str, message: str) -> None:
    err.print(f"[bold red]{what}:[/] {escape(message)}", highlight=False, soft_wrap=True)


app = typer.Typer(
    cls=People,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Personalised, mixture-based and routing-enabled federated learning.",
)

app.add_typer(bench_command.app, name="bench")
app.add_typer(data_command.app, name="data")
app.command()(em_command.em)

What = Annotated[
    str, typer.Argument(metavar="PRESET|FILE.yaml", help="A preset's name (see `archipel list`) or a file.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as algorithm.local.lr=0.05.")
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of tables.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew, whatever is there.")]


@app.callback()
def _prepare() -> None:
    log = logging.getLogger("archipel")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    warnings.formatwarning = lambda message, *rest, **more: f"Note: {message}\n"


@app.command()
def run(
    what: What,
    settings: Settings = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; default: runs/NAME-seedSEED.", show_default=False)
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train a federation, or go on where it was stopped."""
    from archipel.experiments.reading import read_config
    from archipel.experiments.running import train
    from archipel.reports.catalogue import draw
    from archipel.reports.run_tables import clients_table, metrics_table

    config = read_config(what, settings or [])
    folder = out_dir or Path("runs") / f"{config.name}-seed{config.seed}"
    outcome = train(config, folder, fresh=fresh)
    if outcome.found == "all":
        err.print(f"{folder} is complete: this is its result. --fresh trains it again.", markup=False, soft_wrap=True)
    draw(config, outcome.run, folder)
    out.print(metrics_table(outcome.run.metrics), clients_table(outcome.run.table))
    _next(folder, isinstance(outcome.run.algorithm, Routes))


@app.command("list")
def list_() -> None:
    """Algorithms, data, encoders and presets."""
    from archipel.reports.catalogue import catalogue

    out.print(catalogue())


@app.command()
def show(what: What, settings: Settings = None) -> None:
    """Print a run's configuration with every default, as a file to start from."""
    from archipel.experiments.reading import read_config, to_yaml

    typer.echo(to_yaml(read_config(what, settings or [])), nl=False)


@app.command()
def evaluate(folder: Folder, as_json: AsJson = False) -> None:
    """Evaluate a run's last model again, on its data."""
    from archipel.experiments.running import reevaluate
    from archipel.reports.run_tables import clients_table, metrics_table

    found, evaluation = reevaluate(folder)
    recorded = found.metrics
    if as_json:
        record = {"run": str(folder), "round": len(found.history), "metrics": evaluation.metrics}
        typer.echo(json.dumps(record | {"recorded": recorded, "clients": evaluation.clients}))
        return
    out.print(metrics_table(evaluation.metrics), clients_table(evaluation.clients))
    different = [name for name, value in evaluation.metrics.items() if recorded.get(name, value) != value]
    if evaluation.metrics and not recorded:
        err.print("Nothing was recorded in training: it ended before its first evaluation.")
    elif different:
        err.print(f"Recorded in training were other values of {', '.join(different)}: another machine or version?")
    else:
        err.print("These are the values recorded in training.")


@app.command()
def route(
    folder: Folder,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT...", help="Images, .npy or .npz files (array x), or folders of them.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many clients to name.")] = 3,
    as_json: AsJson = False,
    client: Annotated[
        str | None, typer.Option(help="Whose personal model answers; default: the client a query is routed to.")
    ] = None,
) -> None:
    """Tell whose each query most likely is, and answer it."""
    from archipel.experiments.loading import load
    from archipel.experiments.queries import read_queries
    from archipel.reports.run_tables import answers_as_json, answers_table

    federation = load(folder)
    routes = isinstance(federation.algorithm, Routes)
    if not routes and client is None:
        raise ValueError(
            f"{type(federation.algorithm).__name__} doesn't route queries. Train a method that does (fedspm), or ask "
            f"one client with --client NAME; there are {', '.join(federation.facts.names[:20])}."
        )
    queries = read_queries(inputs, federation.facts.inputs)
    routing = federation.route(queries.x) if routes else None
    records = answers_as_json(queries.names, routing, federation.predict(queries.x, client=client), top)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
    else:
        out.print(answers_table(records))


@app.command()
def demo(
    rounds: Annotated[int | None, typer.Option(min=1, help="Default: 30 on Fashion-MNIST, 30 on the digits.")] = None,
    out_dir: Annotated[Path, typer.Option("--out", help="Where the demo's folder goes.")] = Path("runs"),
    source: Annotated[
        str | None, typer.Option(help="fashion-mnist or digits; default: the first that's there.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train FedAvg, FedSPM and an oracle on clients that differ, and compare them. A few minutes."""
    from archipel.reports.demo import show_demo

    logging.getLogger("archipel").setLevel(logging.WARNING)  # which engine runs is no news here
    show_demo(out_dir, source, rounds, fresh, out)


def _next(folder: Path, routes: bool) -> None:
    lines = [f"Figures:           {folder / 'figures'}", f"Evaluate it again: archipel evaluate {folder}"]
    if routes:
        lines.append(f"Route queries:     archipel route {folder} FILE")
    out.print(*lines, sep="\n", markup=False, soft_wrap=True)


def main() -> None:
    """Entry point of the command."""
    app()
