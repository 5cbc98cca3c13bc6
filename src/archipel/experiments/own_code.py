"""Classes of your own that a configuration names as ``module:Class``.

A configuration never imports code by itself: a run's folder may come from somebody else. A module is imported only if
the user names it on the command line (``encoder.name=my_module:MyNet``, ``--import my_module``), or if the Python
program has imported it.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

Base = TypeVar("Base")


def is_own(name: object) -> bool:
    """Return whether a name in a configuration means a class of the user's own, as in ``my_module:MyNet``."""
    return isinstance(name, str) and ":" in name


def import_own(module: str) -> None:
    """Import a module of the user's own; modules in the current folder are found.

    Raises:
        ValueError: there is no such module, or it can't be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".", 1)[0] and error.name != module:
            raise ValueError(f"The module {module} can't be imported: {error}.") from error
        raise ValueError(
            f"There is no module {module!r}. A module of your own is a file {module.replace('.', '/')}.py in the "
            f"current folder, {here}, or an installed package."
        ) from None
    except Exception as error:  # whatever the user's code raises
        raise ValueError(f"The module {module} can't be imported: {type(error).__name__}: {error}") from error


def own_class(name: str, base: type[Base]) -> type[Base]:
    """Return the class that a configuration names as ``module:Class``.

    Args:
        name: as in ``my_module:MyNet``.
        base: the class that it must inherit from.

    Raises:
        ValueError: the module has not been imported, or it has no such class.
    """
    module, _, wanted = name.partition(":")
    found = sys.modules.get(module)
    if found is None:
        raise ValueError(
            f"{name} is code of your own, which a configuration does not import. Allow it: on the command line by "
            f"--import {module or 'MODULE'}, in Python by importing it first."
        )
    kind = getattr(found, wanted, None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        classes = [
            key
            for key, value in vars(found).items()
            if isinstance(value, type) and issubclass(value, base) and value is not base
        ]
        near = difflib.get_close_matches(wanted, classes, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        there = ", ".join(classes) or "none"
        raise ValueError(f"{module} has no subclass of {base.__name__} named {wanted!r}.{hint} There are: {there}.")
    return kind


def own_modules(settings: Mapping[str, Any]) -> list[str]:
    """Return the modules of the user's own that a configuration names."""
    found = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += own_modules(value)
        elif key == "name" and is_own(value):
            found.append(value.partition(":")[0])
    return sorted(set(found))


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor that can be given by name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: found for name, found in inspect.signature(kind).parameters.items() if found.kind in named}


def check_own_options(kind: type, options: Iterable[str], given: Iterable[str] = ()) -> None:
    """Refuse options that a constructor doesn't take, and missing ones.

    Args:
        kind: the class.
        options: the names of the options.
        given: parameters that Archipel fills in itself.

    Raises:
        ValueError: says which, and what the constructor takes.
    """
    takes, options = parameters_of(kind), set(options)
    free = {name: parameter for name, parameter in takes.items() if name not in set(given)}
    listed = ", ".join(free) or "none"
    if wrong := sorted(options - free.keys()):
        raise ValueError(f"{kind.__name__} has no option {wrong[0]!r}. It takes: {listed}.")
    missing = [n for n, p in free.items() if p.default is inspect.Parameter.empty and n not in options]
    if missing:
        raise ValueError(f"{kind.__name__} needs the option {missing[0]!r}. It takes: {listed}.")


def build_own(kind: type, options: dict[str, Any], **given: Any) -> Any:
    """Build an object of a user's own class from options, and those given arguments that its constructor takes.

    Raises:
        ValueError: the constructor refuses the options.
    """
    takes = parameters_of(kind)
    try:
        return kind(**{name: value for name, value in given.items() if name in takes}, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{kind.__name__} can't be built with the options {options}: {error}.") from error
