"""Figures of a report, as SVG to be put into a page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.reports.figures import COLOURS, MARKERS, bare
from archipel.reports.site_tables import title_of
from archipel.runs.metrics.assessment import Assessment, Row

SMALL = 8.5


def inline(figure: Figure, about: str) -> Markup:
    """Return a figure as an SVG element with a description for readers who can't see it."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": about, "svg.fonttype": "path"}):  # the same figure gives the same bytes
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{Markup.escape(about)}"', 1))


def _plain(text: str, most: int = 28) -> str:
    """Return a text as matplotlib draws it literally: a dollar sign begins no formula."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("$", r"\$")


def training_curves(history: Sequence[dict[str, Any]], names: Mapping[str, str]) -> Figure:
    """Draw the loss, and metrics of evaluated rounds.

    Args:
        history: of a run.
        names: the metrics to draw, and what they are called.
    """
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    loss, metric = figure.subplots(1, 2)
    points = [(record["round"], record["loss"]) for record in history if isinstance(record.get("loss"), float)]
    loss.plot([x for x, _ in points], [y for _, y in points], color=COLOURS[0])
    loss.set(xlabel="round", ylabel="training loss")
    for place, (name, title) in enumerate(names.items()):
        points = [(r["round"], r["metrics"][name]) for r in history if name in r.get("metrics", {})]
        if points:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            metric.plot(xs, ys, color=COLOURS[place], marker=MARKERS[place], markersize=4, label=title)
    metric.set(xlabel="round", ylabel="on test examples")
    if metric.get_legend_handles_labels()[0]:
        metric.legend(frameon=False, fontsize=SMALL)
    for axes in (loss, metric):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        bare(axes)
    return figure


def forest(assessment: Assessment, metric: str, most: int = 40) -> Figure:
    """Draw a metric of every site with its interval, a marker for each model.

    Args:
        assessment: to draw.
        metric: its name.
        most: sites; the first ones are drawn, and all together.
    """
    sites = list(dict.fromkeys((row.site, row.pooled) for row in assessment.rows))
    sites = [site for site in sites if not site[1]][:most] + [site for site in sites if site[1]]
    models = assessment.models
    by = {(row.site, row.pooled, row.model): row.metrics[metric] for row in assessment.rows}
    figure = Figure(figsize=(7.2, 0.9 + 0.18 * len(models) * len(sites)), layout="constrained")
    axes = figure.add_subplot()
    for which, model in enumerate(models):
        first = True
        for place, site in enumerate(sites):
            found = by.get((*site, model))
            if found is None or found.value is None:
                continue
            height = place + 0.22 * (which - (len(models) - 1) / 2)
            low, high = (found.value if limit is None else limit for limit in (found.low, found.high))
            bars = [[max(found.value - low, 0.0)], [max(high - found.value, 0.0)]]
            axes.errorbar(
                [found.value], [height], xerr=bars, color=COLOURS[which % len(COLOURS)], markersize=4.5, capsize=2,
                marker=MARKERS[which % len(MARKERS)], linewidth=1.2, label=_plain(model) if first else None,
            )  # fmt: skip
            first = False
    axes.set_yticks(range(len(sites)), [_plain(site) for site, _ in sites])
    axes.set(xlabel=title_of(metric), ylim=(len(sites) - 0.5, -0.5))
    if assessment.classes is not None and metric != "brier":
        axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="x", alpha=0.3)
    bare(axes)
    figure.legend(loc="outside upper center", ncols=len(models), frameon=False, fontsize=SMALL)
    return figure


def calibration(rows: Sequence[Row], most: int = 8) -> Figure:
    """Draw reliability curves, a panel for each row: predicted probabilities against the shares that came true.

    Args:
        rows: of one model; the last one is drawn in any case.
        most: panels.
    """
    chosen = list(rows) if len(rows) <= most else [*rows[: most - 1], rows[-1]]
    columns = min(len(chosen), 4)
    lines = -(-len(chosen) // columns)
    figure = Figure(figsize=(7.2, 0.3 + 1.95 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for place, axes in enumerate(panels):
        if place >= len(chosen):
            axes.set_axis_off()
            continue
        row = chosen[place]
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
        xs, ys = [p["predicted"] for p in row.curve], [p["observed"] for p in row.curve]
        errors = [[y - p["low"] for y, p in zip(ys, row.curve, strict=True)],
                  [p["high"] - y for y, p in zip(ys, row.curve, strict=True)]]  # fmt: skip
        axes.errorbar(xs, ys, yerr=errors, color=COLOURS[0], fmt="o", markersize=3.5, elinewidth=1, capsize=1.5)
        axes.set_title(f"{_plain(row.site, 20)}, n = {row.n}", fontsize=SMALL)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axes.tick_params(labelsize=SMALL)
        bare(axes)
    figure.supxlabel("predicted probability", fontsize=SMALL + 1)
    figure.supylabel("share that came true", fontsize=SMALL + 1)
    return figure
