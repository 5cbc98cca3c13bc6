"""What ``archipel bench consensus`` writes: a table for each data set, the chosen settings, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from archipel.papers.consensus.entrants import BATCH, ENTRANTS, STEPS
from archipel.papers.consensus.tuning import Choice, Plan, Result
from archipel.reports.provenance import provenance_line
from archipel.reports.tables import Column, Entry, Table, as_csv, for_terminal, markdown


def table(result: Result) -> Table:
    """Return accuracies in % and traffic in kB."""
    rows = {method: ENTRANTS[method].title for method in result.runs}

    def of(name: str) -> dict[str, Entry | None]:
        values = {
            m: [run["metrics"][name] for run in runs if name in run["metrics"]] for m, runs in result.runs.items()
        }
        return {method: Entry.of(found, 100) for method, found in values.items()}

    def traffic(way: str) -> dict[str, Entry | None]:
        shares = 1e-3 / (result.islands.rounds * result.islands.clients)
        return {m: Entry.of([run[way] for run in runs if way in run], shares) for m, runs in result.runs.items()}

    columns = [
        Column("Accuracy", "global", of("global_accuracy"), "high"),
        Column("Accuracy", "personal before adaptation", of("average_before_accuracy")),
        Column("Accuracy", "personal", of("average_accuracy"), "high"),
        Column("Accuracy", "worst client", of("worst_accuracy"), "high"),
        Column("kB a client and round", "up", traffic("uplink")),
        Column("kB a client and round", "down", traffic("downlink")),
    ]
    return Table(result.islands.title, rows, columns)


def report(out: Path, results: Mapping[str, Result], plan: Plan, command: str, console: Console | None) -> None:
    """Write and print the tables."""
    tables = [table(result) for result in results.values()]
    lines = "\n".join(f"- {line}" for line in foot(results, plan, command))
    out.mkdir(parents=True, exist_ok=True)
    (out / "consensus.md").write_text("\n".join(markdown(shown) for shown in tables) + f"\n{lines}\n")
    (out / "consensus.csv").write_text(as_csv(tables))
    if console is not None:
        for shown in tables:
            console.print(*for_terminal(shown, console.width))
        console.print(f"{out / 'consensus.md'}, consensus.csv", markup=False, soft_wrap=True)


def foot(results: Mapping[str, Result], plan: Plan, command: str) -> list[str]:
    """Return the lines below the tables: their meaning, the chosen settings, and how they were made."""
    tries = plan.rates * plan.penalties
    lines = [
        f"Means ± standard deviations over {plan.seeds} seed{'s' * (plan.seeds > 1)} of first models and minibatches, "
        "on one division of the data. Accuracies are in %; personal: each client's model on its own test examples, "
        "weighted by training examples, after adaptation where the method adapts; (1), (2), (3): first, second, third.",
        f"Every method was tried at {tries} settings, {plan.rates} rates with {plan.penalties} penalties each, "
        f"or {tries} rates if it has no penalty. The settings with the best personal accuracy on validation examples "
        "were used.",
        f"In a round a client makes {STEPS} steps of batch {BATCH}; Ditto and APFL {STEPS} of each of two models, and "
        "L2SGD and ProxSkip that many on average. kB (10³ bytes): means over clients and rounds; Pooled's are of the "
        "examples, which are sent once.",
    ]
    for name, result in results.items():
        chosen = ", ".join(f"{ENTRANTS[m].title} {described(m, choice)}" for m, choice in result.choices.items())
        islands = result.islands
        lines.append(f"{name}, {islands.clients} clients, {islands.rounds} rounds, chosen: {chosen}.")
    return [*lines, f"Command: `{command}`", provenance_line()]


def described(method: str, choice: Choice | None) -> str:
    """Describe the settings chosen for a method.

    >>> described("fedprox", (0.1, 0.01)), described("fedavg", None)
    ('lr 0.1 μ 0.01', 'diverged')
    """
    if choice is None:
        return "diverged"
    rate, penalty = choice
    return f"lr {rate:g}" + (f" {ENTRANTS[method].symbol} {penalty:g}" if penalty is not None else "")
