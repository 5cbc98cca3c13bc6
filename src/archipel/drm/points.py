"""Points, values and queries that users give to density ratio models, read without loss into float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from archipel.data.arrays import Values
from archipel_serve.arrays import as_array

Basis = Callable[[Tensor], Tensor]
"""h: float64 points (n, …) to features (n, d). A torch module gets points in the dtype of its parameters."""


def as_float64(values: Values, what: str) -> Tensor:
    """Read a tensor, an array of any numeric dtype and byte order, or a list as a float64 tensor.

    Tensors keep their gradient.

    Args:
        values: the numbers.
        what: their name in error messages.

    Raises:
        ValueError: anything but real numbers.

    >>> as_float64(np.array([90, 200], dtype=">u2"), "x")
    tensor([ 90., 200.], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise ValueError(f"{what} has the dtype {values.dtype}; give real numbers.")
        return values.to(torch.float64)
    array = as_array(values, what)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{what} has the dtype {array.dtype}; give real numbers.")
    return torch.from_numpy(array.astype(np.float64))


def as_points(values: Values, what: str) -> Tensor:
    """Read points; a real tensor keeps its dtype, which :func:`features_of` converts."""
    real = isinstance(values, Tensor) and not values.is_complex()
    return values if isinstance(values, Tensor) and real else as_float64(values, what)


@torch.no_grad()
def features_of(basis: Basis, points: Tensor) -> Tensor:
    """Evaluate h on points, ``(n, d)`` float64.

    >>> features_of(torch.nn.Flatten(), torch.tensor([[[1], [2]]], dtype=torch.uint8))
    tensor([[1., 2.]], dtype=torch.float64)
    """
    dtype = torch.float64
    if isinstance(basis, torch.nn.Module):
        dtype = next((p.dtype for p in basis.parameters() if p.is_floating_point()), dtype)
    return basis(points.to(dtype)).to(torch.float64)


def refuse_not_finite(features: Tensor, what: str) -> None:
    """Raise ValueError for features ``(n, d)`` with NaN or infinity, naming the first row."""
    bad = (~features.isfinite()).reshape(len(features), -1).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"{what} hold NaN or infinite values in {int(bad.sum())} of {len(bad)} rows (the first: row "
            f"{int(bad.nonzero()[0])}). Remove those rows or fill the values in."
        )
