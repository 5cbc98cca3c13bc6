"""Where a run was made: the date, versions and machine, which somebody needs to make it again."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
BRANCH = re.compile(r"ref: (refs/[\w./+@-]+)")


def write_environment(folder: Path) -> None:
    """Write ``environment.json``."""
    (folder / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")


def environment() -> dict[str, Any]:
    """Return date, versions, machine, and the git revision of the current folder if it lies in a repository."""
    packages = ("archipel", "torch", "numpy", "scipy", "scikit-learn", "pillow")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_revision(Path.cwd()),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def git_revision(folder: Path) -> str | None:
    """Return the commit that is checked out around a folder; ``None`` outside of a repository.

    It reads the files of ``.git`` as text. The git command would execute what a foreign repository's configuration
    tells it to, such as ``core.fsmonitor``.
    """
    git = next((place / ".git" for place in (folder, *folder.parents) if (place / ".git").is_dir()), None)
    if git is None:
        return None
    head = _text(git / "HEAD")
    if branch := BRANCH.fullmatch(head):
        name = branch[1]
        if ".." in name:
            return None
        packed = dict(line.split(" ", 1)[::-1] for line in _text(git / "packed-refs").splitlines() if " " in line)
        head = _text(git / name) or packed.get(name, "")
    return head if HASH.fullmatch(head) else None


def _text(path: Path, most: int = 1_000_000) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
