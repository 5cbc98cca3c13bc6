"""Integers of a few bits, packed densely into bytes by tensor operations.

Eight integers of b bits fill b bytes exactly, so integers are packed in groups of eight. No intermediate tensor is
larger than the integers themselves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

WIDEST = 56
"""The most bits: an integer that is shifted by up to 7 must fit an int64."""


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack integers into bytes, the first integer in the lowest bits of the first byte.

    Args:
        values: ``(n,)`` int64, each in [0, 2^bits).
        bits: b, from 1 to 56.

    Returns:
        ``(⌈n b / 8⌉,)`` uint8.

    >>> pack(torch.tensor([1, 0, 3, 2]), bits=2)  # 1 + 0·4 + 3·16 + 2·64
    tensor([177], dtype=torch.uint8)
    """
    groups = F.pad(values, (0, -len(values) % 8)).reshape(-1, 8)
    return _digits(groups, bits, 8).reshape(-1)[: -(-len(values) * bits // 8)].to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Invert :func:`pack`; returns ``(count,)`` int64.

    >>> unpack(torch.tensor([177], dtype=torch.uint8), bits=2, count=4)
    tensor([1, 0, 3, 2])
    """
    groups = F.pad(packed.to(torch.int64), (0, -len(packed) % bits)).reshape(-1, bits)
    return _digits(groups, 8, bits).reshape(-1)[:count]


def _digits(groups: Tensor, old: int, new: int) -> Tensor:
    """Rewrite rows of digits of ``old`` bits as rows of digits of ``new`` bits, lowest first."""
    columns = []
    for j in range(groups.shape[1] * old // new):
        first, last = j * new // old, (j * new + new - 1) // old
        digit = torch.zeros_like(groups[:, 0])
        for i in range(first, last + 1):
            up = i * old - j * new  # where old digit i begins in new digit j
            digit = digit | (groups[:, i] << up if up >= 0 else groups[:, i] >> -up)
        columns.append(digit & (2**new - 1))
    return torch.stack(columns, dim=1)
