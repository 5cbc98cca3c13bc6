"""Eq. (6) of FedSPM by Newton steps on its dual and by a root finder (App. D.4), side by side: seconds and success.

    python benchmarks/multipliers.py

Log-ratios are random tilts of 16 normal features whose populations have mass one under some weights r, so that there
is a solution. A larger "spread" makes ratios differ more between points, and weights less even. Both solvers start from
the same multipliers and are timed in turns. The start is all 0, all 1/(L + 1), or "near": the solution with relative
errors of a tenth, as from the last round of a run. It writes ``docs/results/multipliers.json``.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch
from torch import Tensor

import results
from archipel.drm import multipliers, multipliers_by_root

SOLVERS = {"dual": multipliers, "root": multipliers_by_root}
FEATURES = 16


def tilts(n: int, L: int, spread: float, seed: int) -> Tensor:
    """Return log-ratios ``(n, L)`` for which a solution exists."""
    generator = torch.Generator().manual_seed(seed)
    h, xi = (torch.randn(k, FEATURES, generator=generator, dtype=torch.float64) for k in (n, L))
    a: Tensor = spread * h @ xi.T / FEATURES**0.5
    log_r = torch.randn(n, generator=generator, dtype=torch.float64).log_softmax(0)
    return a - torch.logsumexp(log_r[:, None] + a, 0)


def start_from(name: str, a: Tensor, seed: int) -> Tensor:
    """Return the first multipliers, ``(L,)``."""
    L = a.shape[1]
    if name == "near":
        tenth = 0.1 * torch.randn(L, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return multipliers(a).values * (1 + tenth)
    return torch.full((L,), 0.0 if name == "0" else 1 / (L + 1), dtype=torch.float64)


def case(n: int, L: int, spread: float, start: str, seeds: int) -> dict[str, Any]:
    """Measure seconds (median over seeds) and successes of both solvers."""
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
    parser = results.parser(__doc__)
    parser.add_argument("--large", action="store_true", help="also 200 multipliers and 50,000 points: some minutes")
    arguments = results.parsed(parser)
    torch.set_num_threads(1)
    multipliers(tilts(100, 2, 1.0, 0))  # the first call costs more
    multipliers_by_root(tilts(100, 2, 1.0, 0))
    starts = ("0", "1/(L + 1)", "near")
    cases = [(2000, 16, spread, start, 20) for spread in (0.5, 2.0) for start in starts]
    cases += [(50_000, 24, 1.0, start, 3) for start in starts]
    cases += [(50_000, 200, 1.0, start, 1) for start in ("0", "near")] if arguments.large else []
    found = {"results": [case(*numbers) for numbers in cases]}
    results.write(arguments.out / "multipliers.json", found)


if __name__ == "__main__":
    main()
