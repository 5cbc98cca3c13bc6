"""Where a run was made: what one must know to make it again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def write_environment(folder: Path) -> None:
    """Writes ``environment.json``."""
    (folder / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")


def environment() -> dict[str, Any]:
    """Date, versions, machine, and the git revision of the current directory, where it has one."""
    packages = ("archipel", "torch", "numpy", "scipy", "scikit-learn", "pillow")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_revision(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def git_revision() -> str | None:
    """The commit that is checked out, with ``+changes`` where files differ from it; ``None`` outside of git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
