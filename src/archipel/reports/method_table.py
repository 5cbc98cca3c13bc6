"""The table of all methods in docs/which-method.md, made from their classes."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from archipel.algorithms.registry import by_name
from archipel.core.checks import hints_of

BEGIN, END = "<!-- all methods: python -m archipel.reports.method_table docs/which-method.md -->\n", "<!-- end -->\n"


def method_table() -> str:
    """Return the table in Markdown: class, name in configurations, and the first line of its documentation."""
    rows = ["| Class | In configurations | What it is |", "| --- | --- | --- |"]
    for name, kind in by_name().items():
        command = "`archipel em`" if "family" in hints_of(kind) else f"`{name}`"  # type: ignore[arg-type]
        rows.append(f"| {kind.__name__} | {command} | {(inspect.getdoc(kind) or '').splitlines()[0]} |")
    return "\n".join(rows) + "\n"


def replaced(page: str) -> str:
    """Return a page with the table between its marks made anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + method_table() + END + after


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8")), encoding="utf-8")
