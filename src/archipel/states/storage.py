"""Columns of the table of client states: one leaf of everybody's, in memory or in a file."""

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
"""Which rows: an index ``(k,)`` int64, or a slice where they are consecutive."""
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
PIECE = 1 << 24
"""Bytes that are in memory at a time while a column is copied."""
UNSUPPORTED = (EXDEV, EINVAL, ENOSYS, EOPNOTSUPP, EPERM)
"""Errors by which a system says that it doesn't do this here, and not that it failed."""


class Column(Protocol):
    """One leaf of every client's state: a row a client, or an example for leaves that are :class:`PerExample`."""

    def read(self, rows: Rows) -> Tensor:
        """These rows, in memory of their own."""

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces these rows."""


Store = Callable[[Shapes], dict[str, Column]]
"""Makes room for columns of these shapes, all zero."""


@dataclass(frozen=True)
class MemoryColumn:
    """A column in memory."""

    table: Tensor

    def read(self, rows: Rows) -> Tensor:
        return self.table[rows].clone() if isinstance(rows, slice) else self.table[rows]

    def write(self, rows: Rows, values: Tensor) -> None:
        self.table[rows] = values


class OpenFile:
    """An open file, closed when nobody holds it any more.

    Args:
        descriptor: the system's number of it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # given above, for when the interpreter ends it may have forgotten what os is


@dataclass(frozen=True)
class FileColumn:
    """A column in a file. It is read and written by position, not mapped, so that its pages aren't the process's own.

    Args:
        file: open as long as its columns are.
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
                    raise OSError("The file of client states is shorter than it was made: was it changed meanwhile?")
                done += count
        return values

    def write(self, rows: Rows, values: Tensor) -> None:
        plain = values.detach().cpu().resolve_conj().resolve_neg().contiguous()
        for offset, piece in self._pieces(rows, plain):
            done = 0
            while done < len(piece):
                done += os.pwrite(self.file.descriptor, piece[done:], offset + done)

    def _pieces(self, rows: Rows, values: Tensor) -> Iterator[tuple[int, memoryview]]:
        """Each run of consecutive rows: where it lies in the file, and its bytes in memory."""
        if not self.width or not len(values):
            return
        memory = values.reshape(-1).view(torch.uint8).numpy().data
        at = 0
        for first, count in _runs(rows):
            yield self.start + first * self.width, memory[at : at + count * self.width]
            at += count * self.width


def consecutive(index: Tensor) -> Rows:
    """The index; of consecutive rows a slice, which is read and written without a copy of the index."""
    if len(index) and int(index[-1] - index[0]) == len(index) - 1 and bool((index.diff() == 1).all()):
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _length(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _runs(rows: Rows) -> Iterator[tuple[int, int]]:
    """``(first, count)`` of each run of consecutive rows."""
    if isinstance(rows, slice):
        yield rows.start, rows.stop - rows.start
        return
    index = rows.numpy()
    edges = np.flatnonzero(np.diff(index) != 1) + 1
    for run in np.split(index, edges):
        yield int(run[0]), len(run)


def in_memory(shapes: Shapes) -> dict[str, Column]:
    """Columns in memory."""
    return {name: MemoryColumn(torch.zeros(shape, dtype=dtype)) for name, (shape, dtype) in shapes.items()}


def on_disk(folder: str | Path | None = None) -> Store:
    """Columns in a file without a name, which is gone when the states are, or the process.

    Args:
        folder: on which disk; default: where large temporary files go, ``$TMPDIR`` or else ``/var/tmp``.

    Raises:
        OSError: the disk hasn't the room, told before anything is written.
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
    """Makes the file so long, of zeros, and takes its room on the disk at once where the file system can."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    os.ftruncate(file.descriptor, size)


def temporary_folder() -> str:
    """The folder for temporary files that may be large. ``/tmp`` is in memory on many systems, ``/var/tmp`` isn't."""
    named = os.environ.get("TMPDIR")
    return named if named else "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def check_space(place: Path, size: int, advice: str) -> None:
    """Raises an OSError where the disk of this folder hasn't room for so many bytes."""
    free = shutil.disk_usage(place).free
    if size > free:
        raise OSError(
            f"The clients' states need {size / 1e9:.3g} GB on disk, and {place} has {free / 1e9:.3g} GB free. {advice}"
        )


def nbytes(shapes: Shapes) -> int:
    """Bytes of columns of these shapes."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def offsets(shapes: Shapes) -> dict[str, int]:
    """Where columns begin one after another, in bytes; wide numbers first, so that each lies aligned."""
    at, found = 0, {}
    for name, (shape, dtype) in sorted(shapes.items(), key=lambda item: -item[1][1].itemsize):
        found[name] = at
        at += prod(shape) * dtype.itemsize
    return found


def file_columns(file: OpenFile, shapes: Shapes, start: int) -> dict[str, FileColumn]:
    """Columns in a file one after another, the first at ``start``."""
    return {
        name: FileColumn(file, start + at, shapes[name][0][1:], shapes[name][1]) for name, at in offsets(shapes).items()
    }


def copy(source: Column, target: Column, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Copies a column of this shape, a piece at a time; from file to file inside the kernel, where it can."""
    width = prod(shape[1:]) * dtype.itemsize
    rows, done = shape[0], 0
    if isinstance(source, FileColumn) and isinstance(target, FileColumn):
        # What was copied may end within a row, which is begun again.
        done = _copied_by_kernel(source, target, rows * width) // max(1, width)
    step = max(1, PIECE // max(1, width))
    for first in range(done, rows, step):
        piece = slice(first, min(first + step, rows))
        target.write(piece, source.read(piece))


def _copied_by_kernel(source: FileColumn, target: FileColumn, size: int) -> int:
    """How many bytes could be copied so; all of them, where the file system knows how."""
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
