"""Figures and tables of ``archipel bench em``, from the runs of :mod:`archipel.papers.federated_em.stationarity`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markdown import Markdown

from archipel.experiments.grids.grid import run_grid
from archipel.papers.federated_em import stationarity as em
from archipel.reports.figures import COLOURS, MARKERS, bare, save
from archipel.reports.provenance import provenance, provenance_line

Results = Mapping[str, dict[str, Any]]
LEVELS = (1e-3, 1e-5, 1e-7)
COMPRESSED, NOISY = 1e-5, (1e-2, 3e-3, 1e-3)
NOISE = 15.0
"""Height of the dotted line of the second figure, chosen by eye: the line shows proportionality."""
DASHES = ("-", "-", ":", "-", "-", "--")
SPENT = {"rounds": "round", "expectations": "conditional expectations", "bits": "bits sent to the server"}


def bench(
    out: Path, seeds: int, command: str, *, workers: int | None = None, fresh: bool = False, console: Console
) -> None:
    """Run what is missing, and write ``em.md``, ``em.json`` and two figures, as PNG and PDF."""
    results = run_grid(
        [*em.curves(seeds), *em.compression(), *em.noise()],
        out / "cells",
        workers=workers,
        fresh=fresh,
        console=console,
    )
    text = "\n\n".join([spent(results, seeds), regimes(results), noises(results), foot(seeds, command)]) + "\n"
    (out / "em.md").write_text(text)
    (out / "em.json").write_text(json.dumps({"command": command, "about": provenance(), "runs": results}) + "\n")
    drawn = [*save(field_figure(results, seeds), out, "em-field"), *save(regimes_figure(results), out, "em-regimes")]
    console.print(Markdown(text))
    console.print(f"{out}: em.md, em.json, {', '.join(path.name for path in drawn)}", markup=False, soft_wrap=True)


def of(results: Results, group: str, **at: Any) -> list[dict[str, Any]]:
    """Return the runs of a group at given values, such as ``n=16, omega=5``."""
    wanted = {f"{name}{value}" for name, value in at.items()}
    return [run for name, run in results.items() if _stands(name, group, wanted)]


def _stands(name: str, group: str, wanted: set[str]) -> bool:
    folder, _, settings = name.rpartition("/")
    return folder == group and wanted <= set(settings.split("-"))


# Figures


def field_figure(results: Results, seeds: int) -> Figure:
    """Draw ‖h(Ŝ)‖² against rounds, expectations and bits: the median over seeds, and each seed as a pale line."""
    figure = Figure(figsize=(11.0, 3.9), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (what, label) in zip(panels, SPENT.items(), strict=True):
        for place, name in enumerate(em.CURVES):
            runs = [results[f"curves/{place}-seed{seed}"] for seed in range(seeds)]
            values = np.array([run["stationarity"] for run in runs])
            x = np.arange(1, values.shape[1] + 1) if what == "rounds" else np.array(runs[0][what])
            style = {"color": COLOURS[place], "linestyle": DASHES[place]}
            for run in values:
                axes.plot(x, run, linewidth=0.5, alpha=0.3, **style)
            axes.plot(x, np.median(values, 0), linewidth=1.6, label=name if what == "rounds" else None, **style)
        axes.set(xlabel=label, yscale="log", xscale="linear" if what == "rounds" else "log")
        axes.grid(alpha=0.3)
        bare(axes)
    panels[0].set_ylabel("‖h(Ŝ)‖²")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def regimes_figure(results: Results) -> Figure:
    """Draw rounds to ε by ω and n, the noise level that minibatches leave, and expectations to ε by method."""
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for place, n in enumerate((4, 16, 64, 256)):
        rounds = [em.fewest(of(results, "compression", n=n, omega=omega), COMPRESSED) for omega in em.SPARSE]
        _line(left, list(em.SPARSE), rounds, place, f"n = {n}")
    left.set(xlabel="ω", ylabel="rounds, best step", title=f"all data, rounds to ε = {COMPRESSED:.0e}")
    left.set_ylim(bottom=0)
    scale = []
    for place, (n, b) in enumerate(product((16, 64), (16, 64))):
        for omega in (0, 5):
            x = [rate * (1 + omega) / (n * b) for rate in em.RATES]
            y = [_level(results, n, b, omega, rate) for rate in em.RATES]
            face = COLOURS[place] if omega == 0 else "white"
            style = {"color": COLOURS[place], "marker": MARKERS[place], "markerfacecolor": face}
            middle.plot(x, y, linestyle="", markersize=6, label=f"n = {n}, b = {b}" if omega == 0 else None, **style)
            scale += x
    ends = np.array([min(scale), max(scale)])
    middle.plot(ends, ends * NOISE, ":", color="black", linewidth=1)
    middle.set(xlabel="γ (1 + ω)/(n b)", ylabel="‖h(Ŝ)‖², last 100 rounds", xscale="log", yscale="log")
    middle.set_title("minibatches (open: ω = 5)")
    for name in ("FedEM", "FedEM, minibatches", "VR-FedEM"):
        place, levels = list(em.CURVES).index(name), np.logspace(-1.5, -8, 14).tolist()
        spend = [_expectations(results[f"curves/{place}-seed0"], epsilon) for epsilon in levels]
        _line(right, levels, spend, place, name)
    right.set(xlabel="ε", ylabel="conditional expectations", title="what ε costs", xscale="log", yscale="log")
    right.invert_xaxis()
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        bare(axes)
    return figure


def _level(results: Results, n: int, b: int, omega: int, rate: float) -> float:
    """Return the mean of ‖h(Ŝ)‖² over a run's last 100 rounds."""
    (run,) = of(results, f"noise/b{b}", n=n, omega=omega, rate=rate)
    return float(np.mean(run["stationarity"][-100:]))


def _line(axes: Axes, x: Sequence[float], y: Sequence[int | None], place: int, label: str) -> None:
    values = [np.nan if v is None else float(v) for v in y]
    axes.plot(x, values, "-", color=COLOURS[place], marker=MARKERS[place], markersize=4, label=label)


def _expectations(run: em.Trace, epsilon: float) -> int | None:
    rounds = em.reached(run, epsilon)
    return None if rounds is None else int(run["expectations"][rounds - 1])


# Tables


def spent(results: Results, seeds: int) -> str:
    """Return a table of the cost of reaching ε by method: medians over seeds."""
    heads = [f"ε = {epsilon:.0e}: rounds, expectations, kB up" for epsilon in LEVELS]
    rows = []
    for place, name in enumerate(em.CURVES):
        runs = [results[f"curves/{place}-seed{seed}"] for seed in range(seeds)]
        entries = [_spent(runs, epsilon) for epsilon in LEVELS]
        rest = float(np.median([np.mean(run["stationarity"][-50:]) for run in runs]))
        rows.append([name, f"{runs[0]['omega']:.1f}", *entries, f"{rest:.0e}"])
    return _table(f"16 clients, steps of 0.5, medians over {seeds} seeds", ["", "ω", *heads, "last 50 rounds"], rows)


def _spent(runs: Sequence[em.Trace], epsilon: float) -> str:
    found = [em.reached(run, epsilon) for run in runs]
    if None in found:
        return "–"
    at = [(r, run["expectations"][r - 1], run["bits"][r - 1] / 8e3) for r, run in zip(found, runs, strict=True) if r]
    rounds, expectations, kilobytes = np.median(np.array(at), axis=0)
    return f"{rounds:.0f}, {expectations:,.0f}, {kilobytes:,.0f}"


def regimes(results: Results) -> str:
    """Return a table of rounds to ε at the best step with all data, by n and ω."""
    rows = []
    for n in (4, 16, 64, 256):
        rounds = {o: em.fewest(of(results, "compression", n=n, omega=o), COMPRESSED) for o in em.SPARSE}
        marked = [
            f"{rounds[o] or '–'}{' *' if 0 < o**3 <= n else ''}{_factor(rounds[o], rounds[0])}" for o in em.SPARSE
        ]
        rows.append([f"n = {n}", *marked])
    title = f"All data, rounds to ε = {COMPRESSED:.0e} at the best of the steps 1, 0.5, 0.25 (* n ≥ ω³)"
    return _table(title, ["", *(f"ω = {omega}" for omega in em.SPARSE)], rows)


def noises(results: Results) -> str:
    """Return a table for minibatches: rounds to ε at the best step, and the level that each step reaches."""
    rows = []
    for n, b in ((16, 16), (16, 64), (64, 16), (64, 64)):
        for omega in (0, 5):
            runs = of(results, f"noise/b{b}", n=n, omega=omega)
            rounds = [em.fewest(runs, epsilon) for epsilon in NOISY]
            floors = [_level(results, n, b, omega, rate) for rate in em.RATES]
            row = [f"n = {n}, b = {b}, ω = {omega}", *(str(r or "–") for r in rounds), *(f"{v:.1e}" for v in floors)]
            rows.append(row)
    heads = [*(f"rounds to ε = {epsilon:.0e}" for epsilon in NOISY), *(f"level at γ = {rate}" for rate in em.RATES)]
    title = "Minibatches: rounds to ε at the best step, and the mean of ‖h(Ŝ)‖² over the last 100 of 300 rounds"
    return _table(title, ["", *heads], rows)


def _factor(rounds: int | None, plain: int | None) -> str:
    return f" (× {rounds / plain:.1f})" if rounds and plain and rounds != plain else ""


def foot(seeds: int, command: str) -> str:
    """Return the lines below the tables: how and where they were made."""
    lines = [
        f"Spherical Gaussian mixture, K = {em.COMPONENTS}, d = {em.DIMENSION}, q = {em.STATISTICS} statistics; "
        f"{em.EXAMPLES:,} examples, sorted by component with noise and cut into equal parts.",
        "All columns include the exchange before the first round (Ŝ_0 and V_0, uncompressed, three passes).",
        "A run reaches ε in the first of five consecutive rounds whose mean ‖h(Ŝ)‖² is at most ε.",
        f"Command: `{command}`; {seeds} seeds for the first table, one for the others.",
        provenance_line(),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
