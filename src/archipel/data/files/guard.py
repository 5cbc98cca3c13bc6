"""What all readers of files share: sentences for damaged files, and limits on what a file may unpack to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMALL = 1 << 28
"""Any file may unpack to this many bytes, 256 MiB."""
RATIO = 100
"""A larger file may unpack to this many times its own size. Compressed data rarely exceed 20; bombs reach 1,000."""


@contextmanager
def readable(file: str | Path, remedy: str) -> Iterator[None]:
    """Turn whatever a damaged file causes into one sentence that names the file.

    Args:
        file: what is read.
        remedy: what to do about it, a sentence.

    Raises:
        ValueError: the file can't be read.
        OSError: the file isn't there or isn't permitted, as the system says it.

    >>> with readable("a.npz", "Write it again."):
    ...     raise EOFError("cut short")
    Traceback (most recent call last):
    ValueError: a.npz can't be read: cut short. Write it again.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, ImportError):
        raise
    except MemoryError as error:
        raise ValueError(f"{file} can't be read: it needs more memory than there is. Divide it.") from error
    except Exception as error:  # a damaged file can make its reader fail in any way
        reason = (str(error).strip().rstrip(".") or type(error).__name__)[:300]
        raise ValueError(f"{file} can't be read: {reason}. {remedy}") from error


def check_unpacked(unpacked: int, packed: int) -> None:
    """Refuse a file that unpacks to far more than its own size.

    Args:
        unpacked: bytes that the content claims or turns out to have.
        packed: bytes of the file.

    Raises:
        ValueError: more than `SMALL` bytes and more than `RATIO` times the file.
    """
    if unpacked > max(SMALL, RATIO * packed):
        raise ValueError(
            f"it holds {packed:,} bytes and unpacks to {unpacked:,} or more, over {RATIO} times as many, as files "
            "do that are made to fill the memory"
        )


def at_most(packed: int) -> int:
    """Bytes that a file of this size may unpack to."""
    return max(SMALL, RATIO * packed)
