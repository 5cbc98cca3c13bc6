"""What a shift is: a change of a client's data, as a value that is applied and recorded.

A shift is a frozen dataclass. It takes a client's columns and what is known of them, and returns both: labels and
features as the client sees them, and the truth behind them. `archipel.data.shifts.compose` applies shifts in order to
whole federations.

Truth columns, which only evaluation sees: "label", the label before every shift; "clean", the label before noise;
"noisy", whether noise changed it; "missing", which values were removed.
"""

import math
from abc import ABC, abstractmethod

from torch import Tensor

from archipel.data.client import Columns
from archipel.data.federation import Federation


class Shift(ABC):
    """A change of a client's data that is a value: equal shifts with equal keys do the same."""

    @abstractmethod
    def apply(
        self, columns: Columns, truth: Columns, key: Tensor, train: Columns | None = None
    ) -> tuple[Columns, Columns]:
        """Shift the rows of one split; nothing is changed in place.

        Args:
            columns: "x" (n, …) and "y" (n, …).
            truth: what is known of these rows already, (n, …) each.
            key: int64 of shape (), decides every draw.
            train: the training columns after this same shift, None while they are shifted themselves.

        Returns:
            The rows as the client sees them, and the truth with what this shift adds.
        """

    def check(self, federation: Federation) -> None:  # noqa: B027 — by default, nothing is refused
        """Refuse a federation that the shift doesn't fit, before anything is done."""


def take(columns: Columns, rows: Tensor) -> Columns:
    """Take rows by an index or a mask."""
    return {name: values[rows] for name, values in columns.items()}


def check_share(name: str, value: float) -> None:
    """Raise ValueError for anything but a probability."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it is a probability, from 0 to 1.")


def check_word(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ValueError for a word that isn't known."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(known)}.")


def check_finite(name: str, value: float, above: float = -math.inf) -> None:
    """Raise ValueError for NaN, infinity, and values that aren't above a bound."""
    if not (math.isfinite(value) and value > above):
        bound = f" above {above:.0f}" if math.isfinite(above) else ""
        raise ValueError(f"{name} is {value}; it is a finite number{bound}.")
