"""Natural compression: random rounding to powers of two.

S. Horváth, C.-Y. Ho, L. Horváth, A. N. Sahu, M. Canini, P. Richtárik: Natural compression for distributed deep
learning. MSML 2022 (arXiv 1905.10988).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.compress.compressor import flat, packed
from archipel.compress.packing import pack, unpack
from archipel.core import keys
from archipel.core.trees import Compressed

# IEEE 754: an integer type of the same size, bits of the mantissa, bits of the exponent.
LAYOUT = {torch.float32: (torch.int32, 23, 8), torch.float64: (torch.int64, 52, 11)}


@dataclass(frozen=True)
class Natural:
    """Natural compression: every entry rounded at random to a power of two, up or down.

    With a = 2^⌊log₂ |t|⌋ and |t| = a (1 + u), t becomes 2a sign(t) with probability u and a sign(t) otherwise. So
    E Q(t) = t and E(Q(t) − t)² = a² u (1 − u) = t² u (1 − u)/(1 + u)² ≤ t²/8, with equality at u = 1/3: ω = 1/8
    (Theorem 1). In binary, u is the mantissa, and rounding up adds 1 to the exponent. The message is a sign and an
    exponent for each entry, 9 bits for a float32 and 12 for a float64, and no norm.

    Entries below the smallest normal number, 2^−126 in float32, become it or 0: this is unbiased, but ω doesn't hold
    for them. Entries above the largest power of two, 2^127, become that. NaN and infinities become infinities.

    >>> x = torch.tensor([8.0, -0.25, 0.0])  # powers of two stay as they are
    >>> Natural()(x, keys.key(0)).decode()
    tensor([ 8.0000, -0.2500,  0.0000])
    >>> Natural().bits(1000), Natural().omega(1000)
    (9000, 0.125)
    """

    unbiased: ClassVar[bool] = True

    def omega(self, size: int) -> float:
        return 1 / 8

    def bits(self, size: int, dtype: torch.dtype = torch.float32) -> int:
        return size * (1 + LAYOUT[dtype][2])

    def __call__(self, x: Tensor, key: Tensor) -> Compressed:
        vector = flat(self, x)
        integer, mantissa, width = LAYOUT[vector.dtype]
        word = vector.contiguous().view(integer).to(torch.int64)
        exponent = (word >> mantissa) & (2**width - 1)
        u = (word & (2**mantissa - 1)).double() * 2.0**-mantissa
        largest = 2**width - 2  # the next exponent marks NaN and infinities
        up = (keys.uniform(key, len(vector), dtype=torch.float64) < u) & (exponent < largest)
        codes = exponent + up.to(torch.int64) + ((word < 0).to(torch.int64) << width)
        return packed(self, x, codes=pack(codes, 1 + width))

    def decode(self, parts: dict[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        integer, mantissa, width = LAYOUT[dtype]
        codes = unpack(parts["codes"], 1 + width, size)
        magnitude = ((codes & (2**width - 1)) << mantissa).to(integer).view(dtype)
        return torch.where(codes >> width == 1, -magnitude, magnitude)
