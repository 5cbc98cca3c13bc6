"""Random dithering: entries rounded at random to a few levels of a norm.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic: QSGD: communication-efficient SGD via gradient quantization and
encoding. NeurIPS 2017. K. Mishchenko, E. Gorbunov, M. Takáč, P. Richtárik: Distributed learning with compressed
gradient differences. arXiv 1901.09269, 2019 (blocks and other norms).

With the scale N = ‖x‖_r and s levels, entry i becomes

    Q(x)_i = N sign(x_i) ⌊s |x_i| / N + ξ_i⌋ / s, ξ_i uniform on [0, 1).

Let t_i = s |x_i| / N and f_i its fractional part. ⌊t + ξ⌋ is ⌈t⌉ with probability f and ⌊t⌋ otherwise, so that
E Q(x) = x and

    E‖Q(x) − x‖² = (N/s)² Σ f_i (1 − f_i).                                                                          (1)

Two bounds on f (1 − f) give ω. It is at most 1/4. And it is at most t − t²/s: with t = n + f, n ≤ s − 1, the difference
n − (n + f)²/s + f² is convex in f, and its minimum, at f = n/(s − 1), is n (1 − n/(s − 1)) ≥ 0; for s = 1 the two sides
are equal. Hence

    E‖Q(x) − x‖² ≤ min(q N² / (4 s²), (‖x‖_1 N − ‖x‖_2²) / s).                                                      (2)

For r ≤ 2, N ≤ q^(1/r − 1/2) ‖x‖_2 and ‖x‖_1 ≤ √q ‖x‖_2; for r ≥ 2, N ≤ ‖x‖_2; and for r = ∞ the largest ratio
‖x‖_1 ‖x‖_∞ / ‖x‖_2² is (1 + √q)/2, which one large entry and q − 1 that are 1/(1 + √q) of it attain. So with
c = q^(1/min(r, 2)),

    ω = min(c² / (4 s²), (c' − 1)/s), c' = (1 + √q)/2 for r = ∞ and c otherwise.                                    (3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from archipel.compress.compressor import Compressor, at_least_one, flat, packed, width
from archipel.compress.packing import pack, unpack
from archipel.core import checks, keys
from archipel.core.trees import Compressed

MOST = 2**30


@dataclass(frozen=True)
class Dithering:
    """Random dithering to s levels of the ℓ_r norm of the whole vector.

    A message is the norm and ⌈log₂(2s + 1)⌉ bits for each entry. Its error is (1) and its ω is (3) of the module.

    Args:
        levels: s, at least 1.
        norm: r, from 1 to ``math.inf``.

    Raises:
        ValueError: levels below 1, or a norm's order below 1.

    >>> key = keys.key(0)
    >>> Dithering(levels=4, norm=math.inf)(torch.tensor([1.0, -0.5, 0.25, 0.0]), key).decode()  # on the grid: exact
    tensor([ 1.0000, -0.5000,  0.2500,  0.0000])
    >>> Dithering(levels=4).bits(100)  # a float32, and 9 values take 4 bits
    432
    """

    levels: int
    norm: float = 2.0
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_levels("Dithering", self.levels)
        at_least_one("Dithering", "norm", self.norm)

    def omega(self, size: int) -> float:
        """(3) with q = ``size``."""
        c = float(size ** (1 / min(self.norm, 2)))
        return min(c**2 / (4 * self.levels**2), (_sum_times_norm(size, self.norm) - 1) / self.levels)

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return width(dtype) + size * _digits(self.levels)

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        return _dithered(self, x, key, self.levels, self.norm, x.numel())

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return _restored(parts, self.levels, size, size, dtype)


@dataclass(frozen=True)
class QSGD:
    """Random dithering to s levels of the Euclidean norm, under the name and with the constant of its paper.

    ω = min(q / s², √q / s) (Lemma 3.1). ``Dithering(levels, norm=2)`` draws the same and states the tighter bound (3).

    Args:
        levels: s, at least 1.

    Raises:
        ValueError: levels below 1.

    >>> QSGD(levels=4).omega(100), Dithering(levels=4).omega(100)
    (2.5, 1.5625)
    """

    levels: int
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_levels("QSGD", self.levels)

    def omega(self, size: int) -> float:
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return width(dtype) + size * _digits(self.levels)

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        return _dithered(self, x, key, self.levels, 2.0, x.numel())

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return _restored(parts, self.levels, size, size, dtype)


@dataclass(frozen=True)
class BlockQuantisation:
    """Block-p quantisation: on each block B of the vector, ‖x_B‖_p sign(x_B) ⊙ Bernoulli(|x_B| / ‖x_B‖_p).

    This is dithering to one level, where (2) is an equality: E‖Q(x) − x‖² = Σ_B (‖x_B‖_1 ‖x_B‖_p − ‖x_B‖_2²). A
    message is a norm for each block and 2 bits for each entry. ω = c' − 1, with min(block, q) for q in (3). Some x
    attains it if p ≤ 2 or p = ∞; for other p it is a bound.

    Args:
        block: entries of a block, at least 1; the last block may have fewer.
        norm: p, from 1 to ``math.inf``.

    Raises:
        ValueError: a block below 1, or a norm's order below 1.

    >>> BlockQuantisation(block=25, norm=2).omega(1000), BlockQuantisation(block=25, norm=2).bits(1000)
    (4.0, 3280)
    """

    block: int
    norm: float = 2.0
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive_int("BlockQuantisation", block=self.block)
        at_least_one("BlockQuantisation", "norm", self.norm)

    def omega(self, size: int) -> float:
        return _sum_times_norm(min(self.block, size), self.norm) - 1

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return -(-size // self.block) * width(dtype) + size * _digits(1)

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        return _dithered(self, x, key, 1, self.norm, self.block)

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return _restored(parts, 1, self.block, size, dtype)


def _check_levels(owner: str, levels: int) -> None:
    checks.positive_int(owner, levels=levels)
    if levels > MOST:
        raise ValueError(f"{owner}'s levels must be at most 2^30; given {levels}. Identity sends full precision.")


def _digits(levels: int) -> int:
    """Return the bits of an integer from −s to s."""
    return (2 * levels).bit_length()


def _sum_times_norm(size: int, order: float) -> float:
    """Return c', the largest ‖x‖_1 ‖x‖_r / ‖x‖_2²."""
    return (1 + math.sqrt(size)) / 2 if math.isinf(order) else float(size ** (1 / min(order, 2)))


def _dithered(compressor: Compressor, x: Tensor, key: Tensor, levels: int, order: float, block: int) -> Compressed:
    vector = flat(compressor, x)
    rows = F.pad(vector, (0, -len(vector) % block)).reshape(-1, block)
    norms = _norms(rows, order)
    # The scale is the norm as sent, so that its rounding adds no bias. Ratios are computed in float64.
    scale = torch.where(norms > 0, norms, 1).double()[:, None]
    t = levels * (rows.abs().double() / scale).clamp(max=1)
    level = torch.floor(t + keys.uniform(key, *rows.shape, dtype=torch.float64)).clamp(max=levels)
    codes = (torch.sign(rows).double() * level).to(torch.int64) + levels
    return packed(compressor, x, norms=norms, codes=pack(codes.reshape(-1)[: len(vector)], _digits(levels)))


def _norms(rows: Tensor, order: float) -> Tensor:
    """Return the ℓ_r norm of each row, at least its largest entry and at most the dtype's largest number.

    Dithering is unbiased with any scale that isn't below the largest entry, so a norm that would overflow is clipped.
    """
    largest = rows.abs().amax(dim=1)
    units = rows.double() / torch.where(largest > 0, largest, 1).double()[:, None]
    norms = (torch.linalg.vector_norm(units, order, dim=1) * largest.double()).clamp(max=torch.finfo(rows.dtype).max)
    # NaN and infinities stay: the engine must see them and drop the reply.
    return torch.where(torch.isfinite(largest), torch.maximum(norms.to(rows.dtype), largest), largest)


def _restored(parts: dict[str, Tensor], levels: int, block: int, size: int, dtype: torch.dtype) -> Tensor:
    level = unpack(parts["codes"], _digits(levels), size) - levels
    rows = F.pad(level, (0, -size % block)).reshape(-1, block).double() / levels
    return (parts["norms"].double()[:, None] * rows).to(dtype).reshape(-1)[:size]
