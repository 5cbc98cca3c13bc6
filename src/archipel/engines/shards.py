"""Sums over clients in an order that does not depend on how many processes compute them.

Clients are divided into 16 shards of consecutive clients with about equally many training examples. The sizes alone
decide the shards. A sum adds the clients of a shard one after another, and then the shards' sums along a fixed binary
tree. A process that has some of the shards computes whole branches of the tree, and sends only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.trees import Sum, Tree

LEVELS = 4
SHARDS = 1 << LEVELS
"""More shards would allow more ranks, and a sum keeps up to ``LEVELS`` + 1 trees in memory."""


def shards_of(sizes: Tensor) -> NDArray[np.int64]:
    """Return ``(m,)`` the shard of each client, rising: the one in which the middle of its examples falls.

    Args:
        sizes: ``(m,)`` training examples of each client.

    >>> shards_of(torch.tensor([10, 10, 10, 10])).tolist()
    [2, 6, 10, 14]
    """
    sizes = sizes.to(torch.float64)
    middle = sizes.cumsum(0) - sizes / 2
    return (middle * (SHARDS / float(sizes.sum()))).long().clamp(max=SHARDS - 1).numpy()


def shard_ranges(sizes: Tensor, ranks: int) -> list[tuple[int, int]]:
    """Return for each rank the first shard that it has, and the one after its last.

    Every rank gets clients, and about equally many training examples.

    Args:
        sizes: ``(m,)`` training examples of each client.
        ranks: how many there are.

    Raises:
        ValueError: a rank would have no client.

    >>> shard_ranges(torch.tensor([10, 10, 10, 30]), 2)
    [(0, 12), (12, 16)]
    """
    shards = shards_of(sizes)
    present = np.unique(shards)
    if ranks > len(present):
        raise ValueError(
            f"{ranks} ranks are too many for this federation of {len(sizes)} clients: some would have no client. Take "
            f"{len(present)}, or fewer."
        )
    held = np.bincount(shards, sizes.numpy())[present].cumsum()
    cuts = [0]
    for rank in range(1, ranks):
        nearest = int(np.abs(held - held[-1] * rank / ranks).argmin()) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(present) - ranks + rank))
    starts = [0, *present[cuts[1:]].tolist(), SHARDS]
    return list(pairwise(starts))


def owners(sizes: Tensor, ranks: int) -> NDArray[np.int64]:
    """Return ``(m,)`` the rank that has each client; arguments are those of :func:`shard_ranges`.

    >>> owners(torch.tensor([10, 10, 10, 30]), 2).tolist()
    [0, 0, 0, 1]
    """
    starts = [first for first, _ in shard_ranges(sizes, ranks)]
    return np.searchsorted(starts, shards_of(sizes), side="right") - 1


@dataclass
class Branch:
    """The sum of the shards ``index`` · 2^``level`` to (``index`` + 1) · 2^``level`` − 1.

    Args:
        level: 0 for one shard, ``LEVELS`` for all.
        index: which branch of the level, from 0.
        sum: over the branch's clients.
    """

    level: int
    index: int
    sum: Sum


class ShardedSum:
    """A running sum Σ w_i · tree_i over clients in rising order, along the tree of shards.

    Args:
        shards: ``(m,)`` the shard of each client.
        first: the first shard that is summed here.
        end: the shard after the last one.

    Attributes:
        empty: whether nothing was added.

    >>> total = ShardedSum(shards_of(torch.tensor([1, 1])))
    >>> total.add([0], {"a": torch.tensor([[1.0]])}, [1])
    >>> total.add([1], {"a": torch.tensor([[4.0]])}, [2])
    >>> merged(total.branches()).mean()
    {'a': tensor([3.])}
    """

    def __init__(self, shards: NDArray[np.int64], first: int = 0, end: int = SHARDS) -> None:
        self._shards, self._first, self._end = shards, first, end
        self._open: list[Branch] = []
        self.empty = True

    def add(self, ids: Sequence[int], stacked: Tree, weights: Sequence[float]) -> None:
        """Add the replies of some clients. Those of a batch count where its first client does."""
        shard = int(self._shards[ids[0]])
        if self.empty or self._open[-1].level or self._open[-1].index != shard:
            self._open = _climbed(self._open, shard, self._first, self._end)
            self._open.append(Branch(0, shard, Sum()))
        self._open[-1].sum.add(stacked, weights)
        self.empty = False

    def branches(self) -> list[Branch]:
        """Return the sum as the largest branches that are whole here, in order."""
        self._open = _climbed(self._open, self._end, self._first, self._end)
        return self._open


def merged(branches: Sequence[Branch]) -> Sum:
    """Return the sum of branches that are in order; an empty sum for none."""
    found: list[Branch] = []
    for branch in branches:
        found = [*_climbed(found, branch.index << branch.level), branch]
    found = _climbed(found, SHARDS)
    return found[0].sum if found else Sum()


def _climbed(branches: list[Branch], coming: int, first: int = 0, end: int = SHARDS) -> list[Branch]:
    """Merge branches as far as possible, if all shards before ``coming`` have been added.

    A branch without a sibling takes its parent's place, so that absent clients change no order. Parents that reach
    outside of the shards from ``first`` to ``end`` − 1 are left to whoever has all of their shards.
    """
    found = list(branches)
    while found:
        last = found[-1]
        parent = last.index >> 1
        low, high = parent << (last.level + 1), (parent + 1) << (last.level + 1)
        waits = last.index % 2 == 0 and coming < high  # for its sibling
        if last.level == LEVELS or waits or low < first or high > end:
            break
        del found[-1]
        total = last.sum
        if found and (found[-1].level, found[-1].index) == (last.level, last.index - 1):
            total = found.pop().sum
            total.merge(last.sum)
        found.append(Branch(last.level + 1, parent, total))
    return found
