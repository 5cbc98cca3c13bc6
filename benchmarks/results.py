"""What the scripts in this folder share: their arguments, and the record of how a result was made.

A result in docs/ names the revision that made it, so a script refuses to begin while sources differ from the last
commit. ``--dirty`` permits it, and the result says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from archipel.reports.provenance import CHANGED, provenance, provenance_line

DOCS = Path(__file__).resolve().parents[1] / "docs"
_started = time.perf_counter()


def parser(text: str | None, out: Path = DOCS / "results") -> argparse.ArgumentParser:
    """Return a script's parser with the arguments that all scripts have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=out, help="folder of the results; default: %(default)s")
    made.add_argument("--dirty", action="store_true", help="run although sources differ from the last commit")
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and refuse to begin while sources differ from the last commit."""
    given = made.parse_args()
    commit = provenance()["git"]
    if (commit is None or commit.endswith(CHANGED)) and not given.dirty:
        why = "this is no git checkout" if commit is None else "src, benchmarks or the pinned versions are changed"
        made.error(f"A result must name the revision that made it, and {why}. Commit first, or add --dirty.")
    return given


def about() -> dict[str, Any]:
    """Return the command, how long it has taken so far, and the code's revision, versions and machine."""
    words = [f"python benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    seconds = round(time.perf_counter() - _started)
    return {"command": " ".join(words), "seconds": seconds, **provenance()}


def write(path: Path, found: dict[str, Any]) -> None:
    """Write a result with its record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about(), **found}, indent=1) + "\n")
    print(f"wrote {path}")


def foot() -> str:
    """Return the record as one line for a Markdown file."""
    return f"- Command: `{about()['command']}`\n- {provenance_line()}"
