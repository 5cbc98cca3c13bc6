"""The mean loss of a local run, and how many steps each client made."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LossRecord:
    """What a local run's steps leave behind, for one client or for those that ``vmap`` stacks.

    Who took part in a step is a bool for each client, or ``None`` where all did.

    Args:
        totals: each minibatch's sum of losses; 0 for clients who took no part.
        sizes: by what each sum is divided. Division comes last, since ``torch.mean`` is a sum and then a division.
        asked: who took part in each step.
        moved: whose parameters moved in each step.
        even: 1/B for each of B losses, made once for all minibatches of a size.
    """

    totals: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    asked: list[Tensor | None] = field(default_factory=list)
    moved: list[Tensor | None] = field(default_factory=list)
    even: Tensor | None = None

    def shares(self, values: Tensor, mask: Tensor | None, who: Tensor | None) -> Tensor:
        """Record a minibatch's losses, and return the share of each in their mean.

        Args:
            values: ``(…, B)`` losses.
            mask: ``(…, B)`` bool, which of them count; ``None``: all.
            who: who takes part in the step.
        """
        if mask is None:
            if self.even is None or self.even.shape != values.shape:
                self.even = torch.full_like(values, 1 / max(values.shape[-1], 1))
            share, total, size = self.even, values.sum(-1), values.shape[-1]
        else:
            share = mask.to(values.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
            # Left out, not multiplied by 0: padding may hold anything, and 0 · NaN is NaN.
            total, size = (values.masked_fill(~mask, 0.0) * share).sum(-1), 1
        self.totals.append(total if who is None else torch.where(who, total, 0.0))
        self.sizes.append(size)
        self.asked.append(who)
        return share

    def mean(self) -> Tensor:
        """Return each client's mean over its steps of the minibatches' mean losses."""
        totals, taken = torch.stack(self.totals), count_steps(self.asked)
        if len(set(self.sizes)) == 1:
            return totals.sum(0) / (self.sizes[0] * taken)
        sizes = torch.tensor(self.sizes, device=totals.device).reshape(-1, *[1] * (totals.dim() - 1))
        return (totals / sizes).sum(0) / taken


def count_steps(steps: list[Tensor | None]) -> Tensor | int:
    """Count the steps in which each client took part; a Python integer where all clients took part in the same.

    >>> count_steps([None, torch.tensor([True, False])])
    tensor([2, 1])
    """
    some = [who for who in steps if who is not None]
    common = len(steps) - len(some)
    return torch.stack(some).sum(0) + common if some else common


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return who takes part in both, where ``None`` stands for everyone."""
    return other if one is None else one if other is None else one & other
