"""The input of models: the shape of an example, and how raw values are prepared and normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import Values, in_chunks
from archipel_serve.pixels import Resizing
from archipel_serve.preparation import Kind, Preparation, channel_axis

# Relative to the mean square; float32 resolves 6e-8 of a value, so what varies less doesn't vary.
CONSTANT = 1e-14
# Where the variance is less than this share of the mean square, sums of squares in float64 lose digits of it.
CANCELS = 1e-6
# Bytes that are turned into float64 at a time.
LARGEST = 1 << 20


@dataclass(frozen=True)
class Inputs(Preparation):
    """The preprocessing of a federation, learnt from training data and saved with every run.

    Its attributes are those of :class:`archipel_serve.preparation.Preparation`, which serving reads without torch.

    >>> inputs = Inputs("table", shape=(2,), scale=1.0, mean=(1.0, 2.0), std=(1.0, 2.0))
    >>> inputs.normalise(torch.tensor([[1.0, 4.0]]))
    tensor([[0., 1.]])
    """

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
        """`storage` as torch has it."""
        return torch.from_numpy(np.empty(0, self.storage)).dtype

    def normalise(self, x: Tensor) -> Tensor:
        """Turn raw values (n, *shape) into what a model is fed: (x / scale − mean) / std.

        The result is float32, or float64 for float64. It works under torch.func.vmap and on any device.
        """
        double = x.dtype == torch.float64
        values = x.to(torch.float64 if double else torch.float32)
        mean, gain = self.affine[double]
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

    def prepare(self, x: Values, features: Sequence[str] | None = None) -> Tensor:
        """Bring a user's raw examples to the form of the federation's, by :meth:`Preparation.prepared`.

        Args:
            x: images, tables or series, one or many.
            features: the names of x's columns; those that x has as a data frame, if not given.

        Returns:
            (n, *shape) in `dtype`.

        Raises:
            ValueError: a shape that doesn't fit, columns of other names, NaN or infinity, values out of range.

        >>> grey = torch.zeros(4, 4, dtype=torch.uint8)
        >>> Inputs("image", (3, 2, 2), 255.0, (0.5,) * 3, (0.2,) * 3).prepare(grey).shape
        torch.Size([1, 3, 2, 2])
        """
        return torch.from_numpy(self.prepared(x, features))


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
    axis = channel_axis(kind) + (1 if kind == "image" else 0)
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
