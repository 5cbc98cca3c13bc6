"""FedSPM's exact and incremental E-step side by side on Fashion-MNIST: seconds a round and accuracy.

    python benchmarks/expectation.py --rounds 20

Both run at the same time with one thread each, so that other load affects both. It writes
``docs/results/expectation.json``.
"""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import results
from archipel import fit
from archipel.engines.setting import Setting
from archipel.experiments import build, read_config


def one(expectation: str, rounds: int) -> dict[str, Any]:
    """Train with one kind of E-step."""
    config = read_config("fmnist-fedspm", [f"rounds={rounds}", f"algorithm.expectation={expectation}"])
    algorithm, federation = build(config)
    run = fit(algorithm, federation, rounds=rounds, seed=config.seed, setting=Setting(engine="loop"))
    seconds = statistics.median(record["seconds"] for record in run.history)
    return {"expectation": expectation, "seconds a round": seconds, **run.metrics}


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = results.parsed(parser)
    with ProcessPoolExecutor(2) as pool:
        exact, incremental = pool.map(one, ("exact", "incremental"), (arguments.rounds,) * 2)
    ratio = exact["seconds a round"] / incremental["seconds a round"]
    found = {"ratio of seconds": ratio, "results": [exact, incremental]}
    results.write(arguments.out / "expectation.json", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
