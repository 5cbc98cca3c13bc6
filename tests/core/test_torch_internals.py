"""Private names of torch stand in one module."""

import ast
from functools import cache
from pathlib import Path

import pytest

import archipel

SOURCES = sorted(Path(archipel.__file__).parent.rglob("*.py"))
ALLOWED = "torch_internals.py"
STANDARD_LIBRARY = {"_exit", "_replace"}  # of os, and of named tuples


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def _defined(tree: ast.AST) -> set[str]:
    """Functions, classes, assigned attributes and annotated fields."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@cache
def _own() -> set[str]:
    """Private names that Archipel defines itself."""
    return {name for path in SOURCES for name in _defined(ast.parse(path.read_text()))}


def foreign_private_names(source: str) -> list[str]:
    """Private names that a module imports from torch, and private attributes that Archipel doesn't define."""
    tree = ast.parse(source)
    own = _own() | _defined(tree) | STANDARD_LIBRARY
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names if alias.name.startswith("torch.") for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute) and node.attr not in own:
            names = [node.attr]
        found += [f"line {node.lineno}: {name}" for name in names if _private(name)]  # type: ignore[attr-defined]
    return found


def test_only_one_module_uses_private_names_of_torch():
    found = {path.name: names for path in SOURCES if (names := foreign_private_names(path.read_text()))}
    assert found.pop(ALLOWED)
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree",
        "from torch.nn.modules.conv import _ConvNd",
        "import torch._dynamo",
        "import torch._inductor.config as inductor",
        "torch._foreach_add_(a, b)",
        "torch._C._functorch.is_batchedtensor(x)",
        "module._parameters",
        "Variable._execution_engine.run_backward()",
    ],
)
def test_private_names_are_found_however_they_are_used(line):
    assert foreign_private_names(line)


@pytest.mark.parametrize("line", ["import torch.nn", "self.__dict__", "torch.func.vmap", "self._x = 1; other._x"])
def test_public_and_own_names_are_not(line):
    assert foreign_private_names(line) == []
