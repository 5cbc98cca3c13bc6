"""The demonstration: FedAvg, FedSPM and an oracle on clients that differ in labels, looks and the meaning of labels."""

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
from archipel.experiments.oracle import oracle_of, pool
from archipel.experiments.reading import read_config
from archipel.experiments.running import rounds_done, train
from archipel.reports.run_tables import percent
from archipel.runs.run import Run


@dataclass(frozen=True)
class Setting:
    """What is compared on a data set.

    Args:
        fedavg: preset.
        fedspm: preset.
        rounds: what a few minutes on two cores allow.
        evaluate_every: rounds between the points of the curves.
    """

    fedavg: str
    fedspm: str
    rounds: int
    evaluate_every: int


SETTINGS = {
    "fashion-mnist": Setting("fmnist-fedavg", "fmnist-fedspm-incremental", rounds=30, evaluate_every=10),
    "digits": Setting("digits-fedavg", "digits-fedspm", rounds=30, evaluate_every=5),
}

LAST = Path("queries")
"""What is written last: where it is, nothing is missing."""

TIMED = 2
"""Rounds after which the time left is estimated: the first one warms up."""

ORACLE_SHARE = 0.25
"""Examples the oracle sees, of those that FedAvg's clients see together."""

ORACLE_LR = 0.05
"""The oracle's learning rate: with it a quarter of the examples suffices."""


@dataclass(frozen=True)
class Entry:
    """A method in the demonstration."""

    title: str
    config: RunConfig
    folder: Path

    @property
    def done(self) -> int:
        return rounds_done(self.config, self.folder)


def entries(setting: Setting, rounds: int, place: Path) -> list[Entry]:
    """The three runs, each in a folder of its own."""
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
    """Trains what is missing, and prints the table, the figures' place and what to do next.

    Args:
        out_dir: where the folder ``demo-SOURCE`` goes.
        source: ``"fashion-mnist"``, ``"digits"``, or ``None``: Fashion-MNIST where it's found.
        rounds: of each method; default: what a few minutes allow.
        fresh: start anew, whatever is there.
        console: where to print.
    """
    source = source or _found(console)
    if source not in SETTINGS:
        raise ValueError(f"The demonstration is about {' or '.join(SETTINGS)}; given {source!r}.")
    setting = SETTINGS[source]
    rounds = rounds or setting.rounds
    place = out_dir / f"demo-{source}"
    runs = entries(setting, rounds, place)
    if not fresh and all(entry.done >= rounds for entry in runs) and (place / LAST).exists():
        console.print(
            f"{place} is complete: this is its result. `archipel demo --fresh` trains it again.",
            markup=False,
            soft_wrap=True,
        )
        results = {entry.title: train(entry.config, entry.folder).run for entry in runs}
    else:
        results = _train(runs, rounds, fresh, console, place)
    console.print(result_table(results, source, rounds))
    spm = place / "fedspm"
    console.print(
        "system: queries of all clients pooled, nobody says whose. average: clients' own queries. routing: queries "
        "that reach their client. oracle: one model that is told what each client's labels mean, on "
        f"{ORACLE_SHARE:.0%} of the examples that FedAvg's clients see.\n",
        highlight=False,
    )
    console.print(
        f"Figures, PDF and PNG:  {place / 'figures'}",
        f"Evaluate it again:     archipel evaluate {spm}",
        f"Route queries:         archipel route {spm} {place / 'queries'}",
        sep="\n",
        markup=False,
        soft_wrap=True,  # commands and paths are to be copied
    )


def result_table(results: dict[str, Run], source: str, rounds: int) -> Table:
    """The methods' accuracies and training times."""
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
        console.print(f"{error}\nSo the demonstration is about the digits.", markup=False, soft_wrap=True)
        return "digits"
    return "fashion-mnist"


def _train(runs: list[Entry], rounds: int, fresh: bool, console: Console, place: Path) -> dict[str, Run]:
    federation = federation_from(runs[0].config)
    data = {entry.title: federation for entry in runs} | {"oracle": pool(federation)}
    console.print(f"{federation}\n", markup=False, highlight=False)
    console.print("Timing the first two rounds of each method, to tell how long all will take …")
    left = 0.0
    for entry in runs:
        began = time.perf_counter()
        first = train(entry.config, entry.folder, federation=data[entry.title], fresh=fresh, until=min(TIMED, rounds))
        left += _time_left(first.run, entry.config, time.perf_counter() - began if first.found == "nothing" else None)
    console.print(
        f"This will take about {_spoken(left)} more on this machine. Ctrl-C stops; it goes on where it stopped.",
        soft_wrap=True,
    )
    results = {}
    for entry in runs:
        results[entry.title] = train(entry.config, entry.folder, federation=data[entry.title]).run
    _draw(results, federation, place / "figures")
    _write_queries(federation, place / "queries")
    return results


def _time_left(run: Run, config: RunConfig, wall: float | None) -> float:
    """Seconds to the end of a run, from the rounds it has made.

    Args:
        run: so far.
        config: its configuration.
        wall: seconds that it took with all around its rounds, where it has just begun.
    """
    seconds = [record["seconds"] for record in run.history]
    each = statistics.median(seconds[1:] or seconds)
    # What isn't a round is mostly an evaluation; an evaluation costs about two rounds, if there's nothing to go by.
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
    """A test image of each client, to be routed."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in federation.clients:
        if len(client.test["y"]):
            pixels = client.test["x"][0].permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / f"of-{client.name}.png")
