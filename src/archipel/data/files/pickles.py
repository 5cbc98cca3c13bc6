"""Pickles of arrays from unknown sources, read without running code from them.

A pickle is a program: `pickle.load` on a file can do anything that its author wants. The reader here accepts numbers,
text, bytes, lists, tuples, dictionaries and NumPy arrays of numbers, and refuses everything else.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from archipel_serve.arrays import Array

MOST_STEPS = 2_000_000
ARRAY = object()  # in place of the class numpy.ndarray


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that finds only the parts of arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # written by NumPy 1
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # by NumPy 2
            ("numpy", "ndarray"): ARRAY,
            ("numpy", "dtype"): _Dtype,
            ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in the old protocol
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a file of arrays doesn't need")
        return allowed[module, name]


def read_pickle(content: bytes, where: str | Path) -> dict[bytes, Any]:
    """Read a dictionary of arrays and lists from a pickle of unknown origin.

    Args:
        content: of the file.
        where: its name, for error messages.

    Returns:
        The dictionary; text that Python 2 wrote is bytes, keys always are.

    Raises:
        ValueError: cut short, damaged, no dictionary, or it holds what isn't data.

    >>> read_pickle(pickle.dumps({"labels": [3, 1]}), "batch")
    {b'labels': [3, 1]}
    >>> read_pickle(pickle.dumps({"labels": print}), "batch")
    Traceback (most recent call last):
    ValueError: batch can't be read: it asks for builtins.print, which a file of arrays doesn't need. Fetch it again.
    """
    try:
        _check_memo(content)
        found = RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{where} can't be read: {error or type(error).__name__}. Fetch it again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where} holds a {type(found).__name__}, not a dictionary of arrays. Fetch it again.")
    return {
        key.encode() if isinstance(key, str) else key: value.array if isinstance(value, _Array) else value
        for key, value in found.items()
    }


def _check_memo(content: bytes) -> None:
    """Refuse a pickle that asks for more memory than it can fill: places in its memo far beyond those it uses."""
    for number, (code, argument, _) in enumerate(pickletools.genops(content)):
        if number >= MOST_STEPS:
            raise pickle.UnpicklingError(f"it has more than {MOST_STEPS:,} steps, which files of arrays haven't")
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > number:
            raise pickle.UnpicklingError("it asks for memory that it doesn't use")


class _Dtype:
    """In place of a dtype of numbers; NumPy's own would read its fields from the pickle."""

    def __init__(self, name: str | bytes, *flags: bool) -> None:
        self.dtype = np.dtype(name.decode() if isinstance(name, bytes) else name)
        if self.dtype.kind not in "buif":
            raise pickle.UnpicklingError(f"it holds an array of {self.dtype}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder("<" if order == "<" else ">" if order == ">" else "=")


class _Array:
    """In place of an array, which is made from its bytes here; NumPy would trust the pickle."""

    array: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array that isn't of numbers")
        flat = np.frombuffer(bytearray(content), dtype.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(kind: object, shape: object, dtype: object) -> _Array:
    if kind is not ARRAY:
        raise pickle.UnpicklingError("it holds an array of an unknown kind")
    return _Array()


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it holds bytes encoded as {encoding!r}")
    return text.encode("latin1")
