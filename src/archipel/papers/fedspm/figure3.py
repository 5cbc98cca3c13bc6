"""The FedSPM paper's Figure 3: FedSPM against the number of its components, which share their encoder.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.papers.fedspm.baselines import METHODS, Setting
from archipel.papers.fedspm.cells import Found, Point, metric
from archipel.papers.fedspm.report import Benchmark, described
from archipel.reports.figures import COLOURS, bare, save
from archipel.reports.tables import Column, Entry, Table


def figure3(setting: Setting, components: Sequence[int], benchmark: Benchmark) -> Found:
    """Train FedSPM with each number of components, and draw system accuracy against it.

    Args:
        setting: of Fashion-MNIST.
        components: the values of C.
        benchmark: where and how it runs.

    Returns:
        What was found; ``out/figure3.png``, ``.pdf`` and the numbers as tables.
    """
    runs = [
        Point(f"c{C}", "fedspm", setting.config("fedspm", seed, components=C), METHODS["fedspm"].cost * (1 + C) / 4)
        for C in components
        for seed in range(benchmark.seeds)
    ]

    def report(by: Found) -> None:
        entries = {
            name: {f"c{C}": Entry.of(metric(by, f"c{C}", "fedspm", name), 100) for C in components}
            for name in ("system_accuracy", "average_accuracy", "routing_accuracy")
        }
        columns = [Column("Accuracy", name.split("_")[0], by_c) for name, by_c in entries.items()]
        table = Table("FedSPM (1×) with C components", {f"c{C}": f"C = {C}" for C in components}, columns)
        drawn = {C: entry for C in components if (entry := entries["system_accuracy"][f"c{C}"]) is not None}
        paths = save(against_components(drawn), benchmark.out, "figure3")
        benchmark.finish("figure3", [table], described({"figure3": setting}), paths)

    return benchmark.run(runs, report)


def against_components(entries: Mapping[int, Entry]) -> Figure:
    """Draw system accuracy ± standard deviation against the number of components."""
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
