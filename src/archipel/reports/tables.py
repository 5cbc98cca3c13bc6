"""Tables of means ± standard deviations, the best three marked: Markdown, CSV, LaTeX, and for the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable

MARKED = 3


@dataclass(frozen=True)
class Entry:
    """A cell.

    Args:
        mean: over seeds.
        sd: standard deviation over seeds, divided by n − 1; ``None`` for one seed, or if it is unknown.
        rank: 1, 2 or 3, if it is marked.
    """

    mean: float
    sd: float | None = None
    rank: int | None = None

    @classmethod
    def of(cls, values: Sequence[float], scale: float = 1.0) -> Entry | None:
        """Return mean and standard deviation of the values times a scale; ``None`` if there are no values.

        >>> Entry.of([0.25, 0.75], 100)
        Entry(mean=50.0, sd=35.35533905932738, rank=None)
        """
        scaled = [scale * value for value in values]
        if not scaled:
            return None
        return cls(statistics.fmean(scaled), statistics.stdev(scaled) if len(scaled) > 1 else None)

    @property
    def shown(self) -> str:
        """The mean as it is printed."""
        return f"{self.mean:.2f}"


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        group: what stands above it, and above its neighbours of the same group.
        title: its own head.
        entries: by row; a missing row or ``None`` is shown as a dash.
        best: which values are best, and marked; ``None``: none are.
    """

    group: str
    title: str
    entries: Mapping[str, Entry | None]
    best: Literal["high", "low"] | None = None

    @property
    def marked(self) -> Column:
        """With the ranks of the first three in its entries."""
        if self.best is None:
            return self
        shown = {row: float(entry.shown) for row, entry in self.entries.items() if entry is not None}
        places = ranks(shown, self.best)
        entries = {row: entry and replace(entry, rank=places.get(row)) for row, entry in self.entries.items()}
        return replace(self, entries=entries)


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: above it.
        rows: names of the rows, by the keys that entries have.
        columns: from left to right.
    """

    title: str
    rows: Mapping[str, str]
    columns: Sequence[Column]


def ranks(values: Mapping[str, float], best: Literal["high", "low"] = "high") -> dict[str, int]:
    """Return the first, second and third. Equal values share the better place, and the next place stays empty.

    >>> ranks({"a": 1.0, "b": 3.0, "c": 3.0, "d": 2.0, "e": 0.0})
    {'b': 1, 'c': 1, 'd': 3}
    """
    sign = -1 if best == "high" else 1
    keyed = {name: sign * value for name, value in values.items() if not math.isnan(value)}
    places = {name: 1 + sum(other < key for other in keyed.values()) for name, key in keyed.items()}
    return {name: place for name, place in sorted(places.items(), key=lambda item: item[1]) if place <= MARKED}


def markdown(table: Table) -> str:
    """Return the table in Markdown, with its title as a bold line."""
    columns = [column.marked for column in table.columns]
    heads = ["", *(f"{column.group}: {column.title}" if column.group else column.title for column in columns)]
    lines = [f"**{table.title}**", "", _bar(heads), _bar(["---", *["---:"] * len(columns)])]
    for row, name in table.rows.items():
        lines.append(_bar([name, *(_plain(column.entries.get(row)) for column in columns)]))
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """Return the table as a LaTeX ``table`` with booktabs' rules."""
    columns = [column.marked for column in table.columns]
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    above = " & ".join(["", *(rf"\multicolumn{{{n}}}{{c}}{{{tex(group)}}}" for group, n in groups)])
    heads = " & ".join(["", *(tex(column.title) for column in columns)])
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        rf"{above} \\",
        rf"{heads} \\",
        r"\midrule",
    ]
    for row, name in table.rows.items():
        lines.append(" & ".join([tex(name), *(_tex(column.entries.get(row)) for column in columns)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def as_csv(tables: Sequence[Table]) -> str:
    """Return all entries of some tables, one a line: table, row, group, column, mean, sd, rank."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "group", "column", "mean", "sd", "rank"])
    for table in tables:
        for column in (column.marked for column in table.columns):
            for row, name in table.rows.items():
                if (entry := column.entries.get(row)) is not None:
                    sd = "" if entry.sd is None else f"{entry.sd:.6g}"
                    values = [f"{entry.mean:.6g}", sd, entry.rank or ""]
                    writer.writerow([table.title, name, column.group, column.title, *values])
    return text.getvalue()


def for_terminal(table: Table, width: int = 80) -> list[RichTable]:
    """Return the table for a rich console, in as many pieces as its width needs.

    Args:
        table: to show.
        width: of the console, in characters.
    """
    columns = [(column, _texts(column, table.rows)) for column in (column.marked for column in table.columns)]
    names = max((len(name) for name in table.rows.values()), default=0) + 2
    pieces: list[list[tuple[Column, list[str]]]] = []
    left = 0
    for column, texts in columns:
        words = " ".join([column.group, column.title]).split()
        needed = 2 + max(map(len, [*texts, *words]))
        if needed > left or not pieces:
            pieces.append([])
            left = width - names - 2
        pieces[-1].append((column, texts))
        left -= needed
    return [_piece(table, piece, first=number == 0) for number, piece in enumerate(pieces)]


def _piece(table: Table, columns: Sequence[tuple[Column, list[str]]], first: bool) -> RichTable:
    title = table.title if first else None
    shown = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("", no_wrap=True)
    for column, _ in columns:
        shown.add_column(escape(f"{column.group}\n{column.title}" if column.group else column.title), justify="right")
    for place, (row, name) in enumerate(table.rows.items()):
        cells = [escape(texts[place]) for _, texts in columns]
        best = [(entry := column.entries.get(row)) is not None and entry.rank == 1 for column, _ in columns]
        shown.add_row(name, *(f"[bold]{cell}[/]" if top else cell for cell, top in zip(cells, best, strict=True)))
    return shown


def _texts(column: Column, rows: Mapping[str, str]) -> list[str]:
    # A no-break space: an entry stays on one line.
    return [_plain(column.entries.get(row)).replace(" ", "\u00a0") for row in rows]


def tex(text: str) -> str:
    r"""Escape LaTeX's special characters in a text.

    >>> tex("worst 10 % (C×), α_inter")
    'worst 10 \\% (C$\\times$), $\\alpha$\\_inter'
    """
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    for sign, command in {"×": r"\times", "α": r"\alpha", "±": r"\pm", "−": "-", "≥": r"\ge"}.items():
        text = text.replace(sign, f"${command}$")
    return text.replace("–", "--")


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    sd = "" if entry.sd is None else f" ± {entry.sd:.2f}"
    return f"{entry.shown}{sd}" + (f" ({entry.rank})" if entry.rank else "")


def _tex(entry: Entry | None) -> str:
    if entry is None:
        return "--"
    sd = "" if entry.sd is None else rf" \pm {entry.sd:.2f}"
    return f"${entry.shown}{sd}" + (f"^{{({entry.rank})}}$" if entry.rank else "$")
