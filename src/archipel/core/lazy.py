"""Public names that are imported at their first use (PEP 562).

A package that exports names has a stub, ``__init__.pyi``, with a line ``from module import Name as Name`` for each.
Type checkers and editors read it as any stub. :func:`export` reads the same lines at run time, so ``import archipel``
loads neither torch nor the modules that nobody asked for, and the names stand in one place.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose public names are imported at their first use."""

    _defined_in: dict[str, str]
    _starred: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks packages for these, as for __path__
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in self._defined_in:
            value = getattr(import_module(self._defined_in[name]), name)
            setattr(self, name, value)
            return value
        for package in self._starred:
            if hasattr(import_module(package), name):
                return getattr(import_module(package), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a submodule in its package once it is loaded: the module archipel.fit must not hide the function.
        if isinstance(value, ModuleType) and name in self._defined_in:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


def export(package: str, defined_in: Mapping[str, str] | None = None) -> None:
    """Let a package export the names of its stub.

    A line ``from other import *`` of the stub exports the public names of another package as well.

    Args:
        package: the name of the package, ``__name__`` in its ``__init__.py``.
        defined_in: the module of each name; default: the stub says so.
    """
    module = sys.modules[package]
    module.__class__ = LazyPackage
    stub = Path(str(module.__file__)).with_suffix(".pyi")
    names, starred = _read(stub) if defined_in is None else (dict(defined_in), ())
    module._defined_in, module._starred = names, starred  # type: ignore[attr-defined]
    more = [name for other in starred for name in import_module(other).__all__]
    module.__all__ = sorted([*names, *more])  # type: ignore[attr-defined]


def stub(defined_in: Mapping[str, str]) -> str:
    """Return the stub of a package that exports these names, each from its module.

    >>> print(stub({"FedAvg": "archipel.algorithms.fedavg"}), end="")
    from archipel.algorithms.fedavg import FedAvg as FedAvg
    """
    return "".join(sorted(f"from {module} import {name} as {name}\n" for name, module in defined_in.items()))


def _read(stub: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the module of each name that a stub exports, and the packages of which it exports everything."""
    names, starred = {}, []
    for line in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module:
            for alias in line.names:
                if alias.name == "*":
                    starred.append(line.module)
                elif alias.asname is not None:  # in stubs, `import Name as Name` is what exports a name
                    names[alias.name] = line.module
    return names, tuple(starred)
