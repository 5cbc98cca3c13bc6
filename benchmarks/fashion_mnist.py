"""FedAvg and FedSPM on Fashion-MNIST under dual heterogeneity: the README's table.

    python benchmarks/fashion_mnist.py --rounds 60 --seeds 3

Every (method, seed) is one run of a preset with one thread, and as many run at a time as there are cores. Interrupted
runs are resumed when the script starts again. FedSPM uses the incremental E-step; ``benchmarks/expectation.py``
measures what that changes. It writes ``docs/results/fashion-mnist.json`` and ``.md``.
"""

from __future__ import annotations

import json
import os
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import results as provenance
from archipel import fit
from archipel.engines.setting import Setting
from archipel.experiments import build, oracle_of, read_config

METHODS = {
    "FedAvg": "fmnist-fedavg",
    "FedSPM (1×)": "fmnist-fedspm",
    "FedSPM (C×)": "fmnist-fedspm-cx",
    "oracle": "fmnist-fedavg",
}
COLUMNS = ("system_accuracy", "average_accuracy", "routing_accuracy")


def one(method: str, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Train one method with one seed."""
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
    """Return the results as a Markdown table of means and standard deviations."""
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
    parser = provenance.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--runs", type=Path, default=Path("runs/fashion-mnist"))
    arguments = provenance.parsed(parser)
    jobs = [(method, seed) for seed in range(arguments.seeds) for method in arguments.methods]
    results = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(one, method, seed, arguments.rounds, arguments.runs) for method, seed in jobs]
        for future in as_completed(futures):
            results.append(future.result())
            print(json.dumps({name: value for name, value in results[-1].items() if name != "curve"}), flush=True)
    results.sort(key=lambda result: (list(METHODS).index(result["method"]), result["seed"]))
    provenance.write(arguments.out / "fashion-mnist.json", {"results": results})
    (arguments.out / "fashion-mnist.md").write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
