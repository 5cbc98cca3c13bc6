"""What a benchmark of the FedSPM paper writes: tables in three formats, with settings, command and revision below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from archipel.papers.fedspm.baselines import METHODS, PAPER, Setting
from archipel.papers.fedspm.cells import Found, Point, cost, found, gain, metric
from archipel.reports.provenance import provenance_line
from archipel.reports.run_tables import METRICS
from archipel.reports.tables import Column, Entry, Table, as_csv, for_terminal, latex, markdown

TITLES = {"fashion-mnist": "FMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fed-isic2019": "Fed-ISIC2019"}
PLACES = ("source", "data_dir", "cache_dir", "verify", "options")
"""Settings of the data section that the foot leaves out."""

ACCURACIES = {"system_accuracy": "System accuracy", "average_accuracy": "Average accuracy"}
COLUMNS = f"""System: {METRICS["system"]}; average: {METRICS["average"]}. Means ± standard deviations over seeds
(divided by n − 1); (1), (2), (3): the best three values shown. Accuracies, gains and calibration errors
(ECE, 15 bins) are in %; MB (10⁶ bytes) of all clients together in a round; seconds: a round's median, on one thread,
while the other workers were busy."""


def rows(methods: Sequence[str]) -> dict[str, str]:
    """Return the titles of a table's rows by method."""
    return {method: METHODS[method].title for method in methods}


def accuracies(
    by: Found, groups: Mapping[str, str], methods: Sequence[str], paper: Mapping[tuple[str, str, str], Entry | None]
) -> list[Column]:
    """Return system and average accuracy in every group, each beside the paper's.

    Args:
        by: what was found.
        groups: their heads, by name.
        methods: the rows.
        paper: its entries by group, metric and method; a group without entries gets no column of the paper.
    """
    columns = []
    for name, title in ACCURACIES.items():
        for group, head in groups.items():
            ours = {method: Entry.of(metric(by, group, method, name), 100) for method in methods}
            columns.append(Column(title, head, ours, "high"))
            # Entries of all the paper's methods, so that the marks are the paper's, whichever rows are shown.
            theirs = {method: paper.get((group, name, method)) for method in PAPER}
            if any(theirs.values()):
                columns.append(Column(title, f"{head}, paper", theirs, "high"))
    return columns


def beyond(by: Found, group: str, methods: Sequence[str]) -> list[Column]:
    """Return metrics that the paper does not report: worst clients, gain, routing, calibration, traffic and time."""

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
    """Return one line about each setting."""
    lines = []
    for group, setting in settings.items():
        config = setting.config(method, 0)
        given = {**setting.data, **setting.data.get("options", {})}
        data = ", ".join(f"{key} {value}" for key, value in given.items() if key not in PLACES)
        local = getattr(config.algorithm, "local", None)
        steps = ""
        if local is not None:
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


@dataclass(frozen=True)
class Benchmark:
    """Where and how a benchmark runs.

    Args:
        out: folder of its runs and results.
        seeds: number of seeds 0, 1, …
        command: what the user typed, for the foot of tables.
        workers: number of processes; ``None``: one a core.
        fresh: start anew.
        console: where results are printed; progress goes to the error stream.
        notes: printed and written with the results.
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
            raise ValueError(f"seeds must be a whole number of at least 1; given {self.seeds!r}.")

    def run(self, runs: Sequence[Point], report: Callable[[Found], None]) -> Found:
        """Make the runs that are missing, and report on all of them."""
        return found(runs, self.out / "runs", report=report, workers=self.workers, fresh=self.fresh)

    def finish(self, name: str, tables: Sequence[Table], settings: Sequence[str], extra: Sequence[Path] = ()) -> None:
        """Write the tables with their foot, print them, and print where they are."""
        written = [*write(self.out, name, tables, foot(settings, self.seeds, self.command, self.notes)), *extra]
        if self.console is not None:
            for table in tables:
                self.console.print(*for_terminal(table, self.console.width))
            for note in self.notes:
                self.console.print(note, markup=False, highlight=False, soft_wrap=True)
            self.console.print(*written, sep="\n", markup=False, highlight=False, soft_wrap=True)


def foot(settings: Sequence[str], seeds: int, command: str, notes: Sequence[str] = ()) -> list[str]:
    """Return the lines below a table: how and where it was made."""
    return [
        *notes,
        *settings,
        f"{seeds} seed{'s' if seeds > 1 else ''}, of the run and of the division of its data unless that is given; all "
        "clients take part in every round.",
        f"Command: `{command}`",
        provenance_line(),
    ]


def write(out: Path, name: str, tables: Sequence[Table], below: Sequence[str]) -> list[Path]:
    """Write ``name.md``, ``.csv`` and ``.tex``.

    Args:
        out: the folder.
        name: of the files.
        tables: in their order.
        below: lines of the foot.
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
