"""Time and memory to build federations: Fashion-MNIST's dual heterogeneity, and thousands of writers.

    python benchmarks/federations.py

Each federation is built in a process of its own, on one core. The script prints the seconds without imports, the size
of the federation's arrays, and by how much the process' peak memory rose after imports, and writes
``docs/results/federations.json``. The thousands of writers are simulated: 3,000 of 220 random images each (LEAF's full
data set has 3,597 writers with 227 on average). Building by loader must not hold the images twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import results

PRELUDE = """
import json, resource, time, warnings
import numpy as np, torch
torch.set_num_threads(1)
from archipel.data import dual_heterogeneity, fashion_mnist, natural
from archipel.data.sources.source import About
from archipel.data.sources.leaf import femnist

def writers(clients=3000, each=220):
    rng, n = np.random.default_rng(0), clients * each
    x = np.empty((n, 28, 28), np.uint8)
    for client in range(clients):
        x[client * each : (client + 1) * each] = rng.integers(256, size=(each, 28, 28), dtype=np.uint8)
    return About("femnist-like", "", "", "", "", "", "").source(
        x=torch.from_numpy(x),
        y=torch.from_numpy(rng.integers(62, size=n)),
        classes=tuple(map(str, range(62))),
        checksum="",
        client=torch.arange(clients).repeat_interleave(each),
        client_names=tuple(f"writer-{i}" for i in range(clients)),
    )

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.zeros(1).add(1)
"""
BUILDS = {
    "Fashion-MNIST, 8 clients, dual": "dual_heterogeneity(fashion_mnist(), clients=8)",
    "FEMNIST-200, by loader": "natural(femnist)",
    "3,000 writers, by loader": "natural(writers)",
    "3,000 writers, of a source": "natural(writers())",
}
MEASURE = """
before, started = peak(), time.perf_counter()
federation = {build}
seconds, after = time.perf_counter() - started, peak()
storages = {{values.untyped_storage().data_ptr(): values.untyped_storage().nbytes()
             for client in federation.clients for columns in client.splits.values() for values in columns.values()}}
print(json.dumps([len(federation), seconds, sum(storages.values()) / 2**20, len(storages), after - before]))
"""


def main() -> None:
    given, found = results.parsed(results.parser(__doc__)), {}
    print(f"{'federation':32}{'clients':>8}{'seconds':>9}{'arrays':>8}{'MiB held':>10}{'MiB above':>11}")
    for name, build in BUILDS.items():
        code = PRELUDE + MEASURE.format(build=build)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=one_core(), check=False)
        if done.returncode:
            print(f"{name:32}failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        clients, seconds, held, arrays, above = json.loads(done.stdout)
        found[name] = {"clients": clients, "seconds": seconds, "arrays": arrays, "MiB held": held, "MiB above": above}
        print(f"{name:32}{clients:>8,}{seconds:>9.1f}{arrays:>8}{held:>10.0f}{above:>11.0f}")
    results.write(given.out / "federations.json", {"federations": found})


def one_core() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
