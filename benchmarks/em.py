"""One EM iteration of a full-covariance Gaussian mixture, federated, beside scikit-learn's pooled one.

    python benchmarks/em.py

60,000 rows, d = 20, K = 20, held by 10 and by 1,000 clients. These are measured in turns: scikit-learn's E- and M-step
on the pooled rows, with its default threads; the clients' statistics, their mean and T, on one thread; and a round of
FedEM through the default engine (one thread a core), with and without clients' memories. It prints medians of elapsed
and of processor seconds, their ratios to scikit-learn's, and the memory that an iteration takes in addition to the
data, and writes ``docs/results/em.json``.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Pooled
from torch import Tensor

import results
from archipel import FedEM, Federation, fit
from archipel.core.trees import Sum, Tree
from archipel.families import GaussianMixture

CHUNK = 100  # clients of 60 rows a batch, 11 MB of features
Clocks = tuple[float, float]
"""Elapsed seconds and processor seconds."""


def iteration(family: GaussianMixture, theta: Tree, shares: list[Tensor]) -> Tree:
    """Compute statistics of each client in turn, their mean, and T."""
    total = Sum()
    for x in shares:
        s = family.statistics(theta, {"x": x}, torch.ones(len(x), dtype=torch.bool))
        total.add({name: t[None] for name, t in s.items()}, [len(x)])
    return family.maximise(total.mean())


def batched_iteration(family: GaussianMixture, theta: Tree, stacked: Tensor) -> Tree:
    """Compute the same for equal clients, some at a time by vmap."""
    total = Sum()
    batched = torch.func.vmap(family.statistics, in_dims=(None, 0, 0))
    for x in stacked.split(CHUNK):
        total.add(batched(theta, {"x": x}, torch.ones(x.shape[:2], dtype=torch.bool)), [1.0] * len(x))
    return family.maximise(total.mean())


def engine_round(
    family: GaussianMixture, theta: Tree, x: Tensor, clients: int, memory: Literal["start", "off"]
) -> Callable[[], Clocks]:
    """Return a measurement of FedEM's third round, after enrolment and after the first use of every step."""
    shares = [(share.numpy(), np.zeros(len(share))) for share in x.chunk(clients)]
    federation = Federation.from_arrays(shares, test=0.0, kind="table")
    algorithm = FedEM(family, theta, memory=memory)

    def measured() -> Clocks:
        marks: list[Clocks] = []
        fit(algorithm, federation, rounds=4, callbacks=[lambda moment: marks.append(clocks())])
        return marks[2][0] - marks[1][0], marks[2][1] - marks[1][1]

    return measured


def clocks() -> Clocks:
    return time.perf_counter(), time.process_time()


def timed(work: Callable[[], object]) -> Clocks:
    start = clocks()
    work()
    end = clocks()
    return end[0] - start[0], end[1] - start[1]


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dimension", type=int, default=20)
    parser.add_argument("--components", type=int, default=20)
    given = results.parsed(parser)
    n, d, K = given.rows, given.dimension, given.components
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    x += 2 * torch.randn(K, d, generator=generator, dtype=torch.float64)[torch.arange(n) % K]
    family = GaussianMixture(K, d)
    blurred = torch.softmax(3 * torch.randn(n, K, generator=generator, dtype=torch.float64), 1)
    theta = family.maximise(family.complete(blurred, {"x": x}, torch.ones(n, dtype=torch.bool)))
    table = x.numpy()
    pooled = Pooled(K, max_iter=1, init_params="random_from_data", random_state=0).fit(table[:2000])

    def scikit_learn() -> None:
        _, log_responsibilities = pooled._e_step(table)
        pooled._m_step(table, log_responsibilities)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    iteration(family, theta, list(x.chunk(10)))
    batched_iteration(family, theta, x.reshape(1000, -1, d))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    work: dict[str, Callable[[], Clocks]] = {
        "scikit-learn, pooled": lambda: timed(scikit_learn),
        "10 clients": lambda: timed(lambda: iteration(family, theta, list(x.chunk(10)))),
        "1,000 clients": lambda: timed(lambda: batched_iteration(family, theta, x.reshape(1000, -1, d))),
        "10 clients, FedEM": engine_round(family, theta, x, 10, "start"),
        "1,000 clients, FedEM": engine_round(family, theta, x, 1000, "start"),
        "1,000 clients, FedEM without memories": engine_round(family, theta, x, 1000, "off"),
    }
    measured: dict[str, list[Clocks]] = {name: [] for name in work}
    for _ in range(given.repeats):
        for name, run in work.items():
            measured[name].append(run())
    medians = {
        clock: {name: statistics.median(pair[i] for pair in pairs) for name, pairs in measured.items()}
        for i, clock in enumerate(("seconds", "processor seconds"))
    }
    ratios = {
        clock: {name: value / values["scikit-learn, pooled"] for name, value in values.items()}
        for clock, values in medians.items()
    }
    found = {"repeats": given.repeats, "medians": medians, "of scikit-learn's": ratios, "megabytes": memory}
    results.write(given.out / "em.json", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
