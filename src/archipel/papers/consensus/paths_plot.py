"""The figure of ``archipel bench paths``: a panel for each method, theory as lines, runs as markers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse

from archipel.papers.consensus.path_theory import CURVATURES, EARLY, MINIMA, optimum
from archipel.papers.consensus.paths import PATHS, Path
from archipel.reports.figures import COLOURS, MARKERS, bare


def draw(paths: Sequence[Path] = PATHS) -> Figure:
    """Run every method at its penalties, and draw its fixed points over the theory's."""
    columns = 4
    rows = -(-(len(paths) + 1) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, columns).ravel()
    for axes, path in zip(panels, paths, strict=False):
        panel(axes, path)
    for axes in panels[len(paths) :]:
        axes.set_axis_off()
    legend(panels[-1])
    return figure


def panel(axes: Axes, path: Path) -> None:
    """Draw one method: its clients' models from their local optima, as the penalty grows."""
    landscape(axes)
    curve = path.curve()
    for k in range(len(MINIMA)):
        axes.plot(*curve[:, k].T, color=COLOURS[k], linewidth=1.4, zorder=2)
    for penalty in path.penalties:
        for k, end in enumerate(path.run(penalty)):
            axes.plot(
                *end, marker=MARKERS[k], color=COLOURS[k], markersize=5, markeredgecolor="white", zorder=4, mew=0.6
            )
    if path.early is not None:
        measured, expected = path.early
        line = np.stack([expected(float(value)) for value in np.linspace(0, 1, 100)])
        for k in range(len(MINIMA)):
            axes.plot(*line[:, k].T, color=COLOURS[k], linestyle=":", linewidth=1.2, zorder=2)
        for value in (0.1, 0.2, 0.3):
            for k, end in enumerate(measured(value)):
                axes.plot(*end, marker=MARKERS[k], color=COLOURS[k], markersize=5, markerfacecolor="white", zorder=4)
    axes.text(0.98, 0.98, path.note, transform=axes.transAxes, ha="right", va="top", fontsize=7.5, color="0.35")
    values = ", ".join(f"{penalty:g}" for penalty in sorted(path.penalties))
    axes.set_title(f"{path.name}, ${path.symbol}$ = {values}", fontsize=8)


def landscape(axes: Axes) -> None:
    """Draw local optima with a contour of each client's loss, and the consensus."""
    for k, (curvature, minimum) in enumerate(zip(CURVATURES, MINIMA, strict=True)):
        values, directions = np.linalg.eigh(curvature)
        width, height = 2 * 0.28 / np.sqrt(values)
        angle = float(np.degrees(np.arctan2(directions[1, 0], directions[0, 0])))
        contour = Ellipse(tuple(minimum), width, height, angle=angle, fill=False, color=COLOURS[k], alpha=0.35)
        axes.add_patch(contour)
    axes.plot(*optimum(), marker="*", color="black", markersize=10, linestyle="", zorder=3)
    axes.set(xlim=(-1.4, 1.65), ylim=(-0.9, 1.65), aspect="equal", xticks=[], yticks=[])
    bare(axes)


def legend(axes: Axes) -> None:
    """Explain lines and markers."""
    clients = [
        Line2D([], [], color=COLOURS[k], marker=MARKERS[k], markeredgecolor="white", label=f"client {k + 1}")
        for k in range(len(MINIMA))
    ]
    meanings = [
        Line2D([], [], color="black", label="theory, as the penalty grows"),
        Line2D([], [], color="black", marker="o", linestyle="", markersize=5, label="the algorithm's fixed point"),
        Line2D([], [], color="black", marker="o", linestyle=":", markerfacecolor="white", markersize=5),
        Line2D([], [], color="black", marker="*", linestyle="", markersize=10, label="consensus, min Σ f"),
        Line2D([], [], color="grey", marker="o", linestyle="", markerfacecolor="none", markersize=12),
    ]
    meanings[2].set_label(f"APFL after {EARLY} rounds, α = 0.1, 0.2, 0.3")
    meanings[4].set_label("a contour of a client's loss")
    axes.legend(handles=[*clients, *meanings], loc="center", frameon=False, fontsize=8)
