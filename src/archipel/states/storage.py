"""Columns of the table of client states: one leaf of every client's state, in memory or in a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EXDEV
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Rows = Tensor | slice
"""Rows as an index ``(k,)`` int64, or as a slice if they are consecutive."""
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
PIECE = 1 << 24
"""Bytes in memory at a time while a column is copied."""
UNSUPPORTED = (EXDEV, EINVAL, ENOSYS, EOPNOTSUPP, EPERM)
"""errno values for 'unsupported here'."""


class Column(Protocol):
    """One leaf of every client's state: a row for each client, or for each example of :class:`PerExample` leaves."""

    def read(self, rows: Rows) -> Tensor:
        """Return a copy of these rows."""

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replace these rows."""


Store = Callable[[Shapes], dict[str, Column]]
"""Allocates columns of these shapes, all zero."""


@dataclass(frozen=True)
class MemoryColumn:
    """A column in memory."""

    table: Tensor

    def read(self, rows: Rows) -> Tensor:
        return self.table[rows].clone() if isinstance(rows, slice) else self.table[rows]

    def write(self, rows: Rows, values: Tensor) -> None:
        self.table[rows] = values


class OpenFile:
    """An open file, which is closed when the object is deleted.

    Args:
        descriptor: its file descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # bound above: at the interpreter's exit the module os may be gone


@dataclass(frozen=True)
class FileColumn:
    """A column in a file, read and written by position. Pages of a mapped file would count as the process's memory.

    Args:
        file: stays open while the column exists.
        start: where the column begins, in bytes.
        shape: of a row.
        dtype: of the values.
    """

    file: OpenFile
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return prod(self.shape) * self.dtype.itemsize

    def read(self, rows: Rows) -> Tensor:
        values = torch.empty(_length(rows), *self.shape, dtype=self.dtype)
        for offset, piece in self._pieces(rows, values):
            done = 0
            while done < len(piece):
                count = os.preadv(self.file.descriptor, [piece[done:]], offset + done)
                if not count:
                    raise OSError("The file of client states ends too early: another program has changed it.")
                done += count
        return values

    def write(self, rows: Rows, values: Tensor) -> None:
        plain = values.detach().cpu().resolve_conj().resolve_neg().contiguous()
        for offset, piece in self._pieces(rows, plain):
            done = 0
            while done < len(piece):
                done += os.pwrite(self.file.descriptor, piece[done:], offset + done)

    def _pieces(self, rows: Rows, values: Tensor) -> Iterator[tuple[int, memoryview]]:
        """Yield the offset in the file and the bytes in memory of each run of consecutive rows."""
        if not self.width or not len(values):
            return
        memory = values.reshape(-1).view(torch.uint8).numpy().data
        at = 0
        for first, count in _runs(rows):
            yield self.start + first * self.width, memory[at : at + count * self.width]
            at += count * self.width


def consecutive(index: Tensor) -> Rows:
    """Return a slice if the rows are consecutive, which is faster to read and write; else the index."""
    if len(index) and int(index[-1] - index[0]) == len(index) - 1 and bool((index.diff() == 1).all()):
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _length(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _runs(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield ``(first, count)`` of each run of consecutive rows."""
    if isinstance(rows, slice):
        yield rows.start, rows.stop - rows.start
        return
    index = rows.numpy()
    edges = np.flatnonzero(np.diff(index) != 1) + 1
    for run in np.split(index, edges):
        yield int(run[0]), len(run)


def in_memory(shapes: Shapes) -> dict[str, Column]:
    """Allocate columns in memory."""
    return {name: MemoryColumn(torch.zeros(shape, dtype=dtype)) for name, (shape, dtype) in shapes.items()}


def on_disk(folder: str | Path | None = None) -> Store:
    """Return a store in a temporary file, which the system deletes when it is closed or the process ends.

    Args:
        folder: on which disk; default: where large temporary files go, ``$TMPDIR`` or else ``/var/tmp``.

    Raises:
        OSError: the disk is too small; nothing was written.
    """

    def make(shapes: Shapes) -> dict[str, Column]:
        place = Path(folder or temporary_folder())
        place.mkdir(parents=True, exist_ok=True)
        size = nbytes(shapes)
        check_space(place, size, "Give fit a folder on a larger disk.")
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            opened = OpenFile(os.dup(file.fileno()))
        _reserve(opened, size)
        return dict(file_columns(opened, shapes, 0))

    return make


def _reserve(file: OpenFile, size: int) -> None:
    """Extend the file with zeros, and reserve its space on the disk if the file system supports it."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    os.ftruncate(file.descriptor, size)


def temporary_folder() -> str:
    """Return the folder for large temporary files: ``/tmp`` is in memory on many systems, ``/var/tmp`` is not."""
    named = os.environ.get("TMPDIR")
    return named if named else "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def check_space(place: Path, size: int, advice: str) -> None:
    """Raise an OSError if the disk of this folder has fewer bytes free."""
    free = shutil.disk_usage(place).free
    if size > free:
        raise OSError(
            f"The clients' states need {size / 1e9:.3g} GB on disk, and {place} has {free / 1e9:.3g} GB free. {advice}"
        )


def nbytes(shapes: Shapes) -> int:
    """Return the number of bytes of columns of these shapes."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def offsets(shapes: Shapes) -> dict[str, int]:
    """Return the offset of each column, in bytes; wide types come first, so that all are aligned."""
    at, found = 0, {}
    for name, (shape, dtype) in sorted(shapes.items(), key=lambda item: -item[1][1].itemsize):
        found[name] = at
        at += prod(shape) * dtype.itemsize
    return found


def file_columns(file: OpenFile, shapes: Shapes, start: int) -> dict[str, FileColumn]:
    """Return columns in a file, one after another from offset ``start``."""
    return {
        name: FileColumn(file, start + at, shapes[name][0][1:], shapes[name][1]) for name, at in offsets(shapes).items()
    }


def copy(source: Column, target: Column, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Copy a column of this shape in pieces; the kernel copies from file to file if it can."""
    width = prod(shape[1:]) * dtype.itemsize
    rows, done = shape[0], 0
    if isinstance(source, FileColumn) and isinstance(target, FileColumn):
        # The copy may end within a row, which is then copied again.
        done = _copied_by_kernel(source, target, rows * width) // max(1, width)
    step = max(1, PIECE // max(1, width))
    for first in range(done, rows, step):
        piece = slice(first, min(first + step, rows))
        target.write(piece, source.read(piece))


def _copied_by_kernel(source: FileColumn, target: FileColumn, size: int) -> int:
    """Return the number of bytes that the kernel has copied: all, or fewer if the file system does not support it."""
    done = 0
    try:
        while done < size and hasattr(os, "copy_file_range"):
            ends = source.file.descriptor, target.file.descriptor
            count = os.copy_file_range(*ends, size - done, source.start + done, target.start + done)
            if not count:
                break
            done += count
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return done
