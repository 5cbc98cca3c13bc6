"""Eq. (6) of FedSPM by Newton steps on its dual and by a root finder (App. D.4), side by side: seconds and success.

    python benchmarks/multipliers.py

Log-ratios are random tilts of 16 normal features whose populations have mass one under some weights r, so that there
is a solution; with "spread" ratios differ more between points, and weights get more uneven. Both start from the same
multipliers – all 0, all 1/(L + 1), or "near", the solution with each number a tenth off, as from the last round of a
run – and are timed in turns. It writes ``docs/results/multipliers.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archipel.drm import multipliers, multipliers_by_root
from archipel.experiments.environment import environment

SOLVERS = {"dual": multipliers, "root": multipliers_by_root}
FEATURES = 16


def tilts(n: int, L: int, spread: float, seed: int) -> Tensor:
    """``(n, L)`` log-ratios that a solution exists for."""
    generator = torch.Generator().manual_seed(seed)
    h, xi = (torch.randn(k, FEATURES, generator=generator, dtype=torch.float64) for k in (n, L))
    a = spread * h @ xi.T / FEATURES**0.5
    log_r = torch.randn(n, generator=generator, dtype=torch.float64).log_softmax(0)
    return a - torch.logsumexp(log_r[:, None] + a, 0)


def start_from(name: str, a: Tensor, seed: int) -> Tensor:
    """``(L,)`` multipliers to start from."""
    L = a.shape[1]
    if name == "near":
        tenth = 0.1 * torch.randn(L, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return multipliers(a).values * (1 + tenth)
    return torch.full((L,), 0.0 if name == "0" else 1 / (L + 1), dtype=torch.float64)


def case(n: int, L: int, spread: float, start: str, seeds: int) -> dict[str, Any]:
    """Seconds (median over seeds) and successes of both."""
    found: dict[str, Any] = {"points": n, "multipliers": L, "spread": spread, "start": start, "seeds": seeds}
    seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
    solved = dict.fromkeys(SOLVERS, 0)
    for seed in range(seeds):
        a = tilts(n, L, spread, seed)
        first = start_from(start, a, seed)
        for name, solve in SOLVERS.items():
            began = time.perf_counter()
            solved[name] += solve(a, start=first).inside
            seconds[name].append(time.perf_counter() - began)
    for name in SOLVERS:
        found[f"{name} seconds"] = round(statistics.median(seconds[name]), 4)
        found[f"{name} solved"] = solved[name]
    found["root/dual seconds"] = round(
        statistics.median(b / a for a, b in zip(seconds["dual"], seconds["root"], strict=True)), 2
    )
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--large", action="store_true", help="with 200 multipliers and 50,000 points: some minutes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    multipliers(tilts(100, 2, 1.0, 0))  # what a first call costs isn't the solvers'
    multipliers_by_root(tilts(100, 2, 1.0, 0))
    starts = ("0", "1/(L + 1)", "near")
    cases = [(2000, 16, spread, start, 20) for spread in (0.5, 2.0) for start in starts]
    cases += [(50_000, 24, 1.0, start, 3) for start in starts]
    cases += [(50_000, 200, 1.0, start, 1) for start in ("0", "near")] if arguments.large else []
    about = {
        "command": "python benchmarks/multipliers.py" + (" --large" if arguments.large else ""),
        "date": time.strftime("%Y-%m-%d"),
    }
    found = {"about": about | environment(), "results": [case(*numbers) for numbers in cases]}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "multipliers.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
