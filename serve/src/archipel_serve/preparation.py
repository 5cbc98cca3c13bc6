"""Preparation: how raw queries are brought to the form that models take, in training and in serving alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archipel_serve.arrays import Array, as_numbers
from archipel_serve.columns import check_same_features, column_names
from archipel_serve.pixels import Resizing, as_bytes, resize

Kind = Literal["image", "table", "series"]


@dataclass(frozen=True)
class Preparation:
    """How raw examples are brought to the form that models take, as data: in JSON, an object of these attributes.

    An example's channels are an image's first axis, a table's features, a series' last axis. Normalisation is
    (x / scale − mean) / std, per channel.

    Attributes:
        kind: "image", "table" or "series".
        shape: of one example as the model sees it: (3, 28, 28), (13,), (128, 6).
        scale: raw values are divided by it. 255 means that images are stored as uint8; float data have 1.
        mean: per channel, after scaling.
        std: per channel, after scaling; 1 where a channel is constant.
        features: the names of a table's columns, in order; () where they have none. Queries with names must have these.
        resizing: how images of other sizes are brought to `shape`: "stretch", or "crop", which keeps proportions and
            cuts at the centre.
        double: whether values are stored as float64, where float32 would lose what tells them apart.
        missing: whether values are missing (NaN) in the training examples.

    >>> table = Preparation("table", shape=(2,), scale=1.0, mean=(1.0, 2.0), std=(1.0, 2.0))
    >>> table.standardise(np.array([[1.0, 4.0]]))
    array([[0., 1.]])
    """

    kind: Kind
    shape: tuple[int, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    features: tuple[str, ...] = ()
    resizing: Resizing = "stretch"
    double: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        # Read back from JSON or YAML, tuples are lists.
        for field, number in (("shape", int), ("mean", float), ("std", float), ("features", str)):
            object.__setattr__(self, field, tuple(number(value) for value in getattr(self, field)))
        axes = {"image": 3, "table": 1, "series": 2}
        if self.kind not in axes:
            raise ValueError(f"kind is {self.kind!r}; it is one of {', '.join(axes)}.")
        if len(self.shape) != axes[self.kind] or min(self.shape) < 1:
            raise ValueError(f"shape is {self.shape}; an example of kind {self.kind} has {axes[self.kind]} axes.")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale is {self.scale}; raw values are divided by it, so it is above 0.")
        channels = self.shape[channel_axis(self.kind)]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise ValueError(
                f"mean has {len(self.mean)} and std {len(self.std)} values; "
                f"{channels} channels need {channels} of each, and every std is above 0."
            )
        if self.features and len(self.features) != channels:
            raise ValueError(f"features has {len(self.features)} names for {channels} columns; give one each.")
        if self.resizing not in ("stretch", "crop"):
            raise ValueError(f"resizing is {self.resizing!r}; it is stretch or crop.")

    @property
    def storage(self) -> np.dtype[Any]:
        """How examples are stored: uint8 for images with scale 255, else float32, or float64 where `double` says so."""
        if self.kind == "image" and self.scale == 255:
            return np.dtype(np.uint8)
        return np.dtype(np.float64 if self.double else np.float32)

    @cached_property
    def affine(self) -> list[tuple[Any, Any]]:
        """Mean and gain of raw values, in float32 and in float64; kept, since making them takes longer than using them.

        Plain numbers of a single channel, else arrays, and no tensors: a tensor that is made inside of a transformation
        of torch.func belongs to it.
        """
        axes = (-1, 1, 1) if self.kind == "image" else (-1,)
        mean, std = ((np.array(values) * self.scale).reshape(axes) for values in (self.mean, self.std))
        both = [(mean.astype(dtype), (1 / std).astype(dtype)) for dtype in (np.float32, np.float64)]
        return both if mean.size > 1 else [(m.item(), g.item()) for m, g in both]

    def standardise(self, x: NDArray[Any]) -> NDArray[Any]:
        """Turn prepared values (n, *shape) into (x / scale − mean) / std, float32, or float64 for float64."""
        double = x.dtype == np.float64
        mean, gain = self.affine[double]
        return np.asarray((x.astype(np.float64 if double else np.float32) - mean) * gain)

    def prepared(self, x: Any, features: Sequence[str] | None = None) -> NDArray[Any]:
        """Bring a user's raw examples, one or many, to the form in which the federation's are stored.

        Images may be uint8 or whole numbers from 0 to 255, or floats from 0 to 1 where the federation has uint8. Grey
        ones get three equal channels where it has colour; colour ones become grey where it has grey and their channels
        are equal. Other sizes are resized as `resizing` says. An array of three axes is one image where its first or
        last axis has 1 or 3 entries or those of the federation's channels, else a batch of grey images: so three grey
        images are (3, 1, H, W).

        Args:
            x: images (H, W), (H, W, 3), (3, H, W), (1, H, W) or batches of them; tables (d,) or (n, d), also as data
                frames or dicts of columns; series (t, d) or (n, t, d).
            features: the names of x's columns; those that x has as a data frame, if not given.

        Returns:
            (n, *shape) in `storage`, contiguous.

        Raises:
            ValueError: a shape that doesn't fit, columns of other names, NaN or infinity, values out of range.

        >>> grey = np.zeros((4, 4), np.uint8)
        >>> Preparation("image", (3, 2, 2), 255.0, (0.5,) * 3, (0.2,) * 3).prepared(grey).shape
        (1, 3, 2, 2)
        """
        given = column_names(x) if features is None else tuple(features)
        numbers = tuple(map(str, range(len(given))))  # names of columns that have none
        if given and (self.features or set(given) == set(numbers)):
            check_same_features(given, self.features or numbers, "x", "the federation")
        array = as_numbers(x, "x")
        if self.kind != "image":
            if array.shape != self.shape and array.shape[1:] != self.shape:
                raise ValueError(f"x has shape {array.shape}; expected is {one_or_many(self.shape)}.")
            return np.array(array, self.storage).reshape(-1, *self.shape)
        array = image_queries(array, self.shape)
        if self.storage == np.uint8:
            array = as_bytes(array, "x")
        elif array.dtype.kind != "f":
            raise ValueError(
                f"x holds {array.dtype} values, but the federation's images are floats: give floats on the same scale "
                "(if they were from 0 to 1, x / 255)."
            )
        height, width = self.shape[1:]
        sized = resize(array.astype(self.storage, copy=False), height, width, self.resizing)
        return np.array(np.broadcast_to(sized, (len(sized), *self.shape)), order="C")


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


def channel_axis(kind: Kind) -> int:
    """Return the axis of an example that its channels run along."""
    return 0 if kind == "image" else -1
