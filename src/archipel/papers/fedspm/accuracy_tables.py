"""The FedSPM paper's Tables 1 and 2: system and average accuracy, beside the published numbers.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archipel.papers.fedspm import published
from archipel.papers.fedspm.baselines import PAPER, Setting
from archipel.papers.fedspm.cells import Found, points
from archipel.papers.fedspm.report import TITLES, Benchmark, accuracies, beyond, described, rows
from archipel.reports.tables import Entry, Table


def table1(settings: Mapping[str, Setting], methods: Sequence[str], benchmark: Benchmark) -> Found:
    """Make Table 1: accuracies on each data set, and metrics that the paper does not report.

    Args:
        settings: by data set.
        methods: the rows.
        benchmark: where and how it runs.

    Returns:
        What was found; the tables are in ``out/table1.md``, ``.csv`` and ``.tex``.
    """
    groups = {group: TITLES.get(group, group) for group in settings}
    theirs = {
        (group, name, method): Entry(*numbers)
        for group in settings
        for name in published.METRICS
        for method in PAPER
        if (numbers := published.table1(method, group, name)) is not None
    }

    def report(by: Found) -> None:
        first = Table("System and average accuracy", rows(methods), accuracies(by, groups, methods, theirs))
        others = [
            Table(f"{title}: what the paper does not report", rows(methods), beyond(by, group, methods))
            for group, title in groups.items()
        ]
        benchmark.finish("table1", [first, *others], described(settings))

    return benchmark.run(points(settings, methods, benchmark.seeds), report)


def table2(setting: Setting, methods: Sequence[str], benchmark: Benchmark) -> Found:
    """Make Table 2: accuracies while heterogeneity varies, first between clients, then within them.

    Args:
        setting: of Fashion-MNIST; its α_inter and α_intra are replaced.
        methods: the rows.
        benchmark: where and how it runs.

    Returns:
        What was found; the tables are in ``out/table2.md``, ``.csv`` and ``.tex``.
    """
    alphas = {_heterogeneity(pair): pair for pair in (*published.INTER, *published.INTRA)}
    settings = {
        group: replace(setting, data={**setting.data, "alpha_inter": inter, "alpha_intra": intra})
        for group, (inter, intra) in alphas.items()
    }
    theirs = {
        (group, name, method): Entry(mean)
        for group, pair in alphas.items()
        for name in published.METRICS
        for method in PAPER
        if (mean := published.table2(method, pair, name)) is not None
    }

    def report(by: Found) -> None:
        tables = []
        for title, pairs, which in (
            ("Inter-client heterogeneity, α_intra = 2", published.INTER, 0),
            ("Intra-client heterogeneity, α_inter = 1", published.INTRA, 1),
        ):
            heads = {_heterogeneity(pair): f"α = {pair[which]:g}" for pair in pairs}
            tables.append(Table(title, rows(methods), accuracies(by, heads, methods, theirs)))
        benchmark.finish("table2", tables, described(settings))

    return benchmark.run(points(settings, methods, benchmark.seeds), report)


def _heterogeneity(pair: tuple[float, float]) -> str:
    return f"inter{pair[0]:g}-intra{pair[1]:g}"
