"""Where client states are kept: in memory if they fit well, else on disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from archipel.states.storage import Column, Shapes, Store, in_memory, nbytes, on_disk, temporary_folder

Placement = Literal["auto", "memory", "disk"]
log = logging.getLogger("archipel")


def store_in(where: Placement, folder: Path | None = None) -> Store:
    """Return the store that allocates client states.

    Args:
        where: ``"memory"``; ``"disk"``; or ``"auto"``: on disk where the table would take more than half of the memory
            that is available when it is made.
        folder: on the disk to use; default: the folder for large temporary files.

    Raises:
        ValueError: another value.
    """
    if where not in get_args(Placement):
        raise ValueError(f"states must be one of {', '.join(map(repr, get_args(Placement)))}; given {where!r}.")
    if where == "memory":
        return in_memory

    def make(shapes: Shapes) -> dict[str, Column]:
        size, free = nbytes(shapes), available_memory()
        if where == "auto" and (free is None or 2 * size <= free):
            return in_memory(shapes)
        beside = f"; {free / 1e9:.3g} GB of memory are available" if where == "auto" and free is not None else ""
        log.info("client states: %.3g GB on disk, in %s%s.", size / 1e9, folder or temporary_folder(), beside)
        return on_disk(folder)(shapes)

    return make


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process can still take, by the machine and by its control groups.

    Args:
        root: the root of the file system.

    Returns:
        The smallest known limit; ``None`` if the system provides none.
    """
    return min([*_machine(root / "proc/meminfo"), *_groups(root)], default=None)


def _machine(path: Path) -> Iterator[int]:
    for name, _, value in (line.partition(":") for line in _lines(path)):
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """Yield the remaining bytes of each control group of the process, version 2 or 1."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, limit, usage, cached = "", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, usage = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        top = root / "sys/fs/cgroup" / mount
        group = top / path.strip("/")
        # Limits of parent groups apply as well. In a container the path may be the host's, and not exist.
        for place in [group, *(above for above in group.parents if above.is_relative_to(top))]:
            most, taken = _number(place / limit), _number(place / usage)
            if most is not None and taken is not None:
                # The kernel frees cached file pages when memory is short.
                spare = sum(int(line.split()[1]) for line in _lines(place / "memory.stat") if line.split()[0] == cached)
                yield max(0, most - taken + spare)


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
