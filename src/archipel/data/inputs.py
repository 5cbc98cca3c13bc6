"""The input of models: the shape of an example, and how raw values are prepared and normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import Kind, Values, as_numbers, image_queries, in_chunks, one_or_many
from archipel.data.features import check_same_features, column_names
from archipel.data.pixels import Resizing, as_bytes, resize

# Relative to the mean square; float32 resolves 6e-8 of a value, so what varies less doesn't vary.
CONSTANT = 1e-14
# Where the variance is less than this share of the mean square, sums of squares in float64 lose digits of it.
CANCELS = 1e-6
# Bytes that are turned into float64 at a time.
LARGEST = 1 << 20


@dataclass(frozen=True)
class Inputs:
    """The preprocessing of a federation, learnt from training data and saved with every run.

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

    >>> inputs = Inputs("table", shape=(2,), scale=1.0, mean=(1.0, 2.0), std=(1.0, 2.0))
    >>> inputs.normalise(torch.tensor([[1.0, 4.0]]))
    tensor([[0., 1.]])
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
        channels = self.shape[_channel_axis(self.kind)]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise ValueError(
                f"mean has {len(self.mean)} and std {len(self.std)} values; "
                f"{channels} channels need {channels} of each, and every std is above 0."
            )
        if self.features and len(self.features) != channels:
            raise ValueError(f"features has {len(self.features)} names for {channels} columns; give one each.")
        if self.resizing not in ("stretch", "crop"):
            raise ValueError(f"resizing is {self.resizing!r}; it is stretch or crop.")

    @classmethod
    def fit(
        cls,
        columns: Sequence[Tensor],
        kind: Kind,
        *,
        features: tuple[str, ...] = (),
        resizing: Resizing = "stretch",
    ) -> Self:
        """Learn mean and standard deviation from the training examples of all clients.

        Each client contributes sums that it could send in a federation: its number of values, and per channel their sum
        and sum of squares. Missing values (NaN) don't count.

        Args:
            columns: per client (n_i, *shape), uint8 or float.
            kind: "image", "table" or "series".
            features: the names of a table's columns.
            resizing: how images of other sizes are brought to the shape.

        Returns:
            Inputs with scale 255 for uint8, else 1.

        >>> Inputs.fit([torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [2.0]])], "table").mean
        (2.0,)
        """
        sent = [channel_sums(x, kind) for x in columns]
        count: int | Tensor = sum(number for number, _ in sent)
        if missing := any(bool(sums.isnan().any()) for _, sums in sent):
            there = [channel_sums((~torch.isnan(x)).float(), kind)[1][0] for x in columns]
            count = torch.stack(there).sum(0).clamp(min=1)
            sent = [channel_sums(x.nan_to_num(0.0), kind) for x in columns]
        elif not count:
            raise ValueError("there are no training examples to learn mean and standard deviation from.")
        scale = 1.0 if columns[0].is_floating_point() else 255.0
        mean, square = torch.stack([sums for _, sums in sent]).sum(0) / count
        variance, least = square - mean.square(), CONSTANT * square
        if (double := columns[0].dtype == torch.float64) and bool((variance < CANCELS * square).any()):
            # Once more, about the mean: of second moments about zero, rounding would leave nothing.
            gaps = [channel_sums(x, kind, mean)[1][1] for x in columns]
            variance, least = torch.stack(gaps).sum(0) / count, CONSTANT**2 * square
        std = torch.where(variance > least, variance, scale**2).clamp_min(0).sqrt()
        return cls(
            kind=kind,
            shape=tuple(columns[0].shape[1:]),
            scale=scale,
            mean=tuple((mean / scale).tolist()),
            std=tuple((std / scale).tolist()),
            features=features,
            resizing=resizing,
            double=double,
            missing=missing,
        )

    def refitted(self, columns: Sequence[Tensor]) -> Self:
        """Learn mean and standard deviation anew, from other training examples of the same form."""
        return self.fit(columns, self.kind, features=self.features, resizing=self.resizing)

    @property
    def dtype(self) -> torch.dtype:
        """How examples are stored: uint8 for images with scale 255, else float32, or float64 where `double` says so."""
        if self.kind == "image" and self.scale == 255:
            return torch.uint8
        return torch.float64 if self.double else torch.float32

    def normalise(self, x: Tensor) -> Tensor:
        """Turn raw values (n, *shape) into what a model is fed: (x / scale − mean) / std.

        The result is float32, or float64 for float64. It works under torch.func.vmap and on any device.
        """
        double = x.dtype == torch.float64
        values = x.to(torch.float64 if double else torch.float32)
        mean, gain = self._constants[double]
        if isinstance(mean, np.ndarray):
            mean, gain = (torch.from_numpy(constant).to(x.device) for constant in (mean, gain))
        if self._centred:
            return values.mul(gain)
        # Subtracted first: what is left of large values with a small spread keeps its digits. In place where the values
        # are already a copy, since writing new memory takes longer than the arithmetic.
        return (values.sub(mean) if values is x else values.sub_(mean)).mul_(gain)

    @cached_property
    def _centred(self) -> bool:
        return not any(self.mean)

    @cached_property
    def _constants(self) -> list[tuple[Any, Any]]:
        """Mean and gain of raw values, in float32 and in float64; kept, since making them takes longer than using them.

        Plain numbers of a single channel, else arrays, and no tensors: a tensor that is made inside of a transformation
        of torch.func belongs to it.
        """
        axes = (-1, 1, 1) if self.kind == "image" else (-1,)
        mean, std = ((np.array(values) * self.scale).reshape(axes) for values in (self.mean, self.std))
        both = [(mean.astype(dtype), (1 / std).astype(dtype)) for dtype in (np.float32, np.float64)]
        return both if mean.size > 1 else [(m.item(), g.item()) for m, g in both]

    def prepare(self, x: Values, features: Sequence[str] | None = None) -> Tensor:
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
            (n, *shape) in `dtype`.

        Raises:
            ValueError: a shape that doesn't fit, columns of other names, NaN or infinity, values out of range.

        >>> import numpy as np
        >>> Inputs("image", (3, 2, 2), 255.0, (0.5,) * 3, (0.2,) * 3).prepare(np.zeros((4, 4), np.uint8)).shape
        torch.Size([1, 3, 2, 2])
        """
        given = column_names(x) if features is None else tuple(features)
        numbers = tuple(map(str, range(len(given))))  # names of columns that have none
        if given and (self.features or set(given) == set(numbers)):
            check_same_features(given, self.features or numbers, "x", "the federation")
        array = as_numbers(x, "x")
        if self.kind != "image":
            if array.shape != self.shape and array.shape[1:] != self.shape:
                raise ValueError(f"x has shape {array.shape}; expected is {one_or_many(self.shape)}.")
            return torch.tensor(array, dtype=self.dtype).view(-1, *self.shape)
        array = image_queries(array, self.shape)
        if self.dtype == torch.uint8:
            array = as_bytes(array, "x")
        elif array.dtype.kind != "f":
            raise ValueError(
                f"x holds {array.dtype} values, but the federation's images are floats: give floats on the same scale "
                "(if they were from 0 to 1, x / 255)."
            )
        images = torch.tensor(array, dtype=self.dtype)
        height, width = self.shape[1:]
        return resize(images, height, width, self.resizing).expand(-1, self.shape[0], -1, -1).contiguous()


def channel_sums(x: Tensor, kind: Kind, origin: Tensor | None = None) -> tuple[int, Tensor]:
    """Count a client's values in a channel, and sum them and their squares in float64.

    Args:
        x: (n, *shape) raw.
        kind: "image", "table" or "series".
        origin: (channels,) is subtracted from values before they are summed, and missing values don't count.

    Returns:
        The number of values a channel, and a (2, channels) tensor of their sum and their sum of squares.

    >>> channel_sums(torch.tensor([[1.0], [2.0]]), "table")
    (2, tensor([[3.],
            [5.]], dtype=torch.float64))
    """
    axis = _channel_axis(kind) + (1 if kind == "image" else 0)
    others = tuple(dim for dim in range(x.ndim) if dim != axis % x.ndim)
    sums = np.zeros((2, x.shape[axis]))
    # NumPy's temporary arrays: torch's are aligned, and for thousands of clients leave glibc's heap in pieces.
    for part in in_chunks(x.numpy(), LARGEST):
        values = part.astype(np.float64)
        if origin is not None:
            shape = [-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)]
            values = np.nan_to_num(values - origin.numpy().reshape(shape))
        sums += np.stack([values.sum(axis=others), np.square(values, out=values).sum(axis=others)])
    return math.prod(x.shape[dim] for dim in others), torch.from_numpy(sums)


def _channel_axis(kind: Kind) -> int:
    return 0 if kind == "image" else -1
