"""Mutation testing: do the tests notice small faults in the numerical code?

    python benchmarks/mutants.py

Each mutant is one change of one expression in ``algorithms``, ``em``, ``drm`` or ``compress``: another operator,
another number, a negated condition. 300 of them are drawn with a seed. The tests that run a mutant's line are run on a
copy of the repository, the most specific first, until one fails. A mutant that passes all of them has survived.

The first call measures which test runs which line, which takes about ten minutes. A run that was interrupted is
resumed. It writes ``docs/results/mutants.json`` and ``mutants.md``. Survivors that compute the same as the original are
listed with the reason in ``benchmarks/equivalent_mutants.json``.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import results

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("algorithms", "em", "drm", "compress")
COPIED = ("src", "tests", "benchmarks", "docs", "pyproject.toml", "README.md")
BUDGET = 120.0
"""Seconds, as measured without a mutant, of the tests that a mutant is given."""
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one expression.

    Args:
        path: of the file, from the repository's root.
        line: of the expression, counted from 1.
        column: of its first character, counted from 1.
        start: where the expression begins in the file's UTF-8 bytes.
        end: where it ends.
        before: the expression.
        after: what replaces it.
    """

    path: str
    line: int
    column: int
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """Place and change in words."""
        return f"{self.path}:{self.line}:{self.column}: {self.before} -> {self.after}"

    @property
    def change(self) -> str:
        """File and change, by which equivalent mutants are known when lines move."""
        return f"{self.path}: {self.before} -> {self.after}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an expression's mutants.

    >>> [ast.unparse(new) for new in changes(ast.parse("a + 1", mode="eval").body)]
    ['a - 1']
    >>> [ast.unparse(new) for new in changes(ast.parse("0.5", mode="eval").body)]
    ['1.0']
    """
    new: Any = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
        yield new
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        new.ops = [SWAPS[type(node.ops[0])]()]
        yield new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield new.operand
    elif isinstance(node, ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
    elif isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            new.value = not value
        elif isinstance(value, int):
            new.value = value + 1
        elif isinstance(value, float):
            new.value = 2 * value or 1.0
        if new.value is not value:
            yield new


def expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that compute: none in annotations, decorators, messages or calls for typing."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            tree, ast.Raise | ast.Assert
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr) or not isinstance(child, ast.AST):
                continue
            yield child
            yield from expressions(child)


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    text = path.read_bytes()
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    name, found = str(path.relative_to(ROOT)), []
    for node in expressions(ast.parse(text)):
        for new in changes(node):
            place: Any = node
            start = lines[place.lineno - 1] + place.col_offset
            end = lines[place.end_lineno - 1] + place.end_col_offset
            after = ast.unparse(ast.fix_missing_locations(new))
            if not isinstance(node, ast.AugAssign):
                after = f"({after})"
            before = " ".join(text[start:end].decode().split())
            found.append(Mutant(name, place.lineno, place.col_offset + 1, start, end, before, after))
    return found


def population(packages: Sequence[str]) -> list[Mutant]:
    """Return all mutants of some packages."""
    files = sorted(path for name in packages for path in (ROOT / "src/archipel" / name).rglob("*.py"))
    return [mutant for path in files for mutant in mutants_of(path)]


# Which tests run which line


def coverage(folder: Path, packages: Sequence[str]) -> None:
    """Run the packages' tests once, and keep which of them ran which line, and how long each took."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-m",
        "not soak",
    ]
    command += ["--doctest-modules", "--cov=archipel", "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={folder / 'times.xml'}", "-o", "junit_family=xunit1"]
    command += [f"{place}/{name}" for name in packages for place in ("tests", "src/archipel")]
    done = subprocess.run(command, cwd=folder / "copy", env=environment(folder), check=False)
    if done.returncode not in (0, 1):
        raise SystemExit("The tests do not run without a mutant; mend them first.")
    (folder / "copy" / ".coverage").rename(folder / "coverage.sqlite")


def environment(folder: Path) -> dict[str, str]:
    """Return variables with which the copy is imported, on one thread."""
    place = folder / "copy"
    return os.environ | {"PYTHONPATH": f"{place}/src:{place}/benchmarks", "OMP_NUM_THREADS": "1"}


def tests_by_line(folder: Path) -> tuple[dict[tuple[str, int], set[str]], Counter[str]]:
    """Return the tests that ran each line, and how many lines each test ran."""
    from coverage.numbits import numbits_to_nums

    by: dict[tuple[str, int], set[str]] = {}
    sizes: Counter[str] = Counter()
    base = folder / "copy"
    with sqlite3.connect(folder / "coverage.sqlite") as data:
        rows = data.execute(
            "select file.path, context.context, line_bits.numbits from line_bits "
            "join file on file.id = file_id join context on context.id = context_id"
        )
        for path, context, bits in rows:
            test = context.rpartition("|")[0]
            if not test:
                continue  # on import, in no test
            lines = numbits_to_nums(bits)
            sizes[test] += len(lines)
            for line in lines:
                by.setdefault((str(Path(path).relative_to(base)), line), set()).add(test)
    return by, sizes


def seconds_by_test(folder: Path) -> dict[str, float]:
    """Return how long each test took without a mutant; those that failed are named and left out."""
    found = {}
    for case in ElementTree.parse(folder / "times.xml").iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        if any(child.tag in ("failure", "error", "skipped") for child in case):
            print(f"left out, because it does not pass without a mutant: {name}")
            continue
        found[name] = float(case.get("time") or 0.0)
    return found


def chosen(tests: set[str], sizes: Counter[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests for a mutant: those that run few lines first, within the budget."""
    kept: list[str] = []
    spent = 0.0
    for test in sorted(tests & seconds.keys(), key=lambda test: (sizes[test], test)):
        spent += seconds[test]
        if kept and spent > BUDGET:
            break
        kept.append(test)
    return kept


# One mutant


def attempt(mutant: Mutant, tests: list[str], folder: Path, limit: float) -> str:
    """Run the tests on the mutated copy.

    Returns:
        ``"killed"``, ``"survived"``, ``"timeout"``, or ``"uncovered"`` if no test runs the line or the file.
    """
    if not tests:
        return "uncovered"
    path = folder / "copy" / mutant.path
    original = (ROOT / mutant.path).read_bytes()
    path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
    try:
        return in_a_child(lambda: pytest_exit(folder, tests), limit)
    finally:
        path.write_bytes(original)


def in_a_child(work: Callable[[], int], limit: float) -> str:
    """Do work in a fork of this process, which has torch loaded already."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        os._exit(work())
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def pytest_exit(folder: Path, tests: list[str]) -> int:
    """Run pytest on the copy in this process, silently, and return its exit code."""
    import pytest

    for name in [name for name in sys.modules if name.partition(".")[0] in ("archipel", "results", "speed")]:
        del sys.modules[name]
    os.chdir(folder / "copy")
    os.environ.update(environment(folder))
    sys.path[:0] = [str(folder / "copy/src"), str(folder / "copy/benchmarks")]
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-o", "addopts=", "--doctest-modules"]
    return int(pytest.main([*options, *tests]))


# All of them


def summary(found: list[dict[str, Any]], equivalent: dict[str, str]) -> str:
    """Return the counts by package and the survivors in Markdown."""
    lines = ["| package | mutants | killed | equivalent | survived | not covered |", "| --- |" + " ---: |" * 5]
    for package in (*PACKAGES, "all"):
        mine = [one for one in found if package in ("all", one["path"].split("/")[2])]
        kinds = Counter(kind_of(one, equivalent) for one in mine)
        counts = [len(mine), *(kinds[kind] for kind in ("killed", "equivalent", "survived", "uncovered"))]
        lines.append(f"| {package} | {' | '.join(map(str, counts))} |")
    left = [one for one in found if kind_of(one, equivalent) in ("survived", "uncovered")]
    lines += ["", *(f"- {kind_of(one, equivalent)}: `{one['name'].replace('`', '')}`" for one in left)]
    return "\n".join(lines) + "\n"


def kind_of(one: dict[str, Any], equivalent: dict[str, str]) -> str:
    """Return what became of a mutant; one that never ends counts as killed."""
    if one["outcome"] in ("killed", "timeout"):
        return "killed"
    return "equivalent" if one["change"] in equivalent else str(one["outcome"])


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--count", type=int, default=300, help="number of mutants; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES, help="default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "results/mutants", help="of the copy and of the progress")
    parser.add_argument("--fresh", action="store_true", help="start anew")
    given = results.parsed(parser)
    folder: Path = given.folder.resolve()
    about = results.about()
    if given.fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made_of = folder / "revision"
    if made_of.exists() and made_of.read_text() != str(about["git"]):
        parser.error(
            f"{folder} holds the progress of revision {made_of.read_text()}. Add --fresh, or another --folder."
        )
    made_of.write_text(str(about["git"]))
    shutil.rmtree(folder / "copy", ignore_errors=True)
    for name in COPIED:
        copying = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / "copy").mkdir(exist_ok=True)
        copying(ROOT / name, folder / "copy" / name)
    if not (folder / "coverage.sqlite").exists():
        coverage(folder, given.packages)
    by, sizes = tests_by_line(folder)
    seconds = seconds_by_test(folder)
    mutants = random.Random(given.seed).sample(population(given.packages), given.count)
    progress = folder / "progress.jsonl"
    found = [json.loads(line) for line in progress.read_text().splitlines()] if progress.exists() else []
    known = {one["name"] for one in found}
    import hypothesis  # noqa: F401 (the children have them loaded)
    import torch

    torch.set_num_threads(1)
    for number, mutant in enumerate(mutants, 1):
        if mutant.name in known:
            continue
        covering = by.get((mutant.path, mutant.line), set())
        if not covering:  # a default or a constant: its line runs at import, and its value in any test of the file
            covering = {test for (path, _), some in by.items() if path == mutant.path for test in some}
        tests = chosen(covering, sizes, seconds)
        limit = 60 + 5 * sum(seconds[test] for test in tests)
        began = time.perf_counter()
        outcome = attempt(mutant, tests, folder, limit)
        one = asdict(mutant) | {"name": mutant.name, "change": mutant.change, "outcome": outcome}
        one |= {"tests": len(tests), "covering": len(covering)}
        found.append(one | {"seconds": round(time.perf_counter() - began, 1)})
        with progress.open("a") as file:
            file.write(json.dumps(found[-1]) + "\n")
        print(f"{number}/{len(mutants)} {outcome}: {mutant.name} ({found[-1]['seconds']} s)", flush=True)
    found = [one for one in found if one["name"] in {mutant.name for mutant in mutants}]
    equivalent = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    text = summary(found, equivalent)
    results.write(given.out / "mutants.json", {"seed": given.seed, "mutants": found, "equivalent": equivalent})
    (given.out / "mutants.md").write_text(f"{text}\n{results.foot()}\n")
    print(text)


if __name__ == "__main__":
    main()
