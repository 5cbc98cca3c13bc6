"""The command says what it can do at once: its help loads neither torch nor anything else that takes long."""

import os
import resource
import subprocess
import sys

HELP = """
import sys
import typer
from archipel.cli.main import app

def every(command, words=()):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from every(inner, (*words, name))

asked = list(every(typer.main.get_command(app)))
for words in asked:
    try:
        app([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0, end.code
print(len(asked), *(name for name in ("torch", "numpy", "scipy", "PIL", "matplotlib", "yaml") if name in sys.modules))
"""


def test_no_help_loads_anything_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    count, *heavy = done.stdout.splitlines()[-1].split()
    assert done.stdout.count("Usage") == int(count) > 20
    assert heavy == []


def seconds(*words: str) -> float:
    """Processor time of a fresh interpreter: the least of three, after one that writes what Python caches."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken[1:])


def test_help_takes_less_than_torch_alone() -> None:
    # 0.4 s on an idle machine, on which torch takes 1.7 s; a slow one is slow at both.
    torch = seconds("-c", "import torch")
    assert seconds("-m", "archipel", "--help") < 0.24 * torch


def test_the_first_import_costs_little_more_than_torch() -> None:
    # The aim is 1.2; processor time of fresh interpreters varies by some percent.
    torch = seconds("-c", "import torch")
    assert seconds("-c", "from archipel import FedAvg, Federation, fit") < 1.25 * torch
