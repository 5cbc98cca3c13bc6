"""A report on runs: one HTML file without scripts that a clinician can read, and that prints well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from archipel.algorithm import Routes
from archipel.data.federation import Federation
from archipel.experiments.building import federation_from
from archipel.experiments.comparing.assessing import assessed
from archipel.experiments.config import RunConfig
from archipel.experiments.loading import config_of
from archipel.experiments.reading import to_yaml
from archipel.reports import site_tables
from archipel.reports.page import drawings
from archipel.runs.metrics.assessment import Assessment, Row
from archipel.runs.metrics.subgroups import MINIMUM, Subgroup, subgroups
from archipel.runs.run import Run
from archipel.trust.reveals import told

CURVES = {
    "system_accuracy": "accuracy, queries without a sender",
    "average_accuracy": "accuracy, own model of each site",
    "system_rmse": "RMSE, queries without a sender",
    "average_rmse": "RMSE, own model of each site",
}
MOST_ROUTED = 20
"""Sites of a routing matrix that can be read."""


@dataclass(frozen=True)
class By:
    """Subgroups by a column.

    Args:
        column: its name.
        limits: between the subgroups; empty: the training mean.
    """

    column: str
    limits: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> By:
        """Read ``age`` or ``age=50,65``.

        >>> By.parse("age=50,65")
        By(column='age', limits=(50.0, 65.0))
        >>> By.parse("sex=male")
        By(column='sex=male', limits=())
        """
        column, equals, limits = text.rpartition("=")
        try:
            return cls(column, tuple(float(limit) for limit in limits.split(","))) if equals else cls(text)
        except ValueError:
            return cls(text)


def report(
    folders: Sequence[Path],
    *,
    positive: str | None = None,
    local: bool = False,
    by: Sequence[By] = (),
    minimum: int = MINIMUM,
    title: str | None = None,
) -> str:
    """Return a page on one run, or on several beside each other.

    Args:
        folders: of runs of the command.
        positive: the positive one of two classes; ``None``: the second.
        local: train each site alone for comparison (:func:`archipel.experiments.comparing.assessing.assessed`).
        by: columns for subgroups.
        minimum: examples of a subgroup at a site below which the site doesn't send its counts.
        title: of the page.

    Raises:
        ValueError: a run's data have changed, or a column or class doesn't exist.
        FileNotFoundError: there is no run in a folder.
    """
    parts = [_part(folder, positive, local, by, minimum) for folder in folders]
    names = ", ".join(dict.fromkeys(part["data"] for part in parts))
    loader = PackageLoader("archipel.reports.page", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"number": site_tables.number, "interval": site_tables.interval,
                            "metric": site_tables.title_of, "bytes": readable_bytes}  # fmt: skip
    template = environment.get_template("report.html.jinja")
    return template.render(title=title or f"Learning together: {names}", parts=parts, how=site_tables.HOW)


def _part(folder: Path, positive: str | None, local: bool, by: Sequence[By], minimum: int) -> dict[str, Any]:
    config = config_of(folder)
    run, evaluation = assessed(folder, positive=positive, local=local)
    federation = federation_from(config)
    sites, method = evaluation.sites, type(run.algorithm).__name__
    part: dict[str, Any] = {
        "folder": str(folder), "method": method, "about": (type(run.algorithm).__doc__ or "").split("\n")[0],
        "data": federation.name, "sites": _sizes(run, federation), "classes": run.facts.classes,
        "features": run.facts.inputs.features, "rounds": len(run.history), "planned": run.rounds, "seed": run.seed,
        "traffic": _traffic(run), "config": to_yaml(config), "environment": _environment(folder),
        "fingerprint": federation.fingerprint, "metrics": evaluation.metrics,
        "dropped": sorted({name for record in run.history for name in record.get("dropped", {})}),
    }  # fmt: skip
    part["sent"] = told(run.algorithm, federation, config.groups)
    part["curves"] = drawings.inline(
        drawings.training_curves(run.history, {k: v for k, v in CURVES.items() if k in evaluation.metrics}),
        "Loss and metrics by round",
    )
    part["routing"] = _routing(run, federation) if isinstance(run.algorithm, Routes) else None
    part |= {"table": None, "worst": None, "forest": None, "calibration": None, "warnings": [], "headline": None}
    if sites is not None:
        part |= _of_sites(sites, method)
    part["groups"] = _groups(run, federation, config, by, minimum, positive)
    part["minimum"] = minimum
    return part


def _of_sites(sites: Assessment, method: str) -> dict[str, Any]:
    own = sites.of(method)
    main = "auc" if sites.classes is not None else next(name for name in sites.rows[0].metrics if name[:2] == "r2")
    ranked = "balanced_accuracy" if sites.classes is not None else main
    known = [row for row in own.values() if row.metrics[ranked].value is not None]
    pooled = next(row for row in sites.rows if row.pooled and row.model == method)
    blocks: list[tuple[str, bool, list[Row]]] = []
    for row in sites.rows:
        if not blocks or blocks[-1][:2] != (row.site, row.pooled):
            blocks.append((row.site, row.pooled, []))
        blocks[-1][2].append(row)
    rows = [*own.values(), pooled]
    return {
        "table": {"blocks": blocks, "metrics": list(pooled.metrics), "about": site_tables.about(sites)},
        "worst": min(known, key=lambda row: row.metrics[ranked].value or 0.0) if len(known) > 1 else None,
        "ranked": ranked,
        "headline": {"metric": main, "pooled": pooled, "alone": _pooled(sites, "Local")},
        "forest": drawings.inline(drawings.forest(sites, main), f"{site_tables.title_of(main)} of each site"),
        "calibration": drawings.inline(drawings.calibration(rows), "Reliability curves") if sites.classes else None,
        "warnings": sites.warnings,
    }  # fmt: skip


def _pooled(sites: Assessment, model: str) -> Row | None:
    return next((row for row in sites.rows if row.pooled and row.model == model), None)


def _sizes(run: Run, federation: Federation) -> list[dict[str, Any]]:
    return [
        {"name": client.name, "train": size, "test": len(client.test["y"])}
        for client, size in zip(federation.clients, run.facts.sizes, strict=True)
    ]


def _traffic(run: Run) -> dict[str, Any]:
    up, down = (sum(int(record[way]) for record in run.history) for way in ("uplink", "downlink"))
    seats = sum(int(record["cohort"]) for record in run.history) or 1
    return {"up": up, "down": down, "each_up": up / seats, "each_down": down / seats}


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / "environment.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _routing(run: Run, federation: Federation) -> dict[str, Any]:
    """Count where each site's test examples are sent, the first sites only if there are many."""
    names = list(run.facts.names)
    rows = []
    for client in federation.clients[:MOST_ROUTED]:
        if len(client.test["y"]):
            to = torch.bincount(run.route(client.test["x"]).clients, minlength=len(names)).tolist()
            shares = [n / sum(to) for n in to]
            rows.append({"name": client.name, "cells": list(zip(to, shares, strict=True))[:MOST_ROUTED]})
    return {"names": names[:MOST_ROUTED], "rows": rows, "left_out": max(0, len(names) - MOST_ROUTED)}


def _groups(
    run: Run, federation: Federation, config: RunConfig, by: Sequence[By], minimum: int, positive: str | None
) -> list[tuple[str, list[Subgroup]]]:
    chosen = None
    if positive is not None and run.facts.classes is not None:
        chosen = run.facts.classes.index(positive)
    found = []
    for one in by:
        with run.asking(federation, config.setting) as (clients, key):
            rows = subgroups(run.algorithm, run.server, clients, federation, key, one.column, one.limits,
                             positive=chosen, minimum=minimum)  # fmt: skip
        found.append((one.column, rows))
    return found


def readable_bytes(count: float) -> str:
    """Write a number of bytes for people.

    >>> readable_bytes(1234), readable_bytes(5_000_000), readable_bytes(12)
    ('1.2 kB', '5 MB', '12 bytes')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.2g} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"
