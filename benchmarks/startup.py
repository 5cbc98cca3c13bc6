"""Processor seconds that the command's help and the first import take, beside ``import torch``.

    python benchmarks/startup.py

Each is the least of five fresh interpreters, in turns, after one that writes what Python caches. The aims: help below
0.4 s, the first import at most 1.2 times ``import torch``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

COMMANDS = {
    "import torch": ("-c", "import torch"),
    "archipel --help": ("-m", "archipel", "--help"),
    "from archipel import FedAvg, Federation, fit": ("-c", "from archipel import FedAvg, Federation, fit"),
}


def seconds(words: tuple[str, ...]) -> float:
    """Return the processor time of one fresh interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    turns = [{name: seconds(words) for name, words in COMMANDS.items()} for _ in range(6)][1:]
    least = {name: min(turn[name] for turn in turns) for name in COMMANDS}
    for name, value in least.items():
        print(f"{value:.2f} s, {value / least['import torch']:.2f} of import torch: {name}")


if __name__ == "__main__":
    main()
