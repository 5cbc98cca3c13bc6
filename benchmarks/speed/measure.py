"""Time rounds of Archipel's engines, bare loops and other simulators at the same work, in turns.

Every contender is a process. All start one after the other and are stopped. Then one at a time continues for a second
or so, A B C A B C …, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from speed import peers as speed_peers
from speed.process import ContenderFailed, Running
from speed.work import Work, prepare

Results = dict[str, dict[str, Any]]
"""By workload, by contender: ``turns`` (seconds of each round), ``first``, ``megabytes``, ``moved``, or ``failed``."""

log = logging.getLogger("archipel")
LATE, EARLY = 200, 20
"""Rounds at which memory is compared, with ``growth``."""


@dataclass(frozen=True)
class Contender:
    """One way to do a work.

    Args:
        name: in tables.
        kind: ``"archipel"``, a floor (a key of :data:`speed.floors.FLOORS`) or a peer (of
            :data:`PEERS`).
        work: what it does.
        options: of :func:`speed.works_of_archipel.run`, the floor or the peer's script.
        environment: variables it needs.
    """

    name: str
    kind: str
    work: Work
    options: Mapping[str, Any] = field(default_factory=dict)

    def command(self, peers: Mapping[str, str]) -> list[str]:
        """Return the command to run, given the interpreters of peers."""
        spec = json.dumps({"kind": self.kind, "work": self.work.plain, "options": dict(self.options)})
        if self.kind not in PEERS:
            return [sys.executable, "-m", "speed.serve", spec]
        script = Path(speed_peers.__file__).parent / f"{PEERS[self.kind].script}.py"
        processes = self.options.get("processes", 1)
        several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return [peers[self.kind], *(several if processes > 1 else []), str(script), spec]


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    Args:
        title: its name.
        module: whose presence shows that it is installed.
        script: in ``speed/peers``.
        install: what ``pip install`` takes.
        variants: names and options of its ways to work; ``--fast`` measures the first one.
    """

    title: str
    module: str
    script: str
    install: str
    variants: Mapping[str, Mapping[str, Any]]


PEERS: dict[str, Peer] = {
    "pfl": Peer("pfl-research", "pfl", "pfl_research", "pfl[pytorch]", {"": {}, ", 2 processes": {"processes": 2}}),
    "fedjax": Peer("FedJAX", "fedjax", "fed_jax", "fedjax jax", {"": {}, ", 2 devices": {"devices": 2}}),
    "flwr": Peer("Flower", "flwr", "flower", "flwr[simulation] torch", {"": {}}),
    "fluke": Peer("fluke", "fluke", "fluke_fl", "fluke-fl", {"": {}}),
    "blazefl": Peer("BlazeFL", "blazefl", "blaze_fl", "blazefl numpy", {"": {}, ", 2 threads": {"threads": 2}}),
}


@dataclass(frozen=True)
class Workload:
    """Contenders that take turns.

    Args:
        title: what they do.
        contenders: the first one is what the others are compared with.
        growth: compare memory at round :data:`LATE` with that at round :data:`EARLY` instead of timing.
        often: factor on the plan's number of turns, above 1 for small differences.
    """

    title: str
    contenders: Sequence[Contender]
    growth: bool = False
    often: int = 1


@dataclass(frozen=True)
class Plan:
    """What is measured, and how long.

    Args:
        workloads: by name.
        turns: number of turns of each contender.
        seconds: shortest length of a turn, which has whole rounds.
    """

    workloads: Mapping[str, Workload]
    turns: int = 5
    seconds: float = 2.0


def interpreters(folder: Path | None = None, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the Python interpreters that have a peer.

    Args:
        folder: of virtual environments, one a peer, named as in :data:`PEERS`.
        given: interpreters by peer's name, which take precedence.

    Returns:
        Interpreters by peer's name; this interpreter if the peer is installed beside Archipel and not given otherwise.

    Raises:
        ValueError: an unknown peer, or no interpreter where one was given.
    """
    found: dict[str, str] = {}
    for name, peer in PEERS.items():
        there = None if folder is None else folder / name / "bin" / "python"
        if there is not None and there.exists():
            found[name] = str(there)
        elif importlib.util.find_spec(peer.module) is not None:
            found[name] = sys.executable
    for name, python in (given or {}).items():
        if name not in PEERS:
            raise ValueError(f"There is no peer {name!r}; there are {', '.join(PEERS)}.")
        if not Path(python).exists():
            raise ValueError(f"{name}'s interpreter {python} doesn't exist. Give the path of a python that has {name}.")
        found[name] = python
    return found


def measure(
    plan: Plan,
    peers: Mapping[str, str],
    *,
    data_dir: Path | None = None,
    console: Console | None = None,
    keep: Callable[[Results], object] = len,
) -> tuple[Results, bool]:
    """Carry out the plan.

    Args:
        plan: what to measure.
        peers: interpreters by peer's name; contenders of other peers are left out.
        data_dir: where Fashion-MNIST lies.
        console: for progress; default: the error stream.
        keep: called with the results so far after every workload.

    Returns:
        The results so far, and whether Ctrl-C ended the measurement.
    """
    results: Results = {}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
    )
    shown = progress.console.is_terminal
    with tempfile.TemporaryDirectory(prefix="archipel-speed-") as scratch:
        steps = {name: plan.turns * workload.often + 2 for name, workload in plan.workloads.items()}
        task = progress.add_task("", total=sum(len(w.contenders) * steps[n] for n, w in plan.workloads.items()))
        if shown:
            progress.start()
        before = _terminate_as_interrupt()
        try:
            for name, workload in plan.workloads.items():
                here = [c for c in workload.contenders if c.kind not in PEERS or c.kind in peers]
                absent = len(workload.contenders) - len(here)
                progress.advance(task, absent * steps[name])
                log.info("%s: %s", name, workload.title)
                ready = [replace(c, work=prepare(c.work, Path(scratch), data_dir)) for c in here]
                results[name] = {}

                def step(what: str, name: str = name) -> None:
                    progress.update(task, advance=1, description=f"{name}: {what}")

                _carry_out(workload, ready, plan, peers, Path(scratch), results[name], step)
                keep(results)
        except KeyboardInterrupt:
            return results, True
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
            if shown:
                progress.stop()
    return results, False


def _terminate_as_interrupt() -> Any:
    """Let SIGTERM end contenders as Ctrl-C does, because most are stopped; return the previous handler."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, signal.default_int_handler)


def _carry_out(
    workload: Workload,
    contenders: Sequence[Contender],
    plan: Plan,
    peers: Mapping[str, str],
    scratch: Path,
    found: dict[str, Any],
    step: Callable[[str], None],
) -> None:
    """Measure one workload, and put its results into ``found`` as they come."""
    # One thread a process: parallel contenders start as many processes or threads as they want.
    # The contenders of this package import it, from whatever folder the benchmark was started.
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    alive: dict[str, Running] = {}
    rounds: dict[str, int] = {}

    def attempt(name: str, work: Callable[[Running], None]) -> None:
        step(name)
        try:
            work(alive[name])
        except ContenderFailed as failure:
            log.warning("%s: %s", name, failure)
            found[name]["failed"] = str(failure)
            alive.pop(name).close()

    def begin(name: str, running: Running) -> None:
        found[name] |= running.first()
        if not workload.growth:  # a turn that is not kept determines the number of rounds a turn
            rounds[name] = max(1, min(100, round(plan.seconds / max(running.turn(1)[0], 1e-4))))

    def turn(name: str, running: Running) -> None:
        found[name]["turns"].append(running.turn(rounds[name]))

    def weigh(name: str, running: Running) -> None:
        """Measure the peak of memory in a turn that is not timed, because measuring takes time."""
        seen = [running.memory()]
        running.turn(rounds[name], watch=lambda: seen.append(running.memory()))
        found[name]["megabytes"] = max(seen)

    def grow(name: str, running: Running) -> None:
        running.turn(EARLY - 1)
        early = running.memory()
        running.turn(LATE - EARLY)
        found[name] |= {"early": early, "late": running.memory()}

    try:
        for number, contender in enumerate(contenders):
            name = contender.name
            found[name] = {"kind": contender.kind, "work": contender.work.plain, "turns": []}
            alive[name] = Running(contender.command(peers), scratch / f"{number}.log", environment)
            attempt(name, lambda running, name=name: begin(name, running))  # type: ignore[misc]
        if workload.growth:
            for name in list(alive):
                attempt(name, lambda running, name=name: grow(name, running))  # type: ignore[misc]
            return
        for _ in range(plan.turns * workload.often):
            for name in list(alive):
                attempt(name, lambda running, name=name: turn(name, running))  # type: ignore[misc]
        for name in list(alive):
            attempt(name, lambda running, name=name: weigh(name, running))  # type: ignore[misc]
    finally:
        for running in alive.values():
            running.close()


def median(found: Mapping[str, Any]) -> float:
    """Return the seconds of a round: the median of the turns' medians.

    >>> median({"turns": [[1.0, 2.0, 9.0], [4.0], [3.0]]})
    3.0
    """
    turns: list[list[float]] = found["turns"]
    return statistics.median(statistics.median(turn) for turn in turns)


def ratio(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the ratio of ``one``'s time to ``other``'s, turn by turn: median, least and most.

    >>> ratio({"turns": [[1.0], [1.0]]}, {"turns": [[2.0], [4.0]]})
    (0.375, 0.25, 0.5)
    """
    pairs = zip(one["turns"], other["turns"], strict=False)  # Ctrl-C may have come in the middle of a turn
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    return statistics.median(ratios), min(ratios), max(ratios)
