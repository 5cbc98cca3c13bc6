"""The model card of a bundle: what was trained on what, how well it does, and what it reveals."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from archipel.data.card import card
from archipel.data.federation import Federation
from archipel.runs.run import Run
from archipel.trust.reveals import told
from archipel_serve.manifest import Manifest


def write_card(run: Run, manifest: Manifest, folder: Path, federation: Federation | None = None) -> None:
    """Write ``card.json``, and ``card.html`` for people.

    Args:
        run: what was trained.
        manifest: of the bundle.
        folder: of the bundle.
        federation: the run's, whose card is included without its rows; ``None``: nothing is said of the data.
    """
    content = card_of(run, manifest, federation)
    (folder / "card.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "card.html").write_text(_page(content))


def card_of(run: Run, manifest: Manifest, federation: Federation | None = None) -> dict[str, Any]:
    """Return the model card in JSON's types. A site's card has the metrics of no other site."""
    rows = [row for row in run.table if manifest.site is None or row.get("client") == manifest.site]
    found: dict[str, Any] = {
        "method": manifest.method,
        "created": manifest.created,
        "versions": manifest.versions,
        "bundle of": manifest.site or "all sites",
        "sites": len(manifest.names),
        "training examples": sum(manifest.sizes),
        "rounds": len(run.history),
        "classes": list(manifest.classes) if manifest.classes is not None else f"{manifest.outputs} numbers",
        "metrics": {name: _plain(value) for name, value in run.metrics.items()},
        "metrics per site": [{name: _plain(value) for name, value in row.items()} for row in rows],
        "answers": _answers(manifest),
        "missing": manifest.missing,
    }
    if federation is not None:
        data = card(federation)
        found["data"] = {"title": data.title, "notes": list(data.notes)}
        found["sent in training"] = told(run.algorithm, federation)
    found["reveals"] = _reveals(manifest)
    return found


def _answers(manifest: Manifest) -> str:
    if manifest.site is not None:
        return f"{manifest.site} answers, by its own model"
    if "router" in manifest.graphs:
        return "the site that a query is routed to, by its own model; or a site that is named"
    return "the global model; or a site" if "global" in manifest.graphs else "a vote of all sites; or a site"


def _reveals(manifest: Manifest) -> list[str]:
    """Say what whoever holds the bundle can read in it."""
    said = [
        "names and numbers of training examples of all sites",
        "mean and standard deviation of each channel over all training examples",
    ]
    if "router" in manifest.graphs:
        said.append("the router's parameters, which tell how the sites' queries differ")
    models = "the answer model of one site" if manifest.site is not None else "the answer models of all sites"
    return [*said, f"{models}; models can be asked whether an example was in their training data"]


def _plain(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _page(content: dict[str, Any]) -> str:
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in content.items())
    style = "body{font:16px system-ui;max-width:60rem;margin:2rem auto}th{text-align:left;vertical-align:top}"
    style += "th,td{padding:.3rem 1rem .3rem 0}:root{color-scheme:light dark}"
    title = html.escape(f"{content['method']}: {content['bundle of']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"<h1>{title}</h1><table>{rows}</table></html>\n"
    )


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(f"<tr><th>{html.escape(str(k))}</th><td>{_cell(v)}</td></tr>" for k, v in value.items())
        return f"<table>{inner}</table>"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        heads = "".join(f"<th>{html.escape(str(name))}</th>" for name in value[0])
        body = "".join("<tr>" + "".join(f"<td>{_cell(v)}</td>" for v in row.values()) + "</tr>" for row in value)
        return f"<table><tr>{heads}</tr>{body}</table>"
    if isinstance(value, list):
        return "<br>".join(html.escape(str(one)) for one in value)
    return html.escape(str(value))
