"""Which code, machine and versions made a result.

Only the scripts and commands that write results ask git, and only about the repository that this package lies in.
A user's run never does: git executes what a foreign repository's configuration tells it to.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from archipel.experiments.environment import environment

SOURCES = ("src", "benchmarks", "pyproject.toml", "constraints.txt")
"""What can change a result; a repository that differs elsewhere counts as unchanged."""
CHANGED = "+changes"


def provenance() -> dict[str, Any]:
    """Return date, versions and machine with the revision of the code.

    >>> sorted(provenance())[:3]
    ['archipel', 'cores', 'date']
    """
    return environment() | {"git": revision()}


def revision(package: Path = Path(__file__)) -> str | None:
    """Return the commit of the repository that holds the package.

    Args:
        package: a file of the package.

    Returns:
        Its hash, with ``+changes`` if sources differ from it; ``None`` if the package is installed outside of its
        repository, or if git is missing.
    """
    root = next((folder for folder in package.resolve().parents if (folder / ".git").exists()), None)
    if root is None or not (root / "src" / "archipel").is_dir():
        return None
    # An owner other than the user, as in a container, must not turn the revision into nothing.
    options = ("-c", f"safe.directory={root}", "-c", "core.fsmonitor=false", "-C", str(root))

    def git(*words: str) -> str:
        command = ["git", *options, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit + (CHANGED if git("status", "--porcelain", "--", *SOURCES) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def provenance_line() -> str:
    """Return date, machine, versions and revision as one line for a table's foot."""
    about = provenance()
    versions = ", ".join(f"{name} {about[name]}" for name in ("archipel", "torch", "numpy"))
    return (
        f"{about['date'][:10]}; {platform.machine()}, {os.cpu_count()} cores, {platform.system()}; Python "
        f"{about['python']}, {versions}; {revision_words(about['git'])}."
    )


def revision_words(commit: str | None) -> str:
    """Say a revision in words.

    >>> revision_words("0123456789abcdef"), revision_words(None)
    ('git 0123456789ab', 'no git revision: installed outside of the repository')
    >>> revision_words("0123456789abcdef+changes")
    'git 0123456789ab with uncommitted changes'
    """
    if commit is None:
        return "no git revision: installed outside of the repository"
    return f"git {commit[:12]}" + (" with uncommitted changes" if commit.endswith(CHANGED) else "")
