"""The interface of a compressor, and the identity.

A compressor Q is *unbiased* with constant ω if E Q(x) = x and E‖Q(x) − x‖² ≤ ω ‖x‖² for all x of a given size. Top-k,
which is biased, is a *contraction*: ‖Q(x) − x‖² ≤ ω ‖x‖² with ω < 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from archipel.core.checks import kind_of, setting
from archipel.core.trees import Compressed

DTYPES = (torch.float32, torch.float64)


def _packs(value: object) -> bool:
    return all(hasattr(value, name) for name in ("omega", "bits", "decode")) and not isinstance(value, type)


@setting("a compressor of archipel.compress, such as Dithering(levels=4)", _packs)
class Compressor(Protocol):
    """A frozen dataclass that packs a tensor. It draws from a key and uses tensor operations only, as vmap needs."""

    @property
    def unbiased(self) -> bool:
        """Whether E Q(x) = x."""

    def omega(self, size: int) -> float:
        """Return ω for vectors of ``size`` entries: E‖Q(x) − x‖² ≤ ω ‖x‖²."""

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        """Count the bits of a message of ``size`` entries, exactly; the wire rounds them up to whole bytes."""

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        """Pack a float32 or float64 tensor of any shape."""

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Restore Q(x), ``(size,)``, from the packed parts; :meth:`Compressed.decode` calls it."""


@dataclass(frozen=True)
class Identity:
    """No compression: Q(x) = x and ω = 0; every entry is sent at full precision.

    >>> Identity()(torch.tensor([1.0, 2.0]), torch.tensor(0)).decode()
    tensor([1., 2.])
    """

    unbiased: ClassVar[bool] = True

    def omega(self, size: int) -> float:
        return 0.0

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return size * width(dtype)

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        return packed(self, x, values=flat(self, x))

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return parts["values"]


def flat(compressor: Compressor, x: Tensor) -> Tensor:
    """Flatten a tensor.

    Raises:
        TypeError: not a tensor, or neither float32 nor float64.
        ValueError: an empty tensor.
    """
    name = type(compressor).__name__
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} compresses a tensor; given {kind_of(x)}.")
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} compresses float32 or float64; given {x.dtype}. Convert it, or send it uncompressed.")
    if not x.numel():
        raise ValueError(f"{name} was given a tensor of shape {tuple(x.shape)}: there is nothing to compress.")
    return x.reshape(-1)


def packed(compressor: Compressor, x: Tensor, **parts: Tensor) -> Compressed:
    """Wrap the packed parts of x."""
    return Compressed(parts, compressor, tuple(x.shape), x.dtype)


def width(dtype: torch.dtype) -> int:
    """Return the bits of a number."""
    return dtype.itemsize * 8


def at_least_one(owner: str, name: str, value: Any) -> float:
    """Check the order r of a norm: 1 or above, infinity allowed.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ValueError(
            f"{owner}'s {name} is the order of a norm, a number of at least 1 or math.inf; given {value!r}."
        )
    return math.inf if math.isinf(value) else float(value)


def check_unbiased(owner: str, compressor: Compressor) -> None:
    """Raise ValueError for a biased compressor, in a method that averages errors out."""
    if not compressor.unbiased:
        raise ValueError(
            f"{owner} needs an unbiased compressor, whose errors average out over clients and rounds; "
            f"{type(compressor).__name__} is biased. Identity, Dithering, QSGD, BlockQuantisation, Natural and RandK "
            "are unbiased."
        )
