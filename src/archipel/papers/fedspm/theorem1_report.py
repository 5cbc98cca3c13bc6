"""What ``archipel bench theorem1`` writes: a figure of the rate in T and the trade-off in μ, and a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from archipel.papers.fedspm.theorem1 import (
    MOMENTA,
    NOISE,
    RATE,
    REPETITIONS,
    ROUNDS,
    SIZES,
    SMOOTHNESS,
    START,
    STEPS,
    Point,
    point,
)
from archipel.reports.figures import COLOURS, MARKERS, bare, save
from archipel.reports.provenance import provenance, provenance_line


def draw(points: Sequence[Point]) -> Figure:
    """Draw the rate with its bound, and √T times the measured value and the bound against μ."""
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


def theorem1(out: Path, momenta: Sequence[float] = MOMENTA, rounds: Sequence[int] = ROUNDS) -> list[Path]:
    """Measure, and write ``theorem1.png``, ``.pdf``, ``.md`` and ``.json``."""
    points = [point(momentum, T) for momentum in momenta for T in rounds]
    paths = save(draw(points), out, "theorem1")
    (out / "theorem1.md").write_text(table(points))
    record = {"about": provenance(), "points": [asdict(p) | {"bound": p.bound} for p in points]}
    (out / "theorem1.json").write_text(json.dumps(record, indent=1) + "\n")
    return [*paths, out / "theorem1.md", out / "theorem1.json"]


def table(points: Sequence[Point]) -> str:
    """Return measured values and bounds in Markdown, with the settings below."""
    lines = [
        "| μ | T | measured | expected | bound | gap | noise | drift |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for p in points:
        numbers = (p.exact, p.bound, p.gap, p.noise, p.drift)
        shown = " | ".join(f"{number:.3g}" for number in numbers)
        lines.append(f"| {p.momentum:g} | {p.rounds} | {p.measured:.3g} ± {p.error:.1g} | {shown} |")
    settings = (
        f"\nMean of ‖∇f(φ^(t))‖² over t < T, ± its standard error over {REPETITIONS} repetitions; its expectation; "
        f"Theorem 1's bound and its terms. Quadratic clients with L = {SMOOTHNESS:g}, σ² = {NOISE:g}, E = {STEPS}, "
        f"η = {RATE:g}/√T, ρ = n_i/n of n_i = {', '.join(map(str, SIZES))}, ‖φ^(0) − ā‖ = {START:g}; Γ₁ = Γ₂ = 1, "
        f"δ = ε = 0. {provenance_line()}\n"
    )
    return "\n".join(lines) + "\n" + settings
