"""A benchmark's runs as cells of a grid: every method on every data set with every seed, and what they found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from archipel.experiments.config import RunConfig
from archipel.experiments.grids.grid import Cell, CellsFailed, run_grid
from archipel.experiments.reading import validate
from archipel.experiments.running import train
from archipel.papers.fedspm.baselines import METHODS, Setting


@dataclass(frozen=True)
class Point:
    """One run of a benchmark.

    Args:
        group: what varies besides the method, such as a data set or a degree of heterogeneity.
        method: a row of the table.
        config: of the run, with its seed.
        cost: a round's time relative to FedAvg's.
    """

    group: str
    method: str
    config: RunConfig
    cost: float = 1.0

    @property
    def cell(self) -> Cell:
        """The run as a cell with a folder of its own."""
        settings = self.config.model_dump(mode="json")
        name = f"{self.group}/{self.method}/seed{self.config.seed}"
        return Cell(name, trained, {"config": settings}, self.cost * self.config.rounds)


def points(settings: Mapping[str, Setting], methods: Sequence[str], seeds: int) -> list[Point]:
    """Return every method in every setting with every seed from 0."""
    return [
        Point(group, method, setting.config(method, seed), METHODS[method].cost)
        for group, setting in settings.items()
        for method in methods
        for seed in range(seeds)
    ]


def trained(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Train a run, or resume it, and return what it found and what it cost.

    Returns:
        The last round's metrics and clients' table; bytes of all clients and seconds a round. Seconds are the median,
        bytes the mean over rounds.
    """
    run = train(validate(config, str(folder)), folder).run
    return {
        "metrics": run.metrics,
        "clients": run.table,
        "rounds": len(run.history),
        "uplink": statistics.fmean(record["uplink"] for record in run.history),
        "downlink": statistics.fmean(record["downlink"] for record in run.history),
        "seconds": statistics.median(record["seconds"] for record in run.history),
    }


Found = Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]]
"""By group and method, by seed, what :func:`trained` returned."""


def found(
    runs: Sequence[Point],
    folder: Path,
    *,
    report: Callable[[Found], None],
    workers: int | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> Found:
    """Make the runs that are missing, and report on all of them, also if some failed.

    Raises:
        CellsFailed: some runs failed; the report covers the others.
    """
    cells = {point.cell.name: point for point in runs}
    failure: CellsFailed | None = None
    try:
        results = run_grid([point.cell for point in runs], folder, workers=workers, fresh=fresh, console=console)
    except CellsFailed as failed:
        results, failure = failed.results, failed
    by: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for name, result in results.items():
        point = cells[name]
        by.setdefault((point.group, point.method), {})[point.config.seed] = result
    report(by)
    if failure is not None:
        raise failure
    return by


def metric(by: Found, group: str, method: str, name: str) -> list[float]:
    """Return a metric's values, one a seed; empty if the method does not have the metric."""
    results = by.get((group, method), {})
    return [result["metrics"][name] for _, result in sorted(results.items()) if name in result["metrics"]]


def cost(by: Found, group: str, method: str, name: str) -> list[float]:
    """Return bytes or seconds a round, one value a seed."""
    return [float(result[name]) for _, result in sorted(by.get((group, method), {}).items())]


def gain(by: Found, group: str, method: str, name: str = "average_accuracy", over: str = "local") -> list[float]:
    """Return a metric's gain over another method with the same seed, one value for each seed that both have.

    >>> runs = {("d", "a"): {0: {"metrics": {"average_accuracy": 0.75}}}}
    >>> gain(runs | {("d", "local"): {0: {"metrics": {"average_accuracy": 0.5}}}}, "d", "a")
    [0.25]
    """
    mine, theirs = by.get((group, method), {}), by.get((group, over), {})
    both = sorted(mine.keys() & theirs.keys())
    return [mine[seed]["metrics"][name] - theirs[seed]["metrics"][name] for seed in both]
