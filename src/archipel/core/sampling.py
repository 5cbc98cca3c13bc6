"""Cohorts: which clients take part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archipel.core import keys


class Cohort(Protocol):
    """Chooses a round's clients by key."""

    def draw(self, sizes: Tensor, key: Tensor) -> Tensor:
        """Return ``(k,)`` ids in rising order, of clients that hold ``sizes`` training examples."""


@dataclass(frozen=True)
class Full:
    """All clients, in every round.

    >>> Full().draw(torch.tensor([5, 5, 5]), keys.key(0))
    tensor([0, 1, 2])
    """

    def draw(self, sizes: Tensor, key: Tensor) -> Tensor:
        return torch.arange(len(sizes))


@dataclass(frozen=True)
class Sample:
    """A fixed number or fraction of the clients, without replacement.

    With ``weighted`` the clients are drawn one after another with probabilities proportional to the examples they hold
    (the k largest of log n_i + Gumbel noise). Average the replies uniformly then: otherwise size counts twice.

    Args:
        fraction: of all clients, in (0, 1], rounded, at least one client.
        count: the number of clients. Exactly one of fraction and count must be given.
        weighted: by examples instead of uniformly.

    Raises:
        ValueError: values out of range; at the draw, a count above the number of clients.

    >>> len(Sample(fraction=0.5).draw(torch.tensor([5, 5, 5, 5]), keys.key(0)))
    2
    """

    fraction: float | None = None
    count: int | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.count is None):
            raise ValueError(
                f"Sample takes exactly one of fraction and count; given fraction={self.fraction}, count={self.count}."
            )
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"Sample's fraction must lie in (0, 1]; given {self.fraction}.")
        if self.count is not None and (not isinstance(self.count, int) or self.count < 1):
            raise ValueError(f"Sample's count must be a whole number of at least 1; given {self.count!r}.")

    def draw(self, sizes: Tensor, key: Tensor) -> Tensor:
        m = len(sizes)
        k = self.count if self.count is not None else max(1, round((self.fraction or 0) * m))
        if k > m:
            raise ValueError(f"Sample's count is {k}, but only {m} clients are enrolled; lower it to {m} or less.")
        if not self.weighted:
            return keys.largest(key, m, k)
        u = keys.uniform(key, m, dtype=torch.float64).clamp(min=1e-300)
        gumbel = -torch.log(-torch.log(u))
        return torch.topk(gumbel + torch.log(sizes.double()), k).indices.sort().values


@dataclass(frozen=True)
class Bernoulli:
    """Each client takes part with probability p, independently: the cohort's size varies, and it can be empty.

    A round without clients counts as a round. Methods that update without replies do so (FedEM); with all others the
    server keeps its state.

    Args:
        p: in (0, 1].

    Raises:
        ValueError: p out of range.

    >>> [len(Bernoulli(0.5).draw(torch.tensor([5, 5, 5, 5]), keys.key(seed))) for seed in range(4)]
    [1, 2, 2, 0]
    """

    p: float

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 < self.p <= 1:
            raise ValueError(f"Bernoulli's p must lie in (0, 1]; given {self.p!r}.")

    def draw(self, sizes: Tensor, key: Tensor) -> Tensor:
        return (keys.uniform(key, len(sizes), dtype=torch.float64) < self.p).nonzero()[:, 0]
