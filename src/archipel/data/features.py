"""Examples as users give them: all clients' x read alike, with the names of their columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import AXES, Array, Kind, Values, as_numbers, batch_of, guess_kind, in_chunks

LOST = 1e-4
"""Float32 is enough where it changes values by less than this share of their column's standard deviation."""


def column_names(values: Any) -> tuple[str, ...]:
    """Read the names of a data frame's columns (pandas, polars, pyarrow) or of a dict of columns.

    Args:
        values: what a user gave. One row of pandas, a Series, has names as well, and so has a list of such rows.

    Returns:
        The names, as text; () where columns have none, as in an array, or the numbers 0, 1, … that pandas gives.

    Raises:
        ValueError: two columns of one name, names of which only some are text, or rows with different names.

    >>> column_names({"age": [63, 67], "sbp": [145, 160]}), column_names([[63, 145]])
    (('age', 'sbp'), ())
    """
    if isinstance(values, list | tuple):
        return _names_of_rows(values)
    if isinstance(values, Mapping):
        names = list(values)
    elif hasattr(values, "column_names"):
        names = list(values.column_names)
    elif hasattr(values, "columns"):
        names = list(values.columns)
    elif hasattr(values, "index") and not callable(values.index) and np.ndim(values) == 1:
        names = list(values.index)
    else:
        return ()
    text = [name for name in names if isinstance(name, str)]
    if not text and all(isinstance(name, int | np.integer) for name in names) and names == list(range(len(names))):
        return ()
    if text and len(text) < len(names):
        other = next(name for name in names if not isinstance(name, str))
        raise ValueError(f"columns are called {text[0]!r} and {other!r}; give all of them names of text, or none.")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called {next(name for name in names if names.count(name) > 1)!r}.")
    return tuple(map(str, names))


def _names_of_rows(rows: Sequence[Any]) -> tuple[str, ...]:
    """Read the names of a list's rows, where these are Series of pandas."""
    if not any(hasattr(row, "index") and not callable(row.index) for row in rows):
        return ()
    found = [column_names(row) for row in rows]
    for i, names in enumerate(found):
        check_same_features(names, found[0], f"row {i}", "row 0")
    return found[0]


def check_same_features(given: Sequence[str], known: Sequence[str], whose: str, others: str) -> None:
    """Refuse columns whose names aren't those known, in their order: by position they would be mistaken for others.

    Args:
        given: names of columns.
        known: what they should be.
        whose: the owner of the columns given, for the message.
        others: the owner of those known.

    Raises:
        ValueError: what differs, and what to do.

    >>> check_same_features(("sbp", "age"), ("age", "sbp"), "client 'Lyon'", "client 'Nice'")
    Traceback (most recent call last):
    ValueError: client 'Lyon' has the columns sbp, age, and client 'Nice' has age, sbp, in another order. Put them ...
    """
    if tuple(given) == tuple(known):
        return
    if not given or not known:
        named, bare = (whose, others) if given else (others, whose)
        raise ValueError(
            f"{named} has names of columns ({_some(given or known)}), and {bare} has none. Give all clients data with "
            "the same names, or all of them arrays, as by x.to_numpy()."
        )
    if set(given) == set(known):
        raise ValueError(
            f"{whose} has the columns {_some(given)}, and {others} has {_some(known)}, in another order. Put them in "
            f"that order, as by x[{_some(known, quoted=True)}]."
        )
    lacking, more = [n for n in known if n not in given], [n for n in given if n not in known]
    what = " and ".join(
        part
        for part in (f"lacks {_some(lacking)}" if lacking else "", f"also has {_some(more)}" if more else "")
        if part
    )
    raise ValueError(f"{whose} {what}. Its columns must be those of {others}: {_some(known)}.")


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


def _some(names: Sequence[str], shown: int = 10, quoted: bool = False) -> str:
    if quoted:
        return f"[{', '.join(map(repr, names[:shown]))}{', …' * (len(names) > shown)}]"
    return ", ".join(names[:shown]) + ", …" * (len(names) > shown)
