"""Federations larger than memory: 100,000 clients that each keep a model on disk, of which a few train at a time.

    python benchmarks/out_of_core.py

Every client has 4 examples of 28 × 28 grey values, made at random, and a personal 784 × 10 logistic regression
(``Local``) in a table of states on disk. All are enrolled, 1,000 train in each of some rounds, and the run is saved and
read back; the same is done with 1,000 clients in all. There are no test examples, on which all personal models would
vote. Each federation runs in a process of its own. The script prints the seconds of each part, the peak of the
process's resident memory and the disk used, and writes ``docs/results/out-of-core.json``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import results
from archipel import SGD, Federation, Local, Run, Sample, classification, fit
from archipel.data import Client, Inputs
from archipel.engines.setting import Setting
from archipel.states.placement import Placement
from archipel.states.storage import temporary_folder

POPULATIONS = (1_000, 100_000)
COHORT, EXAMPLES, SHAPE, CLASSES = 1_000, 4, (1, 28, 28), 10
UNITS = {"seconds": 1.0, "bytes": 1e-9}


def many(population: int) -> Federation:
    """Return clients whose examples are views of one array."""
    generator = torch.Generator().manual_seed(0)
    n = population * EXAMPLES
    x = torch.randint(0, 256, (n, *SHAPE), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    clients = []
    for i, (own, labels) in enumerate(zip(x.split(EXAMPLES), y.split(EXAMPLES), strict=True)):
        clients.append(Client(f"client-{i}", {"x": own, "y": labels}, {"x": own[:0], "y": labels[:0]}))
    inputs = Inputs("image", SHAPE, 255.0, (0.5,), (0.29,))  # of uniform grey values
    return Federation("many", tuple(clients), inputs, tuple(map(str, range(CLASSES))))


def measure(population: int, states: Placement, rounds: int, place: Path) -> dict[str, Any]:
    """Measure one federation."""
    times = [time.perf_counter()]
    found: dict[str, Any] = {"population": population, "states": states}

    def passed() -> float:
        times.append(time.perf_counter())
        return times[-1] - times[-2]

    federation = many(population)
    found["build_seconds"] = passed()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))
    algorithm = Local(classification(model, federation), SGD(lr=0.1, steps=5, batch=2))
    ends: list[float] = []
    run = fit(
        algorithm,
        federation,
        rounds=rounds,
        cohort=Sample(count=min(COHORT, population)),
        setting=Setting(states=states),
        callbacks=[lambda _: ends.append(time.perf_counter())],
    )
    table: Any = run.clients
    seconds = [record["seconds"] for record in run.history]
    found["start_seconds"] = ends[0] - times[-1] - seconds[0]
    found["round_seconds"] = statistics.median(seconds[1:])
    found["table_bytes"] = table.bytes * population
    passed()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run.save(folder)
        found["save_seconds"] = passed()
        found["checkpoint_bytes"] = sum(path.stat().st_size for path in Path(folder).rglob("*.*"))
        again = Run.read(folder, algorithm)
        found["read_seconds"] = passed()
        assert str(again.clients[population - 1]) == str(run.clients[population - 1])
    # of this process alone: getrusage's peak begins with the parent's
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return found | {"peak_bytes": int(peak.split()[1]) * 1024}


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--states", default="disk", choices=["auto", "memory", "disk"])
    parser.add_argument(
        "--place", default=temporary_folder(), help="folder on the disk of the table and of the checkpoint"
    )
    parser.add_argument("--populations", type=int, nargs="+", default=POPULATIONS)
    parser.add_argument("--one", action="store_true", help="measure one population in this process, and print JSON")
    asked = results.parsed(parser)
    if asked.one:
        print(json.dumps(measure(asked.populations[0], asked.states, asked.rounds, Path(asked.place))))
        return
    found = []
    for population in asked.populations:
        command = [
            sys.executable,
            __file__,
            "--one",
            "--dirty",
            "--populations",
            str(population),
            "--states",
            asked.states,
        ]
        command += ["--rounds", str(asked.rounds), "--place", asked.place]
        done = subprocess.run(command, env=os.environ | {"TMPDIR": asked.place}, stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout))
    for name in found[0]:
        kind = name.rpartition("_")[2]
        shown = [f"{row[name] * UNITS[kind]:.3g}" if kind in UNITS else str(row[name]) for row in found]
        print(f"{name.replace('_bytes', '_GB'):20}", *(f"{text:>10}" for text in shown))
    results.write(asked.out / "out-of-core.json", {"cohort": COHORT, "runs": found})


if __name__ == "__main__":
    main()
