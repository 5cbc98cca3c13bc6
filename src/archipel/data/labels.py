"""What clients predict: class labels of any kind turned into codes 0 … K−1, or regression targets."""

import difflib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import Array, Values, as_array, as_numbers


def read_labels(
    ys: Sequence[Values], names: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[list[Tensor], tuple[str, ...] | None]:
    """Read the labels or targets of all clients alike.

    Whole numbers, booleans and text are labels of classes; floats are targets of a regression, unless `classes` is
    given. Without `classes`, they are all values that occur, sorted. With it, text is looked up, and whole numbers are
    positions in it.

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
                f"client {name!r}: y has shape {array.shape}; class labels have shape (n,), one an example."
            )
    if classes is None:
        values = np.unique(np.concatenate(arrays))
        codes: list[Array] = [np.searchsorted(values, array) for array in arrays]
        known = tuple(str(value) for value in values)
    else:
        known = tuple(str(label) for label in classes)
        if len(set(known)) != len(known):
            raise ValueError(f"classes names a class twice: {', '.join(known)}.")
        codes = [_look_up(array, known, name) for array, name in zip(arrays, names, strict=True)]
    if len({int(code) for found in codes for code in np.unique(found)}) < 2:
        raise ValueError("all labels of all clients are the same; a classification needs two classes or more.")
    return [torch.tensor(code, dtype=torch.int64) for code in codes], known


def _plain(y: Values, what: str) -> Array:
    array = as_array(y, what)
    if array.dtype.kind == "O" and array.size and all(isinstance(value, str) for value in array.flat):
        return array.astype(np.str_)
    return array if array.dtype.kind in "US" else as_numbers(array, what)


def _kind(array: Array, what: str) -> str:
    if array.ndim == 0:
        raise ValueError(f"{what} is a single value; give one label an example, shape (n,).")
    return {"f": "floats", "U": "text", "S": "text"}.get(array.dtype.kind, "whole numbers")


def _targets(array: Array, first: Array, name: str) -> Tensor:
    if array.ndim > 2 or array.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"client {name!r}: y has shape {array.shape}; targets are (n,) or (n, d), "
            f"and the first client has {first.shape}."
        )
    return torch.tensor(array, dtype=torch.float32)


def _look_up(array: Array, classes: tuple[str, ...], name: str) -> Array:
    if array.dtype.kind in "US":
        wanted, codes = np.unique(array.astype(np.str_), return_inverse=True)
        for label in wanted:
            if label not in classes:
                near = difflib.get_close_matches(str(label), classes, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(classes)}."
                raise ValueError(f"client {name!r}: y holds the unknown class {str(label)!r}.{hint}")
        return np.array([classes.index(label) for label in wanted])[codes]
    whole = array.astype(np.int64)
    wrong = array[(whole != array) | (whole < 0) | (whole >= len(classes))]
    if len(wrong):
        raise ValueError(
            f"client {name!r}: y holds {wrong[0]}, which isn't the code of a class; "
            f"{len(classes)} classes have the codes 0 to {len(classes) - 1}."
        )
    return whole
