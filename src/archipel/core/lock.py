"""Lock a folder: two processes that write the same run would overwrite each other's files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock; there nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_HELD: set[tuple[Path, int, int]] = set()


@contextmanager
def locked(folder: Path, *, nested: bool = False) -> Iterator[None]:
    """Hold a folder until the end of the block, or until this process ends for whatever reason.

    Args:
        folder: is made where it does not exist; the lock is on its file ``.lock``, which stays there.
        nested: whether the thread that holds the folder may lock it again, as ``fit`` does inside of a command.

    Raises:
        ValueError: another process or thread holds the folder, or its lock is no plain file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     with locked(Path(folder), nested=True):
    ...         pass
    ...     with locked(Path(folder)):
    ...         pass  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: Another process is writing to ...; wait until it ends, or choose another folder (--out).
    """
    if (folder.is_symlink() or folder.exists()) and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Choose another place, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    held = folder.resolve(), os.getpid(), threading.get_ident()
    if nested and held in _HELD:
        yield
        return
    if (folder / LOCK).is_symlink() or (folder / LOCK).is_dir():
        raise ValueError(f"{folder / LOCK} is not a plain file, so the folder can't be locked. Remove it.")
    with (folder / LOCK).open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"Another process is writing to {folder}; wait until it ends, or choose another folder (--out)."
                ) from None
            except OSError:
                pass  # a file system without locks
        _HELD.add(held)
        try:
            yield
        finally:
            _HELD.discard(held)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder; nobody does where the system has no locks."""
    if fcntl is None or not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False
