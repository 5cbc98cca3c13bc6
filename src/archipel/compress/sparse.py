"""Sparsifiers: some entries are sent, and the others count as zero.

S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with memory. NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.compress.compressor import flat, packed, width
from archipel.compress.packing import pack, unpack
from archipel.core import checks, keys
from archipel.core.trees import Compressed


@dataclass(frozen=True)
class RandK:
    """Random sparsification: k entries drawn without replacement, multiplied by q/k.

    Every entry is drawn with probability k/q, so E Q(x) = x, and E‖Q(x) − x‖² = (q/k − 1) ‖x‖² exactly: ω = q/k − 1.
    The key determines which entries are drawn, so a message is the key, 64 bits, and k values.

    Args:
        k: how many entries; or
        fraction: k/q, above 0 and up to 1; k is rounded to the nearest, and is at least 1.

    Raises:
        ValueError: neither or both given, or out of range; when used: k larger than the vector.

    >>> RandK(k=10).omega(100), RandK(fraction=0.1).bits(100)
    (9.0, 384)
    """

    k: int | None = None
    fraction: float | None = None
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)

    def omega(self, size: int) -> float:
        return size / _count(self, size) - 1

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return 64 + _count(self, size) * width(dtype)

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        vector = flat(self, x)
        return packed(self, x, key=key, values=vector[self._chosen(key, len(vector))])

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        values = parts["values"] * (size / _count(self, size))
        return torch.zeros(size, dtype=dtype, device=values.device).scatter(0, self._chosen(parts["key"], size), values)

    def _chosen(self, key: Tensor, size: int) -> Tensor:
        return keys.permutation(key, size)[: _count(self, size)]


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude; of equal ones the first. Biased: it needs error feedback.

    No omitted entry is larger than a sent one, so ‖Q(x) − x‖² ≤ (1 − k/q) ‖x‖²: a contraction, with equality if all
    entries are equally large. ω is 1 − k/q. Methods with α = 1/(1 + ω) need an unbiased compressor and must not use
    top-k. A message is k values and the index of each, ⌈log₂ q⌉ bits.

    Args:
        k: how many entries; or
        fraction: k/q, above 0 and up to 1; k is rounded to the nearest, and is at least 1.

    Raises:
        ValueError: neither or both given, or out of range; when used: k larger than the vector.

    >>> TopK(k=2)(torch.tensor([0.1, -3.0, 0.2, 1.0]), keys.key(0)).decode()
    tensor([ 0., -3.,  0.,  1.])
    >>> TopK(k=2).omega(4), TopK(k=2).bits(4)
    (0.5, 68)
    """

    k: int | None = None
    fraction: float | None = None
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self)

    def omega(self, size: int) -> float:
        return 1 - _count(self, size) / size

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return _count(self, size) * (width(dtype) + _places(size))

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        vector = flat(self, x)
        chosen = torch.argsort(vector.abs(), descending=True, stable=True)[: _count(self, len(vector))]
        return packed(self, x, values=vector[chosen], places=pack(chosen, _places(len(vector))))

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        chosen = unpack(parts["places"], _places(size), _count(self, size))
        return torch.zeros(size, dtype=dtype, device=chosen.device).scatter(0, chosen, parts["values"])


def _check(sparsifier: RandK | TopK) -> None:
    name, k, fraction = type(sparsifier).__name__, sparsifier.k, sparsifier.fraction
    if (k is None) == (fraction is None):
        raise ValueError(f"{name} takes exactly one of k and fraction; given k={k!r} and fraction={fraction!r}.")
    if k is not None:
        checks.positive_int(name, k=k)
    elif isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise ValueError(f"{name}'s fraction must be above 0 and at most 1; given {fraction!r}.")


def _count(sparsifier: RandK | TopK, size: int) -> int:
    """Return k for a vector of this size."""
    if sparsifier.fraction is not None:
        return max(1, round(sparsifier.fraction * size))
    assert sparsifier.k is not None
    if sparsifier.k > size:
        raise ValueError(
            f"{type(sparsifier).__name__}'s k = {sparsifier.k} is more than the {size} entries of the tensor. Give a "
            "smaller k, or fraction=… for tensors of several sizes."
        )
    return sparsifier.k


def _places(size: int) -> int:
    """Return the bits of an index; at least one, so that every message has indices."""
    return max(1, (size - 1).bit_length())
