"""One command at a time in a folder: two that train the same cells would write over each other's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none; there nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder for this process, until the end or its death, whatever kills it.

    Raises:
        ValueError: another process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, alone(Path(folder)):
    ...     with alone(Path(folder)):
    ...         pass  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: Another command is at work in ...; wait for its end, or give another folder with --out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"Another command is at work in {folder}; wait for its end, or give another folder with --out."
                ) from None
            except OSError:
                pass  # a file system without locks
        yield
