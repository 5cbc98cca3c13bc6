"""The figure of ``archipel bench figure2``: rows by choice of γ, panels by quantity, lines by μ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.drm.bridge.errors import Estimates
from archipel.reports.figures import COLOURS, MARKERS, bare

PANELS = {
    "gradient": r"running mean of $\Vert\nabla f^{(t)}(\phi^{(t)})\Vert^2$",
    "epsilon_sum": r"$T^{-1}\sum_t \hat\varepsilon^{(t)}$",
    "delta_sum": r"$T^{-1/2}\sum_t \hat\delta^{(t)}$",
}
ROWS = {"normalised": "one constant for all γ: ∇f is ∇F", "balanced": "each γ at mass one"}


def draw(by: Mapping[tuple[str, float], Estimates]) -> Figure:
    """Draw six panels from estimates by choice of γ and momentum."""
    figure = Figure(figsize=(10.2, 5.4), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True)
    momenta = list(dict.fromkeys(momentum for _, momentum in by))
    for row, place in enumerate(ROWS):
        for axes, (name, title) in zip(panels[row], PANELS.items(), strict=True):
            found = {momentum: by[place, momentum] for momentum in momenta}
            panel(axes, found, name)
            if row == 0:
                axes.set_title(title, fontsize=10)
            else:
                axes.set_xlabel("round")
        panels[row][0].set_ylabel(ROWS[place] + _gaps([by[place, momentum] for momentum in momenta]), fontsize=9)
    handles: dict[str, Artist] = {}
    for axes in panels.ravel():
        lines, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    handles = {label: handles[label] for label in map("μ = {:g}".format, momenta) if label in handles}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, fontsize=9)
    return figure


def _gaps(found: Sequence[Estimates]) -> str:
    gaps = sum(len(estimate.gaps) for estimate in found)
    total = gaps + sum(len(estimate.t) for estimate in found)
    return f"\n(eq. (6) unsolvable in {gaps} of {total} rounds)" if gaps else ""


def panel(axes: Axes, found: Mapping[float, Estimates], name: str) -> None:
    """Draw one quantity against rounds, or say that no momentum has it."""
    for i, (momentum, estimate) in enumerate(found.items()):
        if not estimate.t:
            continue
        axes.plot(
            estimate.t,
            getattr(estimate, name),
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=3.5,
            markevery=max(1, len(estimate.t) // 8),
            linewidth=1.2,
            label=f"μ = {momentum:g}",
        )
    if name == "gradient" and any(estimate.t for estimate in found.values()):
        axes.set_yscale("log")
    if not any(estimate.t for estimate in found.values()):
        axes.set_yticks([])
        axes.text(
            0.5,
            0.5,
            "eq. (6) has no solution\nin any measured round",
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=9,
            color="dimgrey",
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(which="both", labelsize=8)
    axes.grid(alpha=0.3)
    bare(axes)
