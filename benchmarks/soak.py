"""Run the long tests, those marked ``soak``, and write which passed and how long each took.

    python benchmarks/soak.py

It writes ``docs/results/soak.md``, with the revision.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import results

ROOT = Path(__file__).resolve().parents[1]


def table(report: Path) -> str:
    """Return the tests with their outcomes and seconds in Markdown, from pytest's JUnit file."""
    lines = ["| test | outcome | seconds |", "| --- | --- | ---: |"]
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        seconds = float(case.get("time") or 0.0)
        lines.append(f"| `{case.get('file')}::{case.get('name')}` | {outcome} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    given = results.parsed(results.parser(__doc__))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "soak.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "soak",
            f"--junitxml={report}",
            "-o",
            "junit_family=xunit1",
        ]
        done = subprocess.run([*command, "tests"], cwd=ROOT, check=False)
        if not report.exists():
            raise SystemExit(done.returncode)
        text = table(report)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "soak.md").write_text(f"{text}\n\n{results.foot()}\n")
    print(text)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
