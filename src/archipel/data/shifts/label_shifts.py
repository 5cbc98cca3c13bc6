"""Shifts of labels and quantity: permuted labels, noisy labels, fewer examples."""

import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import keys
from archipel.data.client import Columns
from archipel.data.federation import Federation
from archipel.data.shifts.shift import Shift, check_share


@dataclass(frozen=True)
class PermuteLabels(Shift):
    """Concept shift: y becomes permutation[y], so that the same x means something else.

    Args:
        permutation: of 0 … K−1; class k becomes permutation[k].

    Raises:
        ValueError: not a permutation.

    >>> columns = {"x": torch.zeros(3, 1), "y": torch.tensor([0, 1, 2])}
    >>> shifted, truth = PermuteLabels((2, 0, 1)).apply(columns, {}, keys.key(0))
    >>> shifted["y"].tolist(), truth["label"].tolist()
    ([2, 0, 1], [0, 1, 2])
    """

    permutation: tuple[int, ...]

    def __post_init__(self) -> None:
        permutation = tuple(operator.index(k) for k in self.permutation)
        if sorted(permutation) != list(range(len(permutation))):
            raise ValueError(
                f"permutation is {permutation}, which isn't one: each class from 0 to {len(permutation) - 1} "
                "occurs exactly once."
            )
        object.__setattr__(self, "permutation", permutation)

    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        y = columns["y"]
        return columns | {"y": torch.tensor(self.permutation, dtype=torch.int64)[y]}, {"label": y} | truth

    def check(self, federation: Federation) -> None:
        check_classes(federation, len(self.permutation), "permutation has")


@dataclass(frozen=True)
class NoisyLabels(Shift):
    """Symmetric label noise: with probability `rate`, a label becomes one of the K−1 others, each equally likely.

    Args:
        rate: probability that a label is wrong, 0 ≤ rate ≤ 1; pure chance is (K−1)/K.
        classes: K.

    Source: Patrini et al. (2017), Making deep neural networks robust to label noise, CVPR.
    """

    rate: float
    classes: int

    def __post_init__(self) -> None:
        check_share("rate", self.rate)
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}; a label becomes another one, so there are 2 classes or more.")

    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        y = columns["y"]
        wrong = keys.uniform(keys.fold(key, "wrong"), len(y), dtype=torch.float64) < self.rate
        other = (y + 1 + keys.integers(keys.fold(key, "other"), self.classes - 1, len(y))) % self.classes
        # A second noise may restore a label.
        clean, y = truth.get("clean", y), torch.where(wrong, other, y)
        return columns | {"y": y}, {"label": clean} | truth | {"clean": clean, "noisy": y != clean}

    def check(self, federation: Federation) -> None:
        check_classes(federation, self.classes, "classes is")


@dataclass(frozen=True)
class Keep(Shift):
    """Quantity shift: a client keeps a random fraction of its rows, one at least, in their order.

    Args:
        fraction: above 0, up to 1.
    """

    fraction: float

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}; it is the share of rows that stay, above 0 and up to 1.")

    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        n = len(columns["y"])
        stays = keys.permutation(key, n)[: max(1, round(self.fraction * n))].sort().values
        return {name: rows[stays] for name, rows in columns.items()}, {
            name: rows[stays] for name, rows in truth.items()
        }


def check_classes(federation: Federation, classes: int, what: str) -> None:
    """Refuse a regression, and another number of classes."""
    if federation.classes is None:
        raise ValueError(f"{federation.name!r} is a regression; it has no labels to change.")
    if classes != len(federation.classes):
        raise ValueError(f"{what} {classes}; {federation.name!r} has {len(federation.classes)} classes.")
