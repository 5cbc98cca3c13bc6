"""NumPy's .npy and .npz files. Pickled objects in them are refused, not loaded."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from archipel.data.files.guard import check_unpacked, readable
from archipel_serve.arrays import Array

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(file: Path) -> Array:
    """Read the array of an .npy file.

    Raises:
        ValueError: the file is damaged or cut short, or holds objects.
    """
    with readable(file, "Write it by numpy.save(file, x), of numbers or text."), file.open("rb") as content:
        return _read_array(content, file.stat().st_size)


def read_npz(file: Path, needed: Sequence[str], also: Sequence[str] = ()) -> dict[str, Array]:
    """Read arrays by name from an .npz file.

    Args:
        file: to read.
        needed: names of arrays that must be there.
        also: names of arrays that are read where they are there.

    Raises:
        ValueError: the file is damaged or cut short, holds objects, unpacks to too much, or lacks an array.
    """
    remedy = f"Write it by numpy.savez(file, {', '.join(f'{name}=…' for name in needed)}), of numbers or text."
    with readable(file, remedy), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if missing := [name for name in needed if name not in members]:
            raise ValueError(f"it has no array {' and no '.join(missing)}, but {', '.join(members) or 'nothing'}")
        wanted = [*needed, *(name for name in also if name in members)]
        check_unpacked(sum(members[name].file_size for name in wanted), file.stat().st_size)
        found = {}
        for name in wanted:
            with archive.open(members[name]) as content:
                found[name] = _read_array(content, members[name].file_size)
        return found


def _read_array(content: IO[bytes], size: int) -> Array:
    """Read an array of `size` bytes, header included; memory is taken only if the header agrees with the size."""
    if (magic := content.read(8))[:6] != np.lib.format.MAGIC_PREFIX or len(magic) < 8:
        raise ValueError("it isn't one of NumPy's arrays")
    version = magic[6], magic[7]
    if version not in _HEADERS:
        raise ValueError("it holds records with named fields; plain arrays are needed")
    shape, fortran, dtype = _HEADERS[version](content)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which could run code; they aren't loaded")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not claimed <= size:
        raise ValueError(f"it claims {dtype} of shape {shape}, {claimed:,} bytes, and is {size:,} bytes long")
    values = bytearray(content.read(claimed + 1))
    if len(values) != claimed:
        raise ValueError(f"it claims {dtype} of shape {shape}, {claimed:,} bytes, and holds {len(values):,} or more")
    return np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")
