"""The figures of a run, and the list of what a configuration can name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Group
from rich.table import Table

from archipel.algorithm import Routes
from archipel.data.federation import Federation
from archipel.data.sources.catalogue import sources
from archipel.experiments.building import federation_from
from archipel.experiments.config import RunConfig
from archipel.experiments.methods import KINDS
from archipel.experiments.presets import PRESETS
from archipel.models.registry import ENCODERS
from archipel.runs.run import Run


def draw(config: RunConfig, run: Run, folder: Path, federation: Federation | None = None) -> None:
    """Draw the figures of a run, unless they show its last round already.

    Args:
        config: of the run.
        run: that is drawn.
        folder: of the run.
        federation: the configured one, if the caller has built it.
    """
    place = folder / "figures"
    drawn = place / "accuracy.png"
    metrics = folder / "metrics.jsonl"
    if drawn.exists() and metrics.exists() and drawn.stat().st_mtime >= metrics.stat().st_mtime:
        return
    from archipel.reports import figures  # loads matplotlib, which takes a second

    federation = federation or federation_from(config)
    if federation.classes is not None:
        figures.save(figures.federation_figure(federation), place, "federation")
    if isinstance(run.algorithm, Routes):
        figures.save(figures.routing_confusion(run, federation), place, "routing")
    title = type(run.algorithm).__name__
    figures.save(figures.accuracy_curves({title: run.history}), place, "accuracy")


def catalogue() -> Group:
    """Return tables of all that a configuration can name, with a line on each."""
    algorithms = {name: _first_line(kind) for name, kind in KINDS.items()}
    data = sources() | {"arrays": "Your own: a folder with one file for each client, .npz with x and y or a table."}
    encoders = {name: _about(make) for name, make in ENCODERS.items()}
    presets = {name: preset.about for name, preset in PRESETS.items()}
    titles = {"algorithm.name": algorithms, "data.source": data, "encoder.name": encoders, "presets": presets}
    tables = []
    for title, entries in titles.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, about in entries.items():
            table.add_row(name, about)
        tables.append(table)
    return Group(*tables)


def _about(make: Callable[..., object]) -> str:
    if isinstance(make, partial):
        fixed = ", ".join(f"{option} {value}" for option, value in make.keywords.items())
        return f"{_first_line(make.func)} ({fixed})"
    return _first_line(make)


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n", 1)[0]
