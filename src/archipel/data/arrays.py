"""Training data of users: their kind, and their axes in the order that models expect."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from archipel_serve.arrays import Array
from archipel_serve.pixels import as_bytes
from archipel_serve.preparation import Kind

if TYPE_CHECKING:
    from PIL import Image

Values: TypeAlias = "ArrayLike | Tensor | Mapping[str, ArrayLike] | Image.Image | Sequence[Image.Image]"

COLOUR_CHANNELS = (1, 3)
CHUNK = 1 << 24  # bytes that are read at a time from what may lie in a file
AXES = {
    "image": "(n, H, W), (n, H, W, 3), (n, 3, H, W) or (n, 1, H, W)",
    "table": "(n, features)",
    "series": "(n, time, features)",
}


def guess_kind(array: Array, what: str) -> Kind:
    """Tell images, tables and series apart by the number of axes, where that is enough.

    >>> guess_kind(np.zeros((5, 13)), "x")
    'table'
    """
    if array.ndim == 2:
        return "table"
    if array.ndim == 4 or (array.ndim == 3 and array.dtype == np.uint8):
        return "image"
    if array.ndim == 3:
        raise ValueError(
            f"{what} has shape {array.shape} and could be grey images (n, H, W) or series (n, time, features); "
            'say which by kind="image" or kind="series".'
        )
    expected = "; ".join(f"{kind}: {axes}" for kind, axes in AXES.items())
    raise ValueError(f"{what} has shape {array.shape}; expected are {expected}.")


def batch_of(array: Array, kind: Kind, what: str) -> Array:
    """Bring a batch to the axes of its kind, images channels first; whole numbers in images become uint8.

    Images may have their channels first or last: the axis of size 1 or 3, else the smaller one; the first, if in doubt.
    Whole numbers in images must fit uint8. In tables and series they are measurements like floats.

    >>> batch_of(np.zeros((5, 28, 28), np.uint8), "image", "x").shape
    (5, 1, 28, 28)
    """
    axes = {"image": (3, 4), "table": (2,), "series": (3,)}[kind]
    if array.ndim not in axes or 0 in array.shape[1:]:
        raise ValueError(f"{what} has shape {array.shape}; {kind} data are {AXES[kind]}.")
    if kind != "image":
        return array
    if array.ndim == 3:
        array = array[:, None]
    else:
        first, last = array.shape[1], array.shape[3]
        if first not in COLOUR_CHANNELS and (last in COLOUR_CHANNELS or last < first):
            array = array.transpose(0, 3, 1, 2)
    return array if array.dtype.kind == "f" else as_bytes(array, what)


def in_chunks(array: Array, size: int = CHUNK) -> Iterator[Array]:
    """Split an array along its first axis into pieces of about `size` bytes, at least a row each.

    >>> [len(chunk) for chunk in in_chunks(np.zeros((5, 10), np.uint8), size=20)]
    [2, 2, 1]
    """
    rows = max(1, size // max(1, array[:1].nbytes))
    return (array[start : start + rows] for start in range(0, len(array), rows))
