"""The benchmarks' figures, in the style of :mod:`archipel.reports.figures`."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.reports.figures import COLOURS, bare, save
from archipel.reports.tables import Entry

__all__ = ["against_components", "bars", "save"]

GREY = "#8C8C8C"
OURS = {"fedspm": (COLOURS[0], ""), "fedspm-cx": (COLOURS[5], "///")}
"""FedSPM's colour and hatch; all others are grey."""


def against_components(entries: Mapping[int, Entry]) -> Figure:
    """System accuracy ± standard deviation against the number of components."""
    figure = Figure(figsize=(4.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    sds = [entry.sd or 0.0 for entry in entries.values()]
    means = [entry.mean for entry in entries.values()]
    axes.errorbar(list(entries), means, sds, fmt="o-", color=COLOURS[0], capsize=3, markersize=5)
    axes.set(xlabel="number of components C", ylabel="system accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.08, y=0.15)
    axes.grid(axis="y", alpha=0.3)
    bare(axes)
    return figure


def bars(panels: Mapping[str, Mapping[str, Entry | None]], names: Mapping[str, str], title: str) -> Figure:
    """A panel a metric with a bar a method; a panel shows only the methods that have its metric.

    Args:
        panels: by their titles, entries by method.
        names: of the methods.
        title: above the figure.
    """
    shown = {head: [m for m in names if entries.get(m) is not None] for head, entries in panels.items()}
    widths = [0.6 + len(methods) for methods in shown.values()]
    figure = Figure(figsize=(1.8 + 0.42 * sum(widths), 3.9), layout="constrained")
    grid = figure.add_gridspec(1, len(panels), width_ratios=widths)
    for place, (head, entries) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[0, place])
        for position, method in enumerate(shown[head]):
            entry = entries[method]
            assert entry is not None
            colour, hatch = OURS.get(method, (GREY, ""))
            axes.bar(position, entry.mean, 0.72, color=colour, edgecolor="white", hatch=hatch)
            if entry.sd is not None:
                axes.errorbar(position, entry.mean, entry.sd, color="black", capsize=2, linewidth=1)
            top = entry.mean + (entry.sd or 0.0)
            axes.annotate(f"{entry.mean:.0f}", (position, top), (0, 2), textcoords="offset points", ha="center", size=7)
        labels = [names[method].replace(" (1×)", "") for method in shown[head]]
        axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_xlim(-0.6, max(len(labels), 1) - 0.4)
        axes.set_ylim(0, 100)
        axes.set_title(head, fontsize=10)
        if place == 0:
            axes.set_ylabel("accuracy (%)")
        axes.tick_params(axis="y", labelsize=8)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        bare(axes)
    figure.suptitle(title, fontsize=10)
    return figure
