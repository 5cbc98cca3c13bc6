"""What a run's settings cost or gain in a training step of one client, on one thread, measured in turns.

    python benchmarks/settings.py

The network of W1 (``make speed``) on a batch of 128, and two layers of 200 units on a batch of 20. It prints
medians in milliseconds of processor time as a table, and writes ``docs/results/settings.json``.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

import results
from archipel import SGD, Network
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.engines.setting import Setting
from archipel.learning.criteria import CrossEntropy
from archipel.learning.tasks import Whole
from speed.peers import networks

SETTINGS = {
    "default": Setting(),
    "memory_format contiguous": Setting(memory_format="contiguous"),
    "precision bfloat16": Setting(precision="bfloat16"),
    "compile default": Setting(compile="default"),
}
TURNS, STEPS = 9, 5


def main() -> None:
    given = results.parsed(results.parser(__doc__))
    found: dict[str, dict[str, float]] = {}
    torch.set_num_threads(1)
    cnn = networks.started({"shape": [1, 28, 28], "network": "cnn", "classes": 10})
    cnn.last = False
    cnn.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )
    print("| ms a step | " + " | ".join(SETTINGS) + " |\n| --- |" + " ---: |" * len(SETTINGS))
    for title, module, batch in (("W1's CNN, batch 128", cnn, 128), ("two layers of 200 units, batch 20", mlp, 20)):
        task = Whole(Network(module, initial="given"), CrossEntropy())
        model, data = (
            task.init(keys.key(0)),
            Examples.of({"x": torch.randn(batch, 1, 28, 28), "y": torch.arange(batch) % 10}),
        )
        solver, rate = SGD(lr=0.01, momentum=0.9, steps=STEPS, batch=batch), torch.tensor(0.01)
        times: dict[str, list[float]] = {name: [] for name in SETTINGS}
        for turn in range(TURNS + 1):
            for name, setting in SETTINGS.items():
                with setting.inside():
                    started = time.process_time()
                    solver.minimise(task.loss, model, data, keys.key(turn), rate)
                    times[name].append((time.process_time() - started) / STEPS * 1e3)
        found[title] = {name: round(statistics.median(t[1:]), 3) for name, t in times.items()}
        print(f"| {title} | " + " | ".join(f"{middle:.2f}" for middle in found[title].values()) + " |")
    results.write(given.out / "settings.json", {"milliseconds a step": found})


if __name__ == "__main__":
    main()
