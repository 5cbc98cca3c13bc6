"""FedSPM's exact and incremental E-step side by side on Fashion-MNIST: seconds a round and accuracy.

    python benchmarks/expectation.py --rounds 20

Both run at the same time, one thread each, so that they share whatever else the machine does. It writes
``docs/results/expectation.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from archipel import fit
from archipel.engines.setting import Setting
from archipel.experiments import build, read_config
from archipel.experiments.environment import environment


def one(expectation: str, rounds: int) -> dict[str, Any]:
    """Trains with one kind of E-step."""
    config = read_config("fmnist-fedspm", [f"rounds={rounds}", f"algorithm.expectation={expectation}"])
    algorithm, federation = build(config)
    run = fit(algorithm, federation, rounds=rounds, seed=config.seed, setting=Setting(engine="loop"))
    seconds = statistics.median(record["seconds"] for record in run.history)
    return {"expectation": expectation, "seconds a round": seconds, **run.metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        exact, incremental = pool.map(one, ("exact", "incremental"), (arguments.rounds,) * 2)
    ratio = exact["seconds a round"] / incremental["seconds a round"]
    about = {
        "command": f"python benchmarks/expectation.py --rounds {arguments.rounds}",
        "date": time.strftime("%Y-%m-%d"),
    }
    found = {"about": about | environment(), "ratio of seconds": ratio, "results": [exact, incremental]}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "expectation.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
