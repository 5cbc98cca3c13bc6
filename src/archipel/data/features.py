"""Examples as users give them: all clients' x read alike, with the names of their columns."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import AXES, Values, batch_of, guess_kind, in_chunks
from archipel_serve.arrays import Array, as_numbers
from archipel_serve.columns import check_same_features, column_names
from archipel_serve.preparation import Kind

LOST = 1e-4
"""Float32 is enough where it changes values by less than this share of their column's standard deviation."""


def read_features(
    xs: Sequence[Values],
    names: Sequence[str],
    kind: Kind | Literal["auto"],
    columns: Sequence[Sequence[str]] | None = None,
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Read all clients' x alike.

    Args:
        xs: per client images, a table or series; tables may be data frames or dicts of columns.
        names: the clients' names, for error messages.
        kind: "image", "table" or "series"; "auto" where it follows from the shapes.
        columns: per client the names of its columns; those that x has as a data frame, if not given.

    Returns:
        Per client (n_i, *shape) uint8 or float32; float64 where float32 would lose what tells values apart; and the
        names of a table's columns, () where they have none.

    Raises:
        ValueError: data that are empty, aren't numbers or are unlike those of the first client.
    """
    if kind not in ("auto", *AXES):
        raise ValueError(f"kind is {kind!r}; it is one of auto, {', '.join(AXES)}.")
    arrays: list[Array] = []
    features: tuple[str, ...] = ()
    for i, (x, name) in enumerate(zip(xs, names, strict=True)):
        what = f"client {name!r}: x"
        try:
            found = column_names(x) if columns is None else tuple(columns[i])
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error
        features = features if i else found
        check_same_features(found, features, what, f"client {names[0]!r}")
        array = as_numbers(x, what)
        if array.ndim and not len(array):
            raise ValueError(f"client {name!r} has no examples. Leave it out, or give it some.")
        arrays.append(batch_of(array, guess_kind(array, what) if kind == "auto" else kind, what))
        first, last = arrays[0], arrays[-1]
        stored = [torch.uint8 if a.dtype == np.uint8 else torch.float32 for a in (first, last)]
        if last.shape[1:] != first.shape[1:] or stored[0] != stored[1]:
            raise ValueError(
                f"{what} holds {stored[1]} examples of shape {last.shape[1:]}, but client {names[0]!r} has "
                f"{stored[0]} ones of {first.shape[1:]}. Bring all clients to the same form."
            )
    return [torch.tensor(array) for array in as_stored(arrays)], features if arrays and arrays[0].ndim == 2 else ()


def as_stored(arrays: Sequence[Array]) -> list[Array]:
    """Bring clients' numbers to float32, or all of them to float64 where float32 loses what tells values apart.

    Float32 has 24 bits: of 1e9, 1e9 + 1, …, 1e9 + 59 it keeps two values. Compared is the change of each value with
    its column's standard deviation over all clients.

    Args:
        arrays: per client (n_i, *shape) uint8, which stay, or numbers; columns are on the last axis, or the channels
            of images on the second of four.

    >>> [array.dtype.name for array in as_stored([1e9 + np.arange(60.0)[:, None]])]
    ['float64']
    """
    if arrays and arrays[0].dtype == np.uint8:
        return list(arrays)
    wide = any(array.dtype.itemsize > 4 or array.dtype.kind in "iu" for array in arrays)
    dtype = np.float64 if wide and _loses(arrays) else np.float32
    return [array.astype(dtype, copy=False) for array in arrays]


def _loses(arrays: Sequence[Array]) -> bool:
    if not (held := [array for array in arrays if len(array)]):
        return False
    columns = (_by_column(part) for array in held for part in in_chunks(array))
    origin = _by_column(held[0][:1])[0]
    count, sums, squares, change = 0, np.zeros_like(origin), np.zeros_like(origin), np.zeros_like(origin)
    for values in columns:
        gap = np.nan_to_num(values - origin)
        count += len(values)
        sums, squares = sums + gap.sum(0), squares + np.square(gap).sum(0)
        with np.errstate(over="ignore"):
            rounded = np.abs(values - values.astype(np.float32))
        change = np.maximum(change, np.nan_to_num(rounded).max(0))
    std = np.sqrt(np.maximum(squares / count - np.square(sums / count), 0))
    return bool((change > LOST * std)[std > 0].any())


def _by_column(array: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    moved = np.moveaxis(array, 1, -1) if array.ndim == 4 else array
    return moved.reshape(-1, moved.shape[-1]).astype(np.float64)
