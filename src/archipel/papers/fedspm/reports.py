"""What a benchmark writes: tables in three formats, with settings, command, machine and date at their foot."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from archipel.experiments.environment import environment
from archipel.experiments.methods import Local
from archipel.papers.fedspm.baselines import METHODS, PAPER, Setting
from archipel.papers.fedspm.points import Found, cost, gain, metric
from archipel.reports.run_tables import METRICS
from archipel.reports.tables import Column, Entry, Table, as_csv, latex, markdown

TITLES = {"fashion-mnist": "FMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fed-isic2019": "Fed-ISIC2019"}
PLACES = ("source", "data_dir", "cache_dir", "verify", "options")
"""Settings of data that don't say what they are."""

ACCURACIES = {"system_accuracy": "System accuracy", "average_accuracy": "Average accuracy"}
COLUMNS = f"""System: {METRICS["system"]}; average: {METRICS["average"]}. Means ± standard deviations over seeds
(divided by n − 1); (1), (2), (3): first, second and third of what is shown. Accuracies, gains and calibration errors
(ECE, 15 bins) are in %; MB (10⁶ bytes) of all clients together in a round; seconds: a round's median, on one thread,
beside as many others as there were workers."""


def rows(methods: Sequence[str]) -> dict[str, str]:
    """The rows of a table, by their keys."""
    return {method: METHODS[method].title for method in methods}


def accuracies(
    by: Found, groups: Mapping[str, str], methods: Sequence[str], paper: Mapping[tuple[str, str, str], Entry | None]
) -> list[Column]:
    """System and average accuracy in every group, each beside the paper's.

    Args:
        by: what was found.
        groups: their heads, by name.
        methods: the rows.
        paper: its entries by group, metric and method; a group without any has no column of the paper's.
    """
    columns = []
    for name, title in ACCURACIES.items():
        for group, head in groups.items():
            ours = {method: Entry.of(metric(by, group, method, name), 100) for method in methods}
            columns.append(Column(title, head, ours, "high"))
            # Of all the paper's methods, so that its marks are the paper's whatever rows are shown.
            theirs = {method: paper.get((group, name, method)) for method in PAPER}
            if any(theirs.values()):
                columns.append(Column(title, f"{head}, paper", theirs, "high"))
    return columns


def beyond(by: Found, group: str, methods: Sequence[str]) -> list[Column]:
    """What the paper doesn't report: the clients served worst, gain, routing, calibration, traffic and time."""

    def of(name: str) -> dict[str, Entry | None]:
        return {method: Entry.of(metric(by, group, method, name), 100) for method in methods}

    def costs(name: str, scale: float = 1.0) -> dict[str, Entry | None]:
        return {method: Entry.of(cost(by, group, method, name), scale) for method in methods}

    gains = {method: Entry.of(gain(by, group, method), 100) for method in methods if method != "local"}
    return [
        Column("Accuracy", "worst client", of("worst_accuracy"), "high"),
        Column("Accuracy", "worst 10 %", of("worst_decile_accuracy"), "high"),
        Column("Accuracy", "gain over Local", gains, "high"),
        Column("Accuracy", "routing", of("routing_accuracy"), "high"),
        Column("ECE", "answers", of("ece"), "low"),
        Column("ECE", "routing", of("routing_ece"), "low"),
        Column("A round", "MB up", costs("uplink", 1e-6)),
        Column("A round", "MB down", costs("downlink", 1e-6)),
        Column("A round", "seconds", costs("seconds")),
    ]


def described(settings: Mapping[str, Setting], method: str = "fedspm") -> list[str]:
    """A line on each setting."""
    lines = []
    for group, setting in settings.items():
        config = setting.config(method, 0)
        given = {**setting.data, **setting.data.get("options", {})}
        data = ", ".join(f"{key} {value}" for key, value in given.items() if key not in PLACES)
        local = getattr(config.algorithm, "local", None)
        steps = ""
        if isinstance(local, Local):
            steps = (
                f", {local.steps} local steps of batch {local.batch}, lr {local.lr:g} ({local.schedule}), momentum "
                f"{local.momentum:g}"
            )
        lines.append(
            f"{group}: {config.data.source}{f' ({data})' if data else ''}, {config.rounds} rounds, encoder "
            f"{config.encoder.name} with {config.encoder.features} features, router {setting.router['name']} with "
            f"{setting.router['features']}{steps}; FedSPM's E-step is {setting.expectation}."
        )
    return lines


def foot(settings: Sequence[str], seeds: int, command: str, notes: Sequence[str] = ()) -> list[str]:
    """How and where a benchmark was made."""
    about = environment()
    versions = ", ".join(f"{name} {about[name]}" for name in ("archipel", "torch", "numpy"))
    return [
        *notes,
        *settings,
        f"{seeds} seed{'s' if seeds > 1 else ''}, of the run and of the division of its data, where that isn't given; "
        "everybody takes part in every round.",
        f"Command: `{command}`",
        f"{about['date'][:10]}; {platform.machine()}, {os.cpu_count()} cores, {platform.system()}; Python "
        f"{about['python']}, {versions}; git {str(about['git'])[:12]}.",
    ]


def write(out: Path, name: str, tables: Sequence[Table], below: Sequence[str]) -> list[Path]:
    """Writes ``name.md``, ``.csv`` and ``.tex``.

    Args:
        out: the folder.
        name: of the files.
        tables: in their order.
        below: lines for the foot.
    """
    out.mkdir(parents=True, exist_ok=True)
    foot_lines = "\n".join(f"- {line}" for line in below)
    comments = "".join(f"% {line}\n" for line in [*COLUMNS.split("\n"), *below])
    texts = {
        "md": "\n".join(markdown(table) for table in tables) + f"\n{COLUMNS}\n\n{foot_lines}\n",
        "csv": as_csv(tables),
        "tex": "\n".join(latex(table) for table in tables) + comments,
    }
    paths = []
    for ending, text in texts.items():
        path = out / f"{name}.{ending}"
        path.write_text(text)
        paths.append(path)
    return paths
