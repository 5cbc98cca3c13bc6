"""FedAvg and FedSPM on Fashion-MNIST under dual heterogeneity: the README's table.

    python benchmarks/fashion_mnist.py --rounds 60 --seeds 3

Every (method, seed) is one run of a preset with one thread; as many run at a time as there are cores. What is done is
kept: started again, the script goes on where it stopped. FedSPM takes the incremental E-step (what that changes is
what ``benchmarks/expectation.py`` measures). It writes ``docs/results/fashion-mnist.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from archipel import fit
from archipel.engines.setting import Setting
from archipel.experiments import build, oracle_of, read_config
from archipel.experiments.environment import environment

METHODS = {
    "FedAvg": "fmnist-fedavg",
    "FedSPM (1×)": "fmnist-fedspm",
    "FedSPM (C×)": "fmnist-fedspm-cx",
    "oracle": "fmnist-fedavg",
}
COLUMNS = ("system_accuracy", "average_accuracy", "routing_accuracy")


def one(method: str, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Trains one method with one seed."""
    overrides = [f"rounds={rounds}", f"seed={seed}", "workers=1", "evaluate_every=20"]
    if method.startswith("FedSPM"):
        overrides.append("algorithm.expectation=incremental")
    config = read_config(METHODS[method], overrides)
    if method == "oracle":
        config = oracle_of(config)
    algorithm, federation = build(config)
    run = fit(
        algorithm,
        federation,
        rounds=config.rounds,
        seed=seed,
        setting=Setting(engine="loop"),
        evaluate_every=config.evaluate_every,
        folder=folder / f"{METHODS[method]}-{method.replace(' ', '')}-{seed}",
    )
    seconds = statistics.median(record["seconds"] for record in run.history)
    curve = {record["round"]: record["metrics"] for record in run.history if "metrics" in record}
    return {"method": method, "seed": seed, "seconds a round": seconds, "curve": curve, **run.metrics}


def table(results: list[dict[str, Any]]) -> str:
    """The results as a Markdown table of means and standard deviations."""
    lines = ["| | system | average | routing |", "| --- | --- | --- | --- |"]
    for method in METHODS:
        rows = [result for result in results if result["method"] == method]
        if not rows:
            continue
        cells = []
        for column in COLUMNS:
            values = [100 * row[column] for row in rows if column in row]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "–")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--runs", type=Path, default=Path("runs/fashion-mnist"))
    arguments = parser.parse_args()
    jobs = [(method, seed) for seed in range(arguments.seeds) for method in arguments.methods]
    results = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(one, method, seed, arguments.rounds, arguments.runs) for method, seed in jobs]
        for future in as_completed(futures):
            results.append(future.result())
            print(json.dumps({name: value for name, value in results[-1].items() if name != "curve"}), flush=True)
    results.sort(key=lambda result: (list(METHODS).index(result["method"]), result["seed"]))
    about = {"command": f"python benchmarks/fashion_mnist.py --rounds {arguments.rounds} --seeds {arguments.seeds}"}
    about |= {"date": time.strftime("%Y-%m-%d"), **environment()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "fashion-mnist.json").write_text(json.dumps({"about": about, "results": results}, indent=1))
    (arguments.out / "fashion-mnist.md").write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
