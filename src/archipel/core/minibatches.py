"""Minibatches of a local run, planned beforehand from a key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.vmap import inside_vmap


@dataclass(frozen=True)
class MinibatchPlan:
    """Which rows each step of a local run takes.

    Args:
        order: ``(P · N,)``, for each of P passes the rows in the order of the visits; ``None``: the stored order.
        length: N, the padded number of rows.
        count: n, the number of real rows; a Python integer if all clients of a batch share it.
        min_count: the smallest n in the batch of clients.
        size: B, rows in a step.
        steps: S, the largest number of steps that a client of the batch makes.
        passes: P if clients make as many steps as P passes have; ``None`` if every client makes S steps.
    """

    order: Tensor | None
    length: int
    count: Tensor | int
    min_count: int
    size: int
    steps: int
    passes: int | None

    @property
    def index(self) -> Tensor:
        """``(S, B)`` rows to take in each step."""
        return self._layout[0]

    @property
    def mask(self) -> Tensor:
        """``(S, B)`` bool, true where a row counts; the last batch of a pass may be short."""
        return self._layout[1]

    @property
    def active(self) -> Tensor:
        """``(S,)`` bool, true for the steps that this client makes; numbers of steps may differ inside a batch."""
        return self._layout[2]

    @cached_property
    def common_steps(self) -> int:
        """How many of the steps every client of the batch makes."""
        count = self.count if isinstance(self.count, int) else self.min_count
        return self.steps if self.passes is None else self.passes * _batches(count, self.size)

    @cached_property
    def row_counts(self) -> list[int | None]:
        """For each step how many of its first rows count, or ``None`` where only the mask can tell.

        If the counts are the same for all clients of a batch, then all make the same steps, and only those are listed.
        """
        if isinstance(self.count, int):
            in_pass = _batches(self.count, self.size)
            return [min(self.size, self.count - s % in_pass * self.size) for s in range(self.common_steps)]
        return [self.size if (s + 1) * self.size <= self.min_count else None for s in range(self.steps)]

    def __getitem__(self, step: int) -> Tensor:
        """Return the rows of a step: those that count, or ``(B,)`` rows of which the mask selects."""
        rows = self.row_counts[step]
        if rows is None or self.order is None:
            return self.index[step, :rows]
        return self._pieces[step]

    @cached_property
    def _pieces(self) -> list[Tensor]:
        """The rows of full steps, and those of clients of one size, cut from the order all at once."""
        assert self.order is not None
        count = self.count if isinstance(self.count, int) else self.min_count  # larger clients begin with as many
        passes = [one[:count].split(self.size) for one in self.order.split(self.length)]
        return [piece for one in passes for piece in one]

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor]:
        device = None if self.order is None else self.order.device
        count = torch.as_tensor(self.count, device=device)
        step, column = (torch.arange(n, device=count.device) for n in (self.steps, self.size))
        if self.order is None:
            real = column < count
            return (column * real).expand(self.steps, -1), real.expand(self.steps, -1), step < self.steps
        in_pass = torch.clamp((count + self.size - 1) // self.size, min=1)
        active = step < (self.steps if self.passes is None else self.passes * in_pass)
        position = (step % in_pass)[:, None] * self.size + column
        mask = (position < count) & active[:, None]
        place = ((step // in_pass)[:, None] * self.length + position) * mask
        return self.order[place], mask, active


def _batches(count: int, size: int) -> int:
    return max(1, math.ceil(count / size))


def plan_minibatches(
    examples: Examples, key: Tensor, batch: int | None, *, steps: int | None = None, epochs: int | None = None
) -> MinibatchPlan:
    """Plan minibatches in shuffled passes over the data, each pass in a new order from its own key.

    One pass has ⌈n/B⌉ batches and visits every example once; its last batch holds the remainder (a client with 3
    examples and B = 10 has batches of 3). ``steps`` may extend over several passes. The plan depends on the key and on
    n alone, not on padding, so that looped and batched runs take the same minibatches.

    Args:
        examples: the client's examples.
        key: int64 of shape ``()``.
        batch: B; ``None``: all the data in every step.
        steps: S, the number of steps. Give exactly one of steps and epochs.
        epochs: the number of passes.

    Returns:
        The plan; S is ``epochs`` · ⌈N/B⌉ if ``epochs`` is given.

    >>> data = Examples.of({"x": torch.zeros(5, 1)})
    >>> plan = plan_minibatches(data, keys.key(0), 2, epochs=1)
    >>> sorted(plan.index[plan.mask].tolist())
    [0, 1, 2, 3, 4]
    >>> plan.row_counts
    [2, 2, 1]
    """
    length, min_count = examples.length, examples.min_count
    size = min(batch or length, length)
    passes = epochs or math.ceil((steps or 0) / _batches(min_count, size))
    # A Python integer suffices outside of vmap, and where the clients of a batch have equally many examples.
    plain = min_count == length or not inside_vmap()
    count = examples.count if not plain else length if min_count == length else int(examples.count)
    order = None
    if batch is not None:
        each = keys.fold(key, torch.arange(passes, device=key.device) if passes > 1 else 0)
        order = keys.permutation(each, length, count).reshape(-1).to(examples.count.device)
    # The full batch isn't shuffled: the same rows in the same order keep sums equal to the bit.
    return MinibatchPlan(order, length, count, min_count, size, steps or passes * _batches(length, size), epochs)
