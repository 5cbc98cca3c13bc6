"""The tables of ``make speed``, its targets with the measurements, and its files."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from archipel.reports.provenance import provenance, revision_words
from speed.measure import EARLY, LATE, PEERS, Plan, Results, measure, median, ratio
from speed.plan import ARCHIPEL, INCREMENTAL, LOOP, PAIR, PLAIN, POOLING, ROUTER, TINY
from speed.work import found as data_found

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Reach:
    """A target and its measurement.

    Args:
        what: what is compared.
        most: the target, an upper bound.
        value: the measurement; ``None``: not measured.
        least, greatest: over turns, if there are several.
        unit: of the numbers.
    """

    what: str
    most: float
    value: float | None
    least: float | None = None
    greatest: float | None = None
    unit: str = ""

    @property
    def row(self) -> list[str]:
        """Target, measured, reached?"""
        if self.value is None:
            return [self.what, f"≤ {self.most:g}{self.unit}", "not measured", ""]
        spread = "" if self.least is None else f" ({self.least:.2f}–{self.greatest:.2f})"
        reached = "yes" if self.value <= self.most else "no"
        return [self.what, f"≤ {self.most:g}{self.unit}", f"{self.value:.2f}{spread}{self.unit}", reached]


def bench(
    out: Path,
    plan: Plan,
    command: str,
    peers: Mapping[str, str],
    *,
    data_dir: Path | None = None,
    console: Console,
) -> None:
    """Measure, print the tables, and write ``speed.md``, ``speed.json`` and a figure, as PNG and PDF."""
    out.mkdir(parents=True, exist_ok=True)
    data = data_found(data_dir)

    def write(results: Results, stopped: bool = False) -> str:
        text = report(results, plan, peers, command, data, stopped)
        about = {"command": command, "data": data, "stopped": stopped, "peers": sorted(peers), "machine": machine()}
        (out / "speed.json").write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
        (out / "speed.md").write_text(text)
        return text

    results, stopped = measure(plan, peers, data_dir=data_dir, keep=write)
    text = write(results, stopped)
    from archipel.reports.figures import save
    from speed.drawing import draw  # importing matplotlib takes a second

    drawn = save(draw(results, plan), out, "speed")
    console.print(Markdown(text))
    files = ", ".join(["speed.md", "speed.json", *(path.name for path in drawn)])
    console.print(f"{out}: {files}", markup=False, soft_wrap=True)


def report(
    results: Results, plan: Plan, peers: Mapping[str, str], command: str, data: str, stopped: bool = False
) -> str:
    """Return all tables with their foot in Markdown."""
    parts = ["**Stopped by Ctrl-C: only what was measured until then.**"] if stopped else []
    parts.append(_table("Targets", ["", "target", "measured", "reached"], [reach.row for reach in reaches(results)]))
    parts += [
        timings(name, plan.workloads[name].title, found)
        for name, found in results.items()
        if not plan.workloads[name].growth
    ]
    parts.append(foot(plan, peers, command, data))
    return "\n\n".join(parts) + "\n"


def usable(found: Found | None) -> bool:
    """Return whether a contender was timed."""
    return found is not None and bool(found.get("turns")) and "failed" not in found


def reaches(results: Results) -> list[Reach]:
    """Return the targets with their measurements."""
    W1, W2, W3 = (results.get(name, {}) for name in ("W1", "W2", "W3"))
    return [
        _against("W1: Archipel ÷ the fastest other simulator", 0.8, W1, _fastest(W1, list(PEERS))),
        _against(f"W1: Archipel ÷ {PAIR}", 1.1, W1, PAIR),
        _against(f"W1: Archipel ÷ {POOLING}", 1.1, W1, POOLING),
        _against("W2: Archipel ÷ pfl-research", 0.35, W2, _fastest(W2, ["pfl"])),
        _against("W2: Archipel ÷ FedJAX", 1.0, W2, _fastest(W2, ["fedjax"])),
        _mixture(W3),
        _overhead(results.get("overhead", {})),
        _population(results.get("population", {})),
        _growth(results.get("growth", {})),
    ]


def _fastest(found: Found, kinds: Sequence[str]) -> str | None:
    """Return the name of the fastest contender of some kinds."""
    timed = {name: median(one) for name, one in found.items() if one["kind"] in kinds and usable(one)}
    return min(timed, key=timed.__getitem__, default=None)


def _against(what: str, most: float, found: Found, other: str | None) -> Reach:
    if other is None or not usable(found.get(ARCHIPEL)) or not usable(found.get(other)):
        return Reach(what, most, None)
    named = what if other in what else f"{what} ({other})"
    return Reach(named, most, *ratio(found[ARCHIPEL], found[other]))


def _mixture(found: Found) -> Reach:
    """Compare FedSPM's round with the two rounds that train the same networks without a mixture."""
    what = "W3: FedSPM with the incremental E-step ÷ FedAvg of encoder and router"
    if not all(usable(found.get(name)) for name in (INCREMENTAL, PLAIN, ROUTER)):
        return Reach(what, 1.5, None)
    return Reach(what, 1.5, *ratio(found[INCREMENTAL], together(found[PLAIN], found[ROUTER])))


def together(one: Found, other: Found) -> Found:
    """Return the time of two rounds in sequence: sums of the turns' medians."""
    sums = [
        [median({"turns": [a]}) + median({"turns": [b]})] for a, b in zip(one["turns"], other["turns"], strict=False)
    ]
    return {"turns": sums}


def _overhead(found: Found) -> Reach:
    what = "the engine's cost a client-step in the loop"
    ours, floor = found.get("Archipel, loop"), found.get(LOOP)
    if ours is None or floor is None or not (usable(ours) and usable(floor)):
        return Reach(what, 0.2, None, unit=" ms")
    pairs = zip(ours["turns"], floor["turns"], strict=False)  # turn by turn, as for ratios: other load slows both
    rounds = [median({"turns": [a]}) - median({"turns": [b]}) for a, b in pairs]
    costs = [1e3 * seconds / (TINY.cohort * TINY.local_steps) for seconds in rounds]
    return Reach(what, 0.2, statistics.median(costs), min(costs), max(costs), " ms")


def _population(found: Found) -> Reach:
    what = "a round of 100 from 100,000 clients ÷ from 1,000"
    few, many = found.get("1,000"), found.get("100,000")
    if few is None or many is None or not (usable(few) and usable(many)):
        return Reach(what, 1.1, None)
    return Reach(what, 1.1, *ratio(many, few))


def _growth(found: Found) -> Reach:
    what = f"memory at round {LATE} ÷ at round {EARLY}"
    ours = found.get(ARCHIPEL, {})
    return Reach(what, 1.03, ours["late"] / ours["early"] if "late" in ours else None)


def timings(name: str, title: str, found: Found) -> str:
    """Return a workload's table: milliseconds a round, the first contender's share of them, first round and memory."""
    first = next(iter(found), "")
    heads = ["", "ms a round", f"{first.partition(': ')[0]} ÷ it", "first round, s", "MB", "moved"]
    rows = []
    for contender, one in found.items():
        if not usable(one):
            rows.append([contender, f"failed: {one['failed']}" if "failed" in one else "not measured", *[""] * 4])
            continue
        medians = [1e3 * median({"turns": [turn]}) for turn in one["turns"]]
        beside = _beside(first, contender)
        share = "" if contender == beside or not usable(found.get(beside)) else _share(*ratio(found[beside], one))
        moved, memory = one.get("moved"), one.get("megabytes")
        rows.append(
            [
                contender,
                f"{1e3 * median(one):,.1f} ({min(medians):,.1f}–{max(medians):,.1f})",
                share,
                f"{one['first']:.1f}",
                "–" if memory is None else f"{memory:,.0f}",
                "–" if moved is None else f"{moved:.3g}",
            ]
        )
    if all(usable(found.get(name)) for name in (INCREMENTAL, PLAIN, ROUTER)):
        both = together(found[PLAIN], found[ROUTER])
        share = _share(*ratio(found[INCREMENTAL], both))
        rows.append([f"{PLAIN} and of the router", f"{1e3 * median(both):,.1f}", share, "", "", ""])
    return _table(f"{name}: {title}", heads, rows)


def _beside(first: str, contender: str) -> str:
    """Return whom a contender is compared with: the first one, on a curve the first one at the same point.

    >>> _beside("Archipel", "bare loop"), _beside("Archipel: 10", "bare loop: 30")
    ('Archipel', 'Archipel: 30')
    """
    title, colon, _ = first.partition(": ")
    return title + colon + contender.rpartition(": ")[2] if colon else first


def _share(middle: float, least: float, most: float) -> str:
    return f"{middle:.2f} ({least:.2f}–{most:.2f})"


def foot(plan: Plan, peers: Mapping[str, str], command: str, data: str) -> str:
    """Return the lines below the tables: how and where it was measured, and which simulators are missing."""
    about = machine()
    missing = [f"{peer.title} (pip install {peer.install})" for name, peer in PEERS.items() if name not in peers]
    versions = ", ".join(f"{name} {about[name]}" for name in ("archipel", "torch", "numpy"))
    often = [f"{name} {workload.often} times" for name, workload in plan.workloads.items() if workload.often > 1]
    more = f" ({', '.join(often)} as many)" if often else ""
    lines = [
        f"{data}. All start from the same weights, FedJAX from others of the same distribution; float32.",
        f"Contenders work in turns, one at a time, {plan.turns} turns of {plan.seconds:g} s or a round{more}; a round "
        "is the median of the turns' medians, a ratio that of the turns' ratios, with the least and the most.",
        "First round: from the start of the process to the end of its first round, with imports, data and compilation.",
        "MB: the peak of the proportional set sizes of all its processes together, in a turn that is not timed.",
        "Moved: how far the shared model is from its start after the first round; equal work moves it about equally.",
        *([f"Not installed, and so not measured: {'; '.join(missing)}."] if missing else []),
        f"Command: `{command}`.",
        f"{about['date'][:10]}; {about['processor']}, {about['usable']} cores, {platform.system()}; Python "
        f"{about['python']}, {versions}; {revision_words(about['git'])}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def machine() -> dict[str, Any]:
    """Return the provenance with the processor's name and the number of cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return provenance() | {"processor": _processor(), "usable": usable}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
