"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from archipel.runs.prediction import Prediction
from archipel.runs.routing import Routing

METRICS = {
    "system": "queries of all clients, each routed",
    "average": "queries of known clients",
    "average_before": "queries of known clients, before adaptation",
    "routing": "queries routed to their own client",
    "global": "the shared model alone",
    "worst": "the client with the lowest value",
    "worst_decile": "the tenth of the clients with the lowest values",
    "ece": "answers: |probability given − share that is right|",
    "routing_ece": "routes: |probability given − share that is right|",
}


def percent(value: float | None) -> str:
    """Write a share as a percentage.

    >>> percent(0.8125), percent(None)
    ('81.2%', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}%"


def metrics_table(metrics: dict[str, float]) -> Table:
    """Return a table with a row for each metric, and what it measures."""
    table = Table(title="Metrics on test examples", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("about")
    for name, value in metrics.items():
        stem, _, unit = name.rpartition("_")
        shown = percent(value) if unit == "accuracy" else f"{value:.4g}"
        table.add_row(name.replace("_", " "), shown, METRICS.get(stem, METRICS.get(name, "")))
    return table


def clients_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row for each client: its sizes, its accuracy, and how many of its queries reach it."""
    table = Table(title="Clients", title_justify="left")
    columns = list(rows[0]) if rows else []
    for column in columns:
        table.add_column(column, justify="left" if column == "client" else "right")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    return table


def _cell(column: str, value: Any) -> str:
    if column in ("accuracy", "routed"):
        return percent(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def answers_as_json(
    names: Sequence[str], routing: Routing | None, answers: Prediction, top: int
) -> list[dict[str, Any]]:
    """Return a record for each query: ranked clients with probabilities, the answer, and the client that answered."""
    ranked = routing.ranked(top) if routing is not None else [[] for _ in names]
    records = []
    for i, name in enumerate(names):
        record: dict[str, Any] = {"input": name}
        if routing is not None:
            record["clients"] = [{"client": client, "probability": p} for client, p in ranked[i]]
        if answers.labels is None:
            record["prediction"] = answers.values[i].tolist()
        else:
            record |= {"prediction": answers.labels[i], "probability": float(answers.values[i].max())}
        records.append(record | {"answered_by": answers.answered_by[i]})
    return records


def answers_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return these records as a table; the client that answered is shown if it is not the most likely one."""
    routed = any("clients" in record for record in records)
    others = any(record["answered_by"] != _first(record) for record in records)
    table = Table(title="Queries", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("input", overflow="fold", min_width=12)
    if routed:
        table.add_column("most likely clients")
    table.add_column("prediction")
    if others:
        table.add_column("answered by")
    for record in records:
        row = [record["input"].rsplit("/", 1)[-1]]
        if routed:
            # No-break spaces keep a client and its probability on one line.
            ranked = (f"{entry['client']} {entry['probability']:.0%}" for entry in record["clients"])
            row.append(", ".join(words.replace(" ", "\u00a0") for words in ranked))
        answer = record["prediction"]
        if isinstance(answer, list):
            row.append(", ".join(f"{value:.4g}" for value in answer))
        else:
            row.append(f"{answer} {record['probability']:.0%}")
        table.add_row(*row, *([record["answered_by"]] if others else []))
    return table


def _first(record: dict[str, Any]) -> str | None:
    return record["clients"][0]["client"] if record.get("clients") else None
