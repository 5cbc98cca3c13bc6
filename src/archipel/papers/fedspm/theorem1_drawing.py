"""The drawing of ``archipel bench theorem1``: the rate in T, and the trade-off in μ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from archipel.papers.fedspm.theorem1 import Point
from archipel.reports.figures import COLOURS, MARKERS, bare


def draw(points: Sequence[Point]) -> Figure:
    """The rate with its bound, and √T times the measured value and the bound against μ."""
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    rate, measured, promised = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    momenta, rounds = sorted({p.momentum for p in points}), sorted({p.rounds for p in points})
    for i, momentum in enumerate(momenta):
        mine = [p for p in points if p.momentum == momentum]
        x = [float(p.rounds) for p in mine]
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        rate.plot(x, [p.measured for p in mine], marker, color=colour, markersize=5, label=f"μ = {momentum:g}")
        rate.plot(x, [p.exact for p in mine], color=colour, linewidth=1)
        rate.plot(x, [p.bound for p in mine], "--", color=colour, linewidth=1)
    last = np.array([rounds[0], rounds[-1]])
    line = 0.6 * min(p.exact for p in points if p.rounds == last[0]) * np.sqrt(last[0] / last)
    rate.plot(last, line, ":", color="black", linewidth=1.3, label="slope −1/2")
    rate.set(
        xscale="log", yscale="log", xlabel="rounds T, η = c/√T", title=r"mean over rounds of $\Vert\nabla F\Vert^2$"
    )
    rate.set_xticks(rounds, [str(T) for T in rounds])
    rate.xaxis.minorticks_off()
    for i, T in enumerate(rounds):
        mine = [p for p in points if p.rounds == T]
        x, root = [p.momentum for p in mine], math.sqrt(T)
        style = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 5}
        measured.errorbar(
            x,
            [root * p.measured for p in mine],
            [2 * root * p.error for p in mine],
            linestyle="",
            capsize=2,
            label=f"T = {T}",
            **style,
        )
        measured.plot(x, [root * p.exact for p in mine], color=COLOURS[i], linewidth=1)
        promised.plot(x, [root * p.bound for p in mine], "--", linewidth=1, label=f"T = {T}", **style)
    measured.set(xlabel="momentum μ", title="√T × the mean")
    promised.set(xlabel="momentum μ", title="√T × Theorem 1's bound")
    for axes in (rate, measured, promised):
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
        bare(axes)
    extra = [Line2D([], [], color="grey", linestyle=dash) for dash in ("-", "--")]
    handles, labels = rate.get_legend_handles_labels()
    rate.legend(
        [*handles, *extra],
        [*labels, "expected", "bound"],
        frameon=False,
        fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )
    measured.legend(frameon=False, fontsize=8)
    promised.legend(frameon=False, fontsize=8)
    return figure
