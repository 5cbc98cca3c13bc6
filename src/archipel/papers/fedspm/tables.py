"""The FedSPM paper's Tables 1 and 2 and Figures 3 and 4, from runs of our own.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from archipel.papers.fedspm import paper
from archipel.papers.fedspm.baselines import METHODS, PAPER, Setting
from archipel.papers.fedspm.points import Found, Point, found, metric, points
from archipel.papers.fedspm.reports import TITLES, accuracies, beyond, described, foot, rows, write
from archipel.reports.tables import Column, Entry, Table, for_terminal


@dataclass(frozen=True)
class Grid:
    """How a benchmark is carried out.

    Args:
        out: the folder of its runs and results.
        seeds: 0, 1, … of these.
        command: what was asked for, for the foot.
        workers: processes; ``None``: one a core.
        fresh: start anew.
        console: where results are printed; progress goes to the error stream.
        notes: what must be said with the results.
    """

    out: Path
    seeds: int = 1
    command: str = ""
    workers: int | None = None
    fresh: bool = False
    console: Console | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.seeds, bool) or self.seeds < 1:
            raise ValueError(f"A benchmark needs at least one seed; given {self.seeds!r}.")

    def finish(self, name: str, tables: Sequence[Table], settings: Sequence[str], extra: Sequence[Path] = ()) -> None:
        """Writes the tables with their foot, prints them, and says where they are."""
        written = [*write(self.out, name, tables, foot(settings, self.seeds, self.command, self.notes)), *extra]
        if self.console is not None:
            for table in tables:
                self.console.print(*for_terminal(table, self.console.width))
            for note in self.notes:
                self.console.print(note, markup=False, highlight=False, soft_wrap=True)
            self.console.print(*written, sep="\n", markup=False, highlight=False, soft_wrap=True)


def table1(settings: Mapping[str, Setting], methods: Sequence[str], grid: Grid) -> Found:
    """Table 1: system and average accuracy on each data set beside the paper's, and what it doesn't report.

    Args:
        settings: by data set.
        methods: the rows.
        grid: how it is carried out.

    Returns:
        What was found; tables are in ``out/table1.md``, ``.csv`` and ``.tex``.
    """
    groups = {group: TITLES.get(group, group) for group in settings}
    theirs = {
        (group, name, method): Entry(*numbers)
        for group in settings
        for name in paper.METRICS
        for method in PAPER
        if (numbers := paper.table1(method, group, name)) is not None
    }

    def report(by: Found) -> None:
        first = Table("System and average accuracy", rows(methods), accuracies(by, groups, methods, theirs))
        others = [
            Table(f"{title}: what the paper doesn't report", rows(methods), beyond(by, group, methods))
            for group, title in groups.items()
        ]
        grid.finish("table1", [first, *others], described(settings))

    return _run(points(settings, methods, grid.seeds), grid, report)


def table2(setting: Setting, methods: Sequence[str], grid: Grid) -> Found:
    """Table 2: accuracies while the heterogeneity between clients varies, and while that within clients does.

    Args:
        setting: of Fashion-MNIST; its α_inter and α_intra are replaced.
        methods: the rows.
        grid: how it is carried out.

    Returns:
        What was found; tables are in ``out/table2.md``, ``.csv`` and ``.tex``.
    """
    alphas = {_heterogeneity(pair): pair for pair in (*paper.INTER, *paper.INTRA)}
    settings = {
        group: replace(setting, data={**setting.data, "alpha_inter": inter, "alpha_intra": intra})
        for group, (inter, intra) in alphas.items()
    }
    theirs = {
        (group, name, method): Entry(mean)
        for group, pair in alphas.items()
        for name in paper.METRICS
        for method in PAPER
        if (mean := paper.table2(method, pair, name)) is not None
    }

    def report(by: Found) -> None:
        tables = []
        for title, pairs, which in (
            ("Inter-client heterogeneity, α_intra = 2", paper.INTER, 0),
            ("Intra-client heterogeneity, α_inter = 1", paper.INTRA, 1),
        ):
            heads = {_heterogeneity(pair): f"α = {pair[which]:g}" for pair in pairs}
            tables.append(Table(title, rows(methods), accuracies(by, heads, methods, theirs)))
        grid.finish("table2", tables, described(settings))

    return _run(points(settings, methods, grid.seeds), grid, report)


def figure3(setting: Setting, components: Sequence[int], grid: Grid) -> Found:
    """Figure 3: FedSPM's system accuracy against C, with a shared encoder.

    Args:
        setting: of Fashion-MNIST.
        components: the values of C.
        grid: how it is carried out.

    Returns:
        What was found; ``out/figure3.png`` and ``.pdf``, and the numbers beside them.
    """
    runs = [
        Point(f"c{C}", "fedspm", setting.config("fedspm", seed, components=C), METHODS["fedspm"].cost * (1 + C) / 4)
        for C in components
        for seed in range(grid.seeds)
    ]

    def report(by: Found) -> None:
        from archipel.reports import (
            grid_figures as drawing,  # matplotlib costs a second, and a grid's processes don't draw
        )

        entries = {
            name: {f"c{C}": Entry.of(metric(by, f"c{C}", "fedspm", name), 100) for C in components}
            for name in ("system_accuracy", "average_accuracy", "routing_accuracy")
        }
        columns = [Column("Accuracy", name.split("_")[0], by_c) for name, by_c in entries.items()]
        table = Table("FedSPM (1×) with C components", {f"c{C}": f"C = {C}" for C in components}, columns)
        drawn = {C: entry for C in components if (entry := entries["system_accuracy"][f"c{C}"]) is not None}
        paths = drawing.save(drawing.against_components(drawn), grid.out, "figure3")
        grid.finish("figure3", [table], described({"figure3": setting}), paths)

    return _run(runs, grid, report)


def figure4(setting: Setting, methods: Sequence[str], grid: Grid, *, title: str = "Fed-ISIC2019") -> Found:
    """Figure 4: average, system and routing accuracy by centre of Fed-ISIC2019.

    Args:
        setting: of Fed-ISIC2019.
        methods: the bars.
        grid: how it is carried out.
        title: what the data are, above the figure.

    Returns:
        What was found; ``out/figure4.png`` and ``.pdf``, and the numbers beside them.
    """
    group = "fed-isic2019"

    def report(by: Found) -> None:
        from archipel.reports import grid_figures as drawing

        names = {"average_accuracy": "average", "system_accuracy": "system", "routing_accuracy": "routing"}
        entries = {
            name: {method: Entry.of(metric(by, group, method, name), 100) for method in methods} for name in names
        }
        columns = [Column("Accuracy", head, entries[name], "high") for name, head in names.items()]
        tables = [
            Table(title, rows(methods), columns),
            Table(f"{title}: what the paper doesn't report", rows(methods), beyond(by, group, methods)),
        ]
        panels = {head.capitalize(): entries[name] for name, head in names.items()}
        paths = drawing.save(drawing.bars(panels, rows(methods), title), grid.out, "figure4")
        grid.finish("figure4", tables, described({group: setting}), paths)

    return _run(points({group: setting}, methods, grid.seeds), grid, report)


def _run(runs: Sequence[Point], grid: Grid, report: Callable[[Found], None]) -> Found:
    return found(runs, grid.out / "runs", report=report, workers=grid.workers, fresh=grid.fresh)


def _heterogeneity(pair: tuple[float, float]) -> str:
    return f"inter{pair[0]:g}-intra{pair[1]:g}"
