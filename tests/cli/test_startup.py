"""The command says what it can do at once: its help loads neither torch nor anything else that takes long."""

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
    assert done.stdout.lower().count("usage: ") == int(count) > 20
    assert heavy == []


def test_the_first_import_loads_torch_and_little_else() -> None:
    heavy = ("sympy", "scipy", "sklearn", "matplotlib", "pandas", "typer", "pydantic", "torch._dynamo")
    code = f"import sys; from archipel import FedAvg, Federation, fit; print(*(n for n in {heavy} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
