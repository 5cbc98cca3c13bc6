"""A comparison of methods as tables (Markdown, CSV, LaTeX), which method for which site, and a figure."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from archipel.experiments.comparing.comparison import OVERALL, Comparison
from archipel.experiments.comparing.differences import Difference
from archipel.experiments.comparing.sweeping import Point, Sweep
from archipel.reports.figures import COLOURS, MARKERS, bare, save
from archipel.reports.provenance import provenance_line
from archipel.reports.site_tables import title_of
from archipel.reports.tables import Column, Entry, Table, as_csv, for_terminal, latex, markdown
from archipel.runs.metrics.assessment import POOLED

LOWER_IS_BETTER = ("brier", "mae", "rmse")


def yardstick(found: Comparison) -> str:
    """Return the method that the others are compared with: training alone if it is there, else the first."""
    return "local" if "local" in found.methods else found.methods[0]


def scores_table(found: Comparison) -> Table:
    """Return the metric of every method overall and at each site: means and standard deviations over seeds."""
    sign = -1.0 if found.metric in LOWER_IS_BETTER else 1.0
    rows = {method: found.titles[method] for method in found.methods}

    def column(title: str, site: str) -> Column:
        values = {m: [sign * v for v in found.scores[m].get(site, {}).values()] for m in found.methods}
        entries = {m: Entry.of(one) for m, one in values.items()}
        # Two digits are too few for an AUC: percent for what lies between 0 and 1.
        scale = 100 if found.metric not in ("mae", "rmse") else 1
        entries = {m: Entry.of(values[m], scale) for m in entries}
        return Column("", title, entries, "low" if sign < 0 else "high")

    percent = "" if found.metric in ("mae", "rmse") else ", in %"
    title = f"{title_of(found.metric)} on test examples{percent}; mean ± SD over {found.seeds} splits"
    sent = {m: Entry.of([found.bytes[m]], 1e-6) for m in found.methods}
    columns = [column(POOLED, OVERALL), *(column(site, site) for site in found.sites)]
    return Table(title, rows, [*columns, Column("", "MB sent", sent)])


def differences_table(found: Comparison) -> list[list[str]]:
    """Return rows of texts: method, site, mean difference to the yardstick, and its interval."""
    base = yardstick(found)
    lines = [["method", "site", f"difference to {found.titles[base]}", "95 % interval", "seeds"]]
    for method in found.methods:
        for site in (OVERALL, *found.sites) if method != base else ():
            one = found.against(method, base, site)
            if one is not None:
                lines.append([found.titles[method], site or POOLED, signed(one.mean), interval(one), str(one.seeds)])
    return lines


def interval(one: Difference) -> str:
    """Write the interval of a difference.

    >>> interval(Difference(0.1, -0.05, 0.25, 5)), interval(Difference(0.1, None, None, 1))
    ('−0.0500 to +0.2500', '–')
    """
    if one.low is None or one.high is None:
        return "–"
    return f"{signed(one.low)} to {signed(one.high)}"


def signed(value: float) -> str:
    """Write a difference with its sign.

    >>> signed(-0.5)
    '−0.5000'
    """
    return f"{value:+.4f}".replace("-", "−")


def which_for_whom(found: Comparison) -> list[list[str]]:
    """Return rows of texts: for each site the best method, and whether it can be told from the next."""
    lines = [["site", "best mean", "next", "difference", "95 % interval", "verdict"]]
    for site in (OVERALL, *found.sites):
        order = found.ranked(site)
        if len(order) < 2:
            continue
        best, other = order[:2]
        one = found.against(best, other, site)
        if one is None:
            continue
        verdict = found.titles[best] if one.clear else "not told apart"
        names = [site or POOLED, found.titles[best], found.titles[other]]
        lines.append([*names, signed(one.mean), interval(one), verdict])
    return lines


def figure(found: Comparison) -> Figure:
    """Draw the paired differences to the yardstick, overall and at each site, with their intervals."""
    base, sites = yardstick(found), [OVERALL, *found.sites]
    others = [method for method in found.methods if method != base]
    drawing = Figure(figsize=(6.8, 1.0 + 0.2 * (len(others) + 1) * len(sites)), layout="constrained")
    axes = drawing.add_subplot()
    axes.axvline(0, color="0.6", linewidth=1)
    for which, method in enumerate(others):
        label: str | None = found.titles[method]
        for place, site in enumerate(sites):
            one = found.against(method, base, site)
            if one is None:
                continue
            low, high = (one.mean if limit is None else limit for limit in (one.low, one.high))
            height = place + 0.7 * ((which + 0.5) / len(others) - 0.5)
            axes.errorbar(
                [one.mean], [height], xerr=[[one.mean - low], [high - one.mean]], capsize=2, markersize=4.5,
                color=COLOURS[which % len(COLOURS)], marker=MARKERS[which % len(MARKERS)], linestyle="", label=label,
            )  # fmt: skip
            label = None
    names = [(site or POOLED).replace("$", r"\$") for site in sites]
    axes.set_yticks(range(len(sites)), names)
    sign = "−" if found.metric in LOWER_IS_BETTER else ""  # so that positive is better
    title = f"{sign}{title_of(found.metric)}, difference to {found.titles[base]}"
    axes.set(ylim=(len(sites) - 0.5, -0.5), xlabel=title)
    axes.grid(axis="x", alpha=0.3)
    bare(axes)
    drawing.legend(loc="outside upper center", ncols=max(1, len(others)), frameon=False, fontsize=9)
    return drawing


def foot(found: Comparison, command: str) -> list[str]:
    """Return the lines below the tables: what was done, what the intervals mean, and how to repeat it."""
    search = (
        f"Every method tried {found.tries} settings on each split (Optuna's TPE; the first try: the settings as given) "
        "and was tested with those that were best on the split's validation examples."
        if found.tries
        else "No settings were tuned."
    )
    lines = [
        f"{found.seeds} splits of each site's examples; a split's seed also seeds training. {search}",
        "Differences are paired by split, errors with their sign turned, so that positive is better. Intervals: "
        "corrected resampled t (Nadeau and Bengio 2003), since splits overlap; test/training "
        f"examples {found.ratio:.2f}. They are of one comparison each; of many, some exclude 0 by chance.",
        *(f"{found.titles[method]} diverged: {why}" for method, why in found.failed.items()),
        f"Command: `{command}`",
        provenance_line(),
    ]
    for method in found.methods if found.tries else ():
        chosen = "; ".join(
            f"seed {seed}: {', '.join(f'{name} {value:.3g}' for name, value in one.items())}"
            for seed, one in found.chosen[method].items()
        )
        lines.append(f"{found.titles[method]}, chosen: {chosen}.")
    return lines


def write(found: Comparison, folder: Path, command: str, console: Console | None = None) -> list[Path]:
    """Write ``compare.md``, ``.csv``, ``.tex``, ``differences.csv`` and the figure, print the tables, return paths."""
    table = scores_table(found)
    blocks = [markdown(table), "**Which method for which site**\n\n" + _markdown(which_for_whom(found)),
              "**Paired differences**\n\n" + _markdown(differences_table(found))]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("compare.md", "compare.csv", "compare.tex", "differences.csv")]
    lines = "\n".join(f"- {line}" for line in foot(found, command))
    paths[0].write_text("\n".join(blocks) + f"\n{lines}\n")
    paths[1].write_text(as_csv([table]))
    paths[2].write_text(latex(table))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(differences_table(found))
    paths[3].write_text(text.getvalue())
    if console is not None:
        console.print(*for_terminal(table, console.width))
        for row in which_for_whom(found)[1:]:
            console.print(
                f"{row[0]}: {row[5]} ({row[1]} before {row[2]}: {row[3]}, {row[4]})", markup=False, soft_wrap=True
            )
    return [*paths, *save(figure(found), folder, "compare")]


def sweep_table(found: Sweep) -> RichTable:
    """Return the points of a sweep as a table, the best first."""
    table = RichTable(title=f"{title_of(found.metric)} on validation examples, all sites", title_justify="left")
    keys = list(dict.fromkeys(key for point in found.points for key in point.settings))
    for key in keys:
        table.add_column(key)
    table.add_column(title_of(found.metric), justify="right")
    for point in _ordered(found):
        value = "diverged" if point.validation is None else f"{point.validation:.4f}"
        table.add_row(*(escape(str(point.settings.get(key, ""))) for key in keys), value)
    return table


def sweep_rows(found: Sweep) -> str:
    """Return the points of a sweep as CSV, the best first."""
    keys = list(dict.fromkeys(key for point in found.points for key in point.settings))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, f"validation {found.metric}"])
    writer.writerows([*(point.settings.get(key) for key in keys), point.validation] for point in _ordered(found))
    return text.getvalue()


def _ordered(found: Sweep) -> list[Point]:
    return sorted(found.points, key=lambda point: -math.inf if point.validation is None else point.validation)[::-1]


def _markdown(rows: list[list[str]]) -> str:
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
