"""The table of client states as one safetensors file, written and read in pieces; any safetensors reader can read it.

The file holds ``counts`` ``(m,)`` and ``written`` ``(m,)``, and for every leaf of the states, under ``states/`` and its
name a tensor with a row for each client. Names of per-example leaves end in ``!``; their tensors have a row for each
example, client after client. The header's metadata hold the order of the entries.
See :class:`archipel.states.table.States`.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import torch

from archipel.states.storage import (
    Column,
    FileColumn,
    MemoryColumn,
    OpenFile,
    Shapes,
    check_space,
    copy,
    file_columns,
    nbytes,
    offsets,
)
from archipel.states.table import EMPTY, States, is_empty_dict

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
PREFIX = "states/"
LONGEST_HEADER = 100_000_000
"""Bytes of a header, at most: the format's limit."""


def write_states(states: States, path: Path) -> None:
    """Write the table, in pieces; the kernel copies states on disk if it can.

    Raises:
        OSError: the disk is too small; nothing was written.
        TypeError: a leaf of a type that the format does not have.
    """
    m, order = len(states), None if states.shapes is None else list(states.shapes)
    shapes: Shapes = {"counts": ((m,), torch.int64), "written": ((m,), torch.bool)}
    shapes |= {PREFIX + name: shape for name, shape in states.column_shapes.items()}
    header = _header(shapes, {"order": json.dumps(order)})
    check_space(path.parent, len(header) + nbytes(shapes), "Give fit a folder on a larger disk, or make room there.")
    path.write_bytes(header)
    file = OpenFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    os.ftruncate(file.descriptor, len(header) + nbytes(shapes))
    columns = {PREFIX + name: column for name, column in states.columns.items()}
    columns |= {"counts": MemoryColumn(states.counts), "written": MemoryColumn(states.written)}
    for name, target in file_columns(file, shapes, len(header)).items():
        copy(columns[name], target, *shapes[name])


def read_states(path: Path) -> States:
    """Return the table of a file, which stays open: states are read when they are asked for.

    Raises:
        ValueError: the file is cut off, or is not a table of client states.
        FileNotFoundError: there is no such file.
    """
    file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    tensors, start = _read_header(file, path.name)
    order = json.loads(tensors.pop("__metadata__")["order"])
    shapes: Shapes = {name: (tuple(about["shape"]), TYPES[about["dtype"]]) for name, about in tensors.items()}
    size = os.fstat(file.descriptor).st_size - start
    columns: dict[str, Column] = {}
    for name, (shape, dtype) in shapes.items():
        first, last = tensors[name]["data_offsets"]
        if not 0 <= first <= last <= size or last - first != prod(shape) * dtype.itemsize:
            raise ValueError(f"{path.name} ends before {name} does, or has another shape of it.")
        columns[name] = FileColumn(file, start + first, shape[1:], dtype)
    m = max(shapes["written"][0], default=0)
    if m < 1 or shapes.pop("counts") != ((m,), torch.int64) or shapes.pop("written") != ((m,), torch.bool):
        raise ValueError(f"{path.name} does not list its clients.")
    states = States(columns["counts"].read(slice(0, m)))
    states.written = columns["written"].read(slice(0, m))
    if order is not None:
        states.shapes = {name: EMPTY if is_empty_dict(name) else _row(*shapes[PREFIX + name]) for name in order}
        states.columns = {name: columns[PREFIX + name] for name in order if not is_empty_dict(name)}
    if {PREFIX + name: shape for name, shape in states.column_shapes.items()} != shapes:
        raise ValueError(f"{path.name} has tensors that are not those of {m} clients.")
    return states


def _row(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[tuple[int, ...], torch.dtype]:
    return shape[1:], dtype


def _read_header(file: OpenFile, name: str) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of its end."""
    length = int.from_bytes(os.pread(file.descriptor, 8, 0), "little")
    text = os.pread(file.descriptor, length, 8) if length <= LONGEST_HEADER else b""
    if not text or len(text) < length:
        raise ValueError(f"{name} is not a safetensors file, or was cut off.")
    header: dict[str, Any] = json.loads(text)
    return header, 8 + length


def _header(shapes: Shapes, metadata: dict[str, str]) -> bytes:
    """Return the header with its length, padded with blanks so that the first tensor is aligned."""
    tensors: dict[str, Any] = {"__metadata__": metadata}
    for name, start in offsets(shapes).items():
        shape, dtype = shapes[name]
        if dtype not in NAMES:
            shown = name.removeprefix(PREFIX).rstrip("!")
            raise TypeError(
                f"A client's state holds {dtype} at {shown}, which a checkpoint cannot store: safetensors has "
                f"{', '.join(str(known).removeprefix('torch.') for known in NAMES)}."
            )
        size = prod(shape) * dtype.itemsize
        tensors[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, start + size]}
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
