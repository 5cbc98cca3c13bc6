"""How long a local step of FedAvg takes with and without archipel's allocator settings, side by side in one run.

    python benchmarks/allocator.py

Two child processes, one with the settings and one without, take turns for some rounds of the same work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

WORK = """
import sys, time, torch
torch.set_num_threads(1)
from archipel.clients.allocator import keep_freed_memory
from archipel.models import LeNet
if sys.argv[1] == "kept":
    assert keep_freed_memory()
net = LeNet((3, 28, 28), 32)
x = torch.rand(128, 3, 28, 28).contiguous(memory_format=torch.channels_last)
params = list(net.parameters())
for line in sys.stdin:
    started = time.perf_counter()
    for _ in range(10):
        torch.autograd.grad(net(x).square().mean(), params)
    print((time.perf_counter() - started) / 10, flush=True)
"""


def main() -> None:
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", WORK, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("kept", "default")
    }
    times: dict[str, list[float]] = {name: [] for name in children}
    for turn in range(12):
        for name, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            seconds = float(child.stdout.readline())
            if turn >= 2:  # the first turns warm up
                times[name].append(seconds)
    for child in children.values():
        child.communicate()
    medians = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    print(
        json.dumps(
            {"date": time.strftime("%Y-%m-%d"), "ms a step": medians, "ratio": medians["default"] / medians["kept"]}
        )
    )


if __name__ == "__main__":
    main()
