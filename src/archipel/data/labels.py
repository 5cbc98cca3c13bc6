"""Labels as users give them: class labels of any type become codes 0 … K−1, or regression targets."""

import difflib
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import Values
from archipel.data.features import as_stored
from archipel_serve.arrays import Array, as_array, as_numbers, as_text


def read_labels(
    ys: Sequence[Values], names: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[list[Tensor], tuple[str, ...] | None]:
    """Read the labels or targets of all clients alike.

    Whole numbers, booleans and text are labels of classes; floats are targets of a regression, unless `classes` is
    given. If `classes` isn't given, it is all values that occur, sorted. If it is, text is looked up in it, and whole
    numbers are positions in it.

    Args:
        ys: per client (n,) labels, or (n,) or (n, d) float targets.
        names: the clients' names, for error messages.
        classes: the classes' names, in the order of their codes.

    Returns:
        Per client (n,) int64 codes, or float32 targets; and the classes' names, None for a regression.

    Raises:
        ValueError: clients that mix kinds, unknown labels, NaN, wrong shapes, fewer than two classes.

    >>> read_labels([["cat", "dog"], ["dog"]], ["A", "B"])
    ([tensor([0, 1]), tensor([1])], ('cat', 'dog'))
    """
    arrays = [_plain(y, f"client {name!r}: y") for y, name in zip(ys, names, strict=True)]
    kinds = [_kind(array, f"client {name!r}: y") for array, name in zip(arrays, names, strict=True)]
    for kind, name in zip(kinds, names, strict=True):
        if kind != kinds[0]:
            raise ValueError(
                f"client {name!r}: y holds {kind}, but client {names[0]!r} has {kinds[0]}. Give all clients the same "
                "kind: whole numbers or text for classes, floats for a regression."
            )
    if kinds[0] == "floats" and classes is None:
        return [_targets(array, arrays[0], name) for array, name in zip(arrays, names, strict=True)], None
    for array, name in zip(arrays, names, strict=True):
        if array.ndim != 1:
            raise ValueError(
                f"client {name!r}: y has shape {array.shape}; class labels have shape (n,), one for each example."
            )
    if classes is None:
        found, codes = _codes(arrays)
        known = tuple(map(str, found))
        refuse_twins(known)
    else:
        known = tuple(map(as_text, classes))
        if len(set(known)) != len(known):
            raise ValueError(f"classes names a class twice: {', '.join(known)}.")
        refuse_twins(known)
        codes = [_look_up(array, known, name) for array, name in zip(arrays, names, strict=True)]
    if len({int(code) for found in codes for code in np.unique(found)}) < 2:
        raise ValueError("all labels of all clients are the same; a classification needs two classes or more.")
    return [torch.tensor(code, dtype=torch.int64) for code in codes], known


def _plain(y: Values, what: str) -> Array:
    """Text as str, also where it came as bytes; numbers as they are, of any size."""
    given: Any = y
    if np.ma.is_masked(given):
        gone = int(np.ma.getmaskarray(given).sum())
        raise ValueError(f"{what} is masked in {gone} entries. Leave those examples out.")
    if isinstance(given, list | tuple) and any(isinstance(label, str) for label in given):
        given = np.array([*given, None], object)[:-1]  # otherwise NaN and numbers among text would become text
    array = as_array(given, what)
    if array.dtype.kind == "S" or (array.dtype.kind == "O" and _all(array, str | bytes)):
        try:
            array = np.array([v.decode() if isinstance(v, bytes) else v for v in array.flat]).reshape(array.shape)
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} holds bytes that aren't UTF-8 text ({error}). Decode them first.") from error
    if gaps := sum(v is None or v != v for v in array.flat) if array.dtype.kind == "O" else 0:  # NaN is unlike itself
        raise ValueError(f"{what} has no label in {gaps} of {len(array)} rows. Leave those examples out.")
    if array.dtype.kind == "O" and _all(array, int | np.integer):
        return array  # beyond the range of int64
    if array.dtype.kind != "U":
        return as_numbers(array, what)
    if blank := sum(not str(label).strip() for label in array.flat):
        raise ValueError(f"{what} has no label in {blank} of {len(array)} rows. Leave those examples out.")
    return array


def _all(array: Array, kind: Any) -> bool:
    return bool(array.size) and all(isinstance(value, kind) for value in array.flat)


def _codes(arrays: Sequence[Array]) -> tuple[list[Any], list[Array]]:
    """All values that occur, sorted, and each array's places among them.

    Whole numbers are compared as Python's: NumPy compares int64 with uint64 as floats, which merge 2⁵³ and 2⁵³ + 1.
    """
    whole = arrays[0].dtype.kind != "U" and not all(array.dtype.kind == "b" for array in arrays)
    parts = [np.unique(array, return_inverse=True) for array in arrays]
    own = [[int(v) for v in values] if whole else values.tolist() for values, _ in parts]
    found = sorted({value for values in own for value in values})
    place = {value: i for i, value in enumerate(found)}
    return found, [
        np.array([place[v] for v in values], np.int64)[codes] for values, (_, codes) in zip(own, parts, strict=True)
    ]


def refuse_twins(classes: Sequence[str]) -> None:
    """Refuse classes that read as one: they differ by blanks or by the Unicode form of their letters alone."""
    seen: dict[str, str] = {}
    for name in classes:
        plain = " ".join(unicodedata.normalize("NFC", name).split())
        if plain in seen:
            raise ValueError(
                f"the classes {seen[plain]!a} and {name!a} differ by blanks or by the Unicode form of their "
                "letters alone. Write them alike, as by unicodedata.normalize('NFC', label).strip()."
            )
        seen[plain] = name


def _kind(array: Array, what: str) -> str:
    if array.ndim == 0:
        raise ValueError(f"{what} is a single value; give one label for each example, shape (n,).")
    return {"f": "floats", "U": "text"}.get(array.dtype.kind, "whole numbers")


def _targets(array: Array, first: Array, name: str) -> Tensor:
    if array.ndim > 2 or array.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"client {name!r}: y has shape {array.shape}; targets are (n,) or (n, d), "
            f"and the first client has {first.shape}."
        )
    if as_stored([array.reshape(len(array), -1)])[0].dtype != np.float32:
        raise ValueError(
            f"client {name!r}: y holds {array.flat[0]:.17g} and others that float32 can't tell apart. Subtract an "
            "offset from all targets, or scale them."
        )
    return torch.tensor(array, dtype=torch.float32)


def _look_up(array: Array, classes: tuple[str, ...], name: str) -> Array:
    if array.dtype.kind == "U":
        wanted, codes = np.unique(array, return_inverse=True)
        for label in wanted:
            if label not in classes:
                near = difflib.get_close_matches(str(label), classes, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(classes)}."
                raise ValueError(f"client {name!r}: y holds the unknown class {str(label)!r}.{hint}")
        return np.array([classes.index(label) for label in wanted])[codes]
    with np.errstate(invalid="ignore"):
        wrong = array[~np.isin(array, np.arange(len(classes)))]
    if len(wrong):
        raise ValueError(
            f"client {name!r}: y holds {wrong[0]}, which isn't the code of a class; "
            f"{len(classes)} classes have the codes 0 to {len(classes) - 1}."
        )
    return array.astype(np.int64)
