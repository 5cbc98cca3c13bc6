"""What packages export: loaded at its first use, and listed once."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import archipel

ROOT = Path(archipel.__file__).parent
STUBS = sorted(ROOT.rglob("__init__.pyi"))
PACKAGES = [".".join(("archipel", *stub.parent.relative_to(ROOT).parts)) for stub in STUBS]


def python(code: str) -> str:
    """Run code in a fresh interpreter, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def loaded(code: str, *modules: str) -> list[str]:
    """Those of the modules that a fresh interpreter has loaded after running code."""
    return ast.literal_eval(python(f"import sys\n{code}\nprint([name for name in {modules!r} if name in sys.modules])"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_importing_a_package_loads_nothing_heavy() -> None:
    code = "\n".join(f"import {package}" for package in PACKAGES)
    assert loaded(code, "torch", "numpy", "pydantic", "rich") == []


def test_a_name_loads_no_more_than_it_needs() -> None:
    heavy = ("scipy.stats", "scipy.optimize", "sklearn", "pydantic", "yaml", "matplotlib", "typer")
    assert loaded("from archipel import FedAvg, Federation, fit", *heavy) == []


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    assert python("import archipel.fit; from archipel import fit; print(type(fit).__name__)") == "function"
    assert python("import archipel.fit as x; import archipel; print(archipel.fit.__name__)") == "fit"


def test_names_that_are_not_exported_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'archipel' has no attribute 'FedSpam'"):
        archipel.FedSpam  # noqa: B018
    with pytest.raises(ImportError, match="FedSpam"):
        exec("from archipel.data import FedSpam")


def test_a_star_import_gives_all_names() -> None:
    names = python("from archipel import *; print(sorted(name for name in dir() if name[0] != '_'))")
    assert ast.literal_eval(names) == sorted(archipel.__all__)


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or is found in one by attributes."""
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:cut]))
        except ImportError:
            continue
        for word in words[cut:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


def test_every_dotted_name_in_documents_and_docstrings_is_there() -> None:
    top = ROOT.parents[1]
    files = [top / "README.md", *sorted(top.glob("docs/**/*.md")), *sorted(ROOT.rglob("*.py"))]
    names = {name for file in files for name in re.findall(r"\barchipel(?:\.[A-Za-z_]\w*)+", file.read_text())}
    assert len(names) > 200
    assert not exists("archipel.fit.nothing")
    assert [name for name in sorted(names) if not exists(name)] == []
