"""The figure of ``make speed``: bars for workloads, curves for what varies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from archipel.reports.figures import COLOURS, GREY, MARKERS, bare
from speed.measure import PEERS, Plan, Results, median
from speed.report import usable

BARS = ("W1", "W2", "W3", "W4", "W5", "W6")
CURVES = {
    "population": "clients enrolled, 100 a round",
    "cohort": "clients a round",
    "model": "hidden units, 0: none",
    "workers": "workers",
}
KINDS = {"archipel": (COLOURS[0], "Archipel"), "floor": (COLOURS[4], "bare PyTorch"), "peer": (GREY, "others")}


def draw(results: Results, plan: Plan) -> Figure:
    """Draw a panel for each timed workload.

    Args:
        results: of :func:`speed.measure.measure`.
        plan: what was measured, for titles.
    """
    shown = [name for name in (*BARS, *CURVES) if any(usable(one) for one in results.get(name, {}).values())]
    columns = min(3, len(shown)) or 1
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        found = {contender: one for contender, one in results[name].items() if usable(one)}
        if name in CURVES:
            curves(axes, found, CURVES[name])
        else:
            bars(axes, found)
        axes.set_title(name, fontsize=10)
        bare(axes)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    handles = [Patch(color=colour, label=label) for colour, label in KINDS.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def bars(axes: Axes, found: Mapping[str, Any]) -> None:
    """Draw milliseconds a round with the turns' range, the fastest on top."""
    order = sorted(found, key=lambda name: -median(found[name]))
    for place, name in enumerate(order):
        turns = [1e3 * median({"turns": [turn]}) for turn in found[name]["turns"]]
        middle = 1e3 * median(found[name])
        axes.barh(place, middle, 0.7, color=KINDS[_kind(found[name])][0])
        axes.plot([min(turns), max(turns)], [place, place], color="black", linewidth=1)
        shown = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
        axes.annotate(shown, (max(turns), place), (3, 0), textcoords="offset points", va="center", size=7)
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.set_xlabel("ms a round", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="x", labelsize=8)
    axes.margins(x=0.15)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def curves(axes: Axes, found: Mapping[str, Any], label: str) -> None:
    """Draw milliseconds a round against what varies; a contender's name ends with its point on the curve."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, one in found.items():
        title, _, point = name.rpartition(": ")
        lines.setdefault(title, []).append((float(point.replace(",", "")), 1e3 * median(one)))
    for place, (title, points) in enumerate(lines.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=COLOURS[place], marker=MARKERS[place], markersize=5, label=title or None)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=7)
    spread = [point[0] for points in lines.values() for point in points]
    if min(spread) > 0 and max(spread) > 20 * min(spread):
        axes.set(xscale="log", yscale="log" if len(lines) > 1 else "linear")
    if len(lines) == 1:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(label, fontsize=8)
    axes.set_ylabel("ms a round", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def _kind(one: Mapping[str, Any]) -> str:
    if one["kind"] == "archipel":
        return "archipel"
    return "peer" if one["kind"] in PEERS else "floor"
