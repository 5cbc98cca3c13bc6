"""The demonstration: FedAvg, FedSPM and an oracle on clients whose labels and images differ."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.table import Table

from archipel.data.federation import Federation
from archipel.data.sources.catalogue import load_source
from archipel.experiments.building import federation_from
from archipel.experiments.config import RunConfig
from archipel.experiments.loading import load
from archipel.experiments.oracle import oracle_of, pool
from archipel.experiments.reading import read_config
from archipel.experiments.running import rounds_done, train
from archipel.reports.run_tables import percent
from archipel.runs.run import Run


@dataclass(frozen=True)
class Comparison:
    """What the demonstration trains on a data set.

    Args:
        fedavg: preset of FedAvg.
        fedspm: preset of FedSPM.
        rounds: as many as take a few minutes on two cores.
        evaluate_every: rounds between two points of the curves.
    """

    fedavg: str
    fedspm: str
    rounds: int
    evaluate_every: int


COMPARISONS = {
    "fashion-mnist": Comparison("fmnist-fedavg", "fmnist-fedspm-incremental", rounds=30, evaluate_every=10),
    "digits": Comparison("digits-fedavg", "digits-fedspm", rounds=30, evaluate_every=5),
}

LAST = Path("queries")
"""The folder that is written last: if it is there, nothing is missing."""

TIMED = 2
"""Rounds after which the time left is estimated; the first one is slower than the others."""

ORACLE_SHARE = 0.25
"""The share of the examples that FedAvg's clients see together which the oracle sees."""

ORACLE_LR = 0.05
"""The learning rate of the oracle, with which a quarter of the examples suffices."""


@dataclass(frozen=True)
class Entry:
    """A method in the demonstration."""

    title: str
    config: RunConfig
    folder: Path

    @property
    def done(self) -> int:
        return rounds_done(self.config, self.folder)


def entries(setting: Comparison, rounds: int, place: Path) -> list[Entry]:
    """Return the three runs, each with its own folder."""
    settings = [f"rounds={rounds}", f"evaluate_every={setting.evaluate_every}"]
    fedavg = read_config(setting.fedavg, [*settings, "name=fedavg"])
    fedspm = read_config(setting.fedspm, [*settings, "name=fedspm"])
    oracle = oracle_of(fedavg, ORACLE_SHARE, ORACLE_LR)
    return [
        Entry("FedAvg", fedavg, place / "fedavg"),
        Entry("FedSPM", fedspm, place / "fedspm"),
        Entry("oracle", oracle, place / "oracle"),
    ]


def show_demo(out_dir: Path, source: str | None, rounds: int | None, fresh: bool, console: Console) -> None:
    """Train what is missing; print the table, the place of the figures and the next commands.

    Args:
        out_dir: the folder that ``demo-SOURCE`` is made in.
        source: ``"fashion-mnist"``, ``"digits"``, or ``None``: Fashion-MNIST if its files are found.
        rounds: of each method; default: 30.
        fresh: delete earlier runs first.
        console: where to print.
    """
    source = source or _found(console)
    if source not in COMPARISONS:
        raise ValueError(f"The demonstration uses {' or '.join(COMPARISONS)}; given {source!r}.")
    setting = COMPARISONS[source]
    rounds = rounds or setting.rounds
    place = out_dir / f"demo-{source}"
    runs = entries(setting, rounds, place)
    if not fresh and all(entry.done >= rounds for entry in runs) and (place / LAST).exists():
        console.print(
            f"{place} is complete: this is its result. `archipel demo --fresh` trains it again.",
            markup=False,
            soft_wrap=True,
        )
        results = {entry.title: load(entry.folder) for entry in runs}
    else:
        results = _train(runs, rounds, fresh, console, place)
    console.print(result_table(results, source, rounds))
    spm = place / "fedspm"
    console.print(
        "system: queries of all clients, each routed. average: queries of known clients. routing: queries routed to "
        "their own client. oracle: one model that knows what each client's labels mean, trained on "
        f"{ORACLE_SHARE:.0%} of the examples that FedAvg's clients see.\n",
        highlight=False,
    )
    console.print(
        f"Figures, PDF and PNG:  {place / 'figures'}",
        f"Evaluate it again:     archipel evaluate {spm}",
        f"Route queries:         archipel route {spm} {place / 'queries'}",
        sep="\n",
        markup=False,
        soft_wrap=True,  # so that commands and paths can be copied
    )


def result_table(results: dict[str, Run], source: str, rounds: int) -> Table:
    """Return the accuracies and training times of the methods as a table."""
    table = Table(title=f"{source}, {rounds} rounds", title_justify="left")
    for column in ("", "system", "average", "routing", "seconds"):
        table.add_column(column, justify="right" if column else "left")
    for title, run in results.items():
        accuracies = [percent(run.metrics.get(f"{name}_accuracy")) for name in ("system", "average", "routing")]
        table.add_row(title, *accuracies, f"{sum(record['seconds'] for record in run.history):.0f}")
    return table


def _found(console: Console) -> str:
    try:
        load_source("fashion-mnist")
    except FileNotFoundError as error:
        console.print(f"{error}\nThe demonstration uses the digits instead.", markup=False, soft_wrap=True)
        return "digits"
    return "fashion-mnist"


def _train(runs: list[Entry], rounds: int, fresh: bool, console: Console, place: Path) -> dict[str, Run]:
    federation = federation_from(runs[0].config)
    data = {entry.title: federation for entry in runs} | {"oracle": pool(federation)}
    console.print(f"{federation}\n", markup=False, highlight=False)
    console.print("Timing the first two rounds of each method …")
    left = 0.0
    for entry in runs:
        began = time.perf_counter()
        first = train(entry.config, entry.folder, federation=data[entry.title], fresh=fresh, until=min(TIMED, rounds))
        left += _time_left(first.run, entry.config, time.perf_counter() - began if first.found == "nothing" else None)
    console.print(
        f"This will take about {_spoken(left)} more on this machine. Ctrl-C stops it; the same command resumes it.",
        soft_wrap=True,
    )
    results = {}
    for entry in runs:
        results[entry.title] = train(entry.config, entry.folder, federation=data[entry.title]).run
    _draw(results, federation, place / "figures")
    _write_queries(federation, place / "queries")
    return results


def _time_left(run: Run, config: RunConfig, wall: float | None) -> float:
    """Estimate the seconds to the end of a run from the rounds that are done.

    Args:
        run: so far.
        config: its configuration.
        wall: seconds since the start of a new run; ``None``: it was resumed.
    """
    seconds = [record["seconds"] for record in run.history]
    each = statistics.median(seconds[1:] or seconds)
    # The rest of the time is mostly an evaluation, which otherwise counts as two rounds.
    evaluation = wall - sum(seconds) if wall is not None else 2 * each
    done, every = len(run.history), config.evaluate_every or config.rounds
    evaluations = config.rounds // every - done // every
    return float((config.rounds - done) * each + evaluations * evaluation)


def _spoken(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{max(5, 5 * round(seconds / 5))} seconds"


def _draw(results: dict[str, Run], federation: Federation, folder: Path) -> None:
    from archipel.reports import figures  # matplotlib costs a second, and a second call draws nothing

    histories = {title: run.history for title, run in results.items() if title != "oracle"}
    figures.save(figures.accuracy_curves(histories, results["oracle"].metrics["system_accuracy"]), folder, "accuracy")
    figures.save(figures.federation_figure(federation), folder, "federation")
    figures.save(figures.routing_confusion(results["FedSPM"], federation), folder, "routing")


def _write_queries(federation: Federation, folder: Path) -> None:
    """Write a test image of each client as a query."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in federation.clients:
        if len(client.test["y"]):
            pixels = client.test["x"][0].permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / f"of-{client.name}.png")
