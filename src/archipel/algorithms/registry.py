"""The algorithms by name. Each module of this package holds one; nothing has to be listed anywhere.

Names are read from the files, so that a list of them costs neither torch nor the algorithms' imports.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from archipel.core.lazy import stub

PACKAGE = "archipel.algorithms"
CLASS = re.compile(r"^class ([A-Za-z]\w*)\(", re.MULTILINE)


@cache
def modules() -> dict[str, str]:
    """Return the module of each algorithm by the name of its class, in alphabetical order.

    >>> modules()["FedAvg"]
    'archipel.algorithms.fedavg'
    """
    found = {}
    for path in Path(__file__).parent.glob("*.py"):
        if path.stem not in ("__init__", "registry"):
            for name in CLASS.findall(path.read_text(encoding="utf-8")):
                found[name] = f"{PACKAGE}.{path.stem}"
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


@cache
def by_name() -> dict[str, type[Any]]:
    """Return every algorithm by the name that configurations give it: its class's, in lower case."""
    return {name.lower(): getattr(import_module(module), name) for name, module in modules().items()}


if __name__ == "__main__":  # python -m archipel.algorithms.registry, after a method was added
    Path(__file__).with_name("__init__.pyi").write_text(stub(modules()), encoding="utf-8")
