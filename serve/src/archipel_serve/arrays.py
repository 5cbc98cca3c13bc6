"""Users' arrays, checked: numbers only, and finite."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from archipel_serve.pixels import decode

Array: TypeAlias = NDArray[np.generic]


def as_array(values: Any, what: str) -> Array:
    """Read a tensor, an array, a data frame, a dict of columns, an image or a list as a NumPy array.

    Images of Pillow are decoded as those in files. Masked entries become NaN. Arrays that torch can't use, because of
    negative strides or another byte order, are copied.

    Args:
        values: a tensor of torch, an array, a data frame, a dict of columns, one or many images of Pillow, or lists.
        what: its name in error messages, such as "client 'A': x".

    Raises:
        ValueError: rows of different lengths, a sparse matrix, or masked entries that aren't numbers.

    >>> as_array([[1, 2], [3, 4]], "x").shape
    (2, 2)
    >>> as_array(np.ma.masked_equal([1, -9], -9), "x")
    array([ 1., nan])
    """
    if values is None:
        raise ValueError(f"{what} is None; give an array.")
    if hasattr(values, "detach") and hasattr(values, "layout"):  # a tensor of torch, which is not imported here
        if str(values.layout) != "torch.strided" or values.is_meta:
            kind = "on the device meta, without values" if values.is_meta else f"stored as {values.layout}"
            raise ValueError(f"{what} is a tensor {kind}; dense values are needed, as by x.to_dense().")
        tensor = values.detach().cpu()
        # NumPy has no bfloat16, and float16 sums overflow early.
        return cast(Array, (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy())
    if _is_image(values):
        return cast(Array, _decoded(values, what))
    if hasattr(values, "toarray"):
        raise ValueError(f"{what} is a sparse matrix; dense arrays are needed: give x.toarray().")
    given: Any = values
    try:
        if isinstance(given, Mapping):
            given = np.stack([np.asarray(as_array(column, what)) for column in given.values()], axis=-1)
        elif isinstance(given, list | tuple) and any(map(_is_image, given)):
            given = np.array([as_array(row, what) for row in given])
        elif has_masks(given):
            given = stacked(given)
        array = given if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
    except ValueError as error:
        if str(error).startswith(what):
            raise
        raise ValueError(f"{what} isn't an array: its rows have different lengths. Give all the same shape.") from error
    if isinstance(array, np.ma.MaskedArray):
        array = unmasked(array, what)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double, which torch hasn't
        array = array.astype(np.float64)
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    return cast(Array, array)


def _is_image(value: object) -> bool:
    """Whether a value is one of Pillow's images; importing Pillow to ask would take a while."""
    return hasattr(value, "getexif")


def _decoded(image: Any, what: str) -> NDArray[np.uint8]:
    try:
        return decode(image)
    except (ValueError, OSError) as error:
        raise ValueError(f"{what} holds an image that can't be used: {error}.") from error


def has_masks(values: Any) -> bool:
    """Whether a list, or one in it, holds masked arrays; NumPy would read what lies behind their masks.

    >>> has_masks([[1.0, 2.0]]), has_masks([[np.ma.masked_equal([1, -9], -9)]])
    (False, True)
    """
    return isinstance(values, list | tuple) and any(
        isinstance(row, np.ma.MaskedArray) or has_masks(row) for row in values
    )


def stacked(rows: Any) -> Any:
    """Stack a list of arrays, or of lists of them, to one masked array."""
    parts = [stacked(row) if isinstance(row, list | tuple) else np.ma.asarray(row) for row in rows]
    return np.ma.stack(parts) if parts else np.ma.asarray(parts)


def unmasked(array: Any, what: str) -> Array:
    """Put NaN where values are masked, since what lies behind a mask isn't to be used."""
    if not np.ma.is_masked(array):
        return cast(Array, array.data)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} is masked in {int(array.mask.sum())} entries. Drop or fill them.")
    return cast(Array, array.astype(np.float64).filled(np.nan))


def as_numbers(values: Any, what: str) -> Array:
    """Read values that must be real, finite numbers, the first axis running over examples.

    Raises:
        ValueError: text, objects, complex numbers, NaN or infinity, with how many rows hold them.

    >>> as_numbers([[0.0], [float("nan")]], "client 'A': x")
    Traceback (most recent call last):
    ValueError: client 'A': x holds NaN or infinite values in 1 of 2 rows (the first: row 1). Drop or fill them.
    """
    if np.ma.is_masked(values):
        what = f"{what} is masked in places, and a masked value is NaN: it"
    array = as_array(values, what)
    if array.dtype.kind == "O":
        with suppress(TypeError, ValueError):  # numbers in a list with None, or of a data frame
            array = np.array([np.nan if _is_gap(value) else value for value in array.flat]).reshape(array.shape)
            array = array.astype(np.float64) if array.dtype.kind == "O" else array
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} holds {array.dtype} values; numbers are needed. Encode text and categories first.")
    refuse_not_finite(array, what)
    return array


def _is_gap(value: object) -> bool:
    """None, or the missing value of pandas' nullable columns."""
    return value is None or type(value).__name__ == "NAType"


def refuse_not_finite(array: Array, what: str) -> None:
    """Refuse NaN and infinity, naming how many rows hold them, also where only float32 can't hold the value."""
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32, copy=False))
    if finite.all():
        return
    rows = np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1)) if array.ndim else np.array([0])
    total = len(array) if array.ndim else 1
    kind = "NaN or infinite values" if not np.isfinite(array).all() else "values too large for float32"
    raise ValueError(
        f"{what} holds {kind} in {len(rows)} of {total} rows (the first: row {rows[0]}). Drop or fill them."
    )


def as_text(name: object) -> str:
    """Return a name as text, decoded if it came as bytes.

    >>> as_text(b"Nice"), as_text(3)
    ('Nice', '3')
    """
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
