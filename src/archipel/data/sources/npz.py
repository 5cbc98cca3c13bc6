"""NumPy's .npz files, read with errors that name the file."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from archipel.data.arrays import Array


def read_npz(file: Path, needed: Sequence[str]) -> dict[str, Array]:
    """Read arrays by name from an .npz file; pickled objects in it are refused, not run.

    Args:
        file: to read.
        needed: names of the arrays.

    Raises:
        ValueError: cut short, damaged, or without an array that's needed.
    """
    try:
        with np.load(file, allow_pickle=False) as found:
            if missing := [name for name in needed if name not in found]:
                raise ValueError(f"it has no array {' and no '.join(missing)}, but {', '.join(found) or 'nothing'}")
            return {name: found[name] for name in needed}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise ValueError(
            f"{file} can't be used: {reason}. Make it by numpy.savez(file, "
            f"{', '.join(f'{name}=…' for name in needed)}) of numbers or text."
        ) from error
