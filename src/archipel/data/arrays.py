"""Users' arrays, checked: numbers only, finite, with the axes in the order that models expect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from archipel.data.pixels import as_bytes, decode

if TYPE_CHECKING:
    from PIL import Image

Kind = Literal["image", "table", "series"]
Array: TypeAlias = NDArray[np.generic]
Values: TypeAlias = "ArrayLike | Tensor | Mapping[str, ArrayLike] | Image.Image | Sequence[Image.Image]"

COLOUR_CHANNELS = (1, 3)
CHUNK = 1 << 24  # bytes that are read at a time from what may lie in a file
AXES = {
    "image": "(n, H, W), (n, H, W, 3), (n, 3, H, W) or (n, 1, H, W)",
    "table": "(n, features)",
    "series": "(n, time, features)",
}


def as_array(values: Values, what: str) -> Array:
    """Read a tensor, an array, a data frame, a dict of columns, an image or a list as a NumPy array.

    Images of Pillow are decoded as those in files. Masked entries become NaN. Arrays that torch can't use, because of
    negative strides or another byte order, are copied.

    Args:
        values: what was given.
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
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_meta:
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


def as_numbers(values: Values, what: str) -> Array:
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


def image_queries(array: Array, shape: tuple[int, ...]) -> Array:
    """Bring one image or many to (n, channels, H, W), where channels is that of a federation, or one.

    Args:
        array: (H, W), (H, W, channels), (channels, H, W), or a batch of these.
        shape: (channels, height, width) of the federation's images.

    Raises:
        ValueError: axes that fit no reading, or more than one; colours for a federation of grey images.

    >>> image_queries(np.zeros((5, 7, 3)), (3, 8, 8)).shape
    (1, 3, 5, 7)
    """
    channels = shape[0]
    grey_too = channels in (1, 3)
    known = {channels, 1, 3} if grey_too else {channels}
    inner = ", ".join(map(str, array.shape[1:]))
    if 0 in array.shape[-2:]:
        raise ValueError(f"x has shape {array.shape}: an image without pixels.")
    if channels == 1 and array.ndim == 3 and array.shape[0] == 3:
        raise ValueError(
            f"x has shape {array.shape}: three grey images, or one in colour? The federation has grey ones; give "
            f"(3, 1, {inner}) for three, or one channel for one."
        )
    if array.ndim == 2 and grey_too:
        batch = array[None, None]
    elif array.ndim == 3 and array.shape[0] in known:
        batch = array[None]
    elif array.ndim == 3 and array.shape[2] in known:
        batch = array.transpose(2, 0, 1)[None]
    elif array.ndim == 3 and grey_too:
        if array.shape[1:] != shape[1:] and not {array.shape[0], array.shape[2]}.isdisjoint((2, 4)):
            raise ValueError(
                f"x has shape {array.shape}: an image with transparency, or grey images? Give an image 1 or 3 "
                f"channels, and grey images one: (n, 1, {inner})."
            )
        batch = array[:, None]
    elif array.ndim == 4 and array.shape[1] in known:
        batch = array
    elif array.ndim == 4 and array.shape[3] in known:
        batch = array.transpose(0, 3, 1, 2)
    else:
        grey = " or grey" if channels == 3 else ""
        raise ValueError(
            f"x has shape {array.shape}; expected are images of {channels} channel{'s' * (channels > 1)}{grey}, "
            f"{one_or_many(shape)}; other heights and widths are resized."
        )
    if channels == 1 and batch.shape[1] == 3:
        if not (batch == batch[:, :1]).all():
            raise ValueError(
                f"x has shape {array.shape} and is in colour, but the federation's images are grey (1 channel). "
                "Convert it as the training images were converted."
            )
        return batch[:, :1]
    return batch


def one_or_many(shape: tuple[int, ...]) -> str:
    """Say in words which shapes one example and a batch have.

    >>> one_or_many((4,))
    'one example (4,) or a batch (n, 4)'
    """
    inner = ", ".join(map(str, shape))
    return f"one example ({inner}{',' * (len(shape) == 1)}) or a batch (n, {inner})"


def as_text(name: object) -> str:
    """Return a name as text, decoded if it came as bytes.

    >>> as_text(b"Nice"), as_text(3)
    ('Nice', '3')
    """
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def in_chunks(array: Array, size: int = CHUNK) -> Iterator[Array]:
    """Split an array along its first axis into pieces of about `size` bytes, at least a row each.

    >>> [len(chunk) for chunk in in_chunks(np.zeros((5, 10), np.uint8), size=20)]
    [2, 2, 1]
    """
    rows = max(1, size // max(1, array[:1].nbytes))
    return (array[start : start + rows] for start in range(0, len(array), rows))
