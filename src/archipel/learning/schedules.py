"""Step sizes that fall from round to round."""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import checks


@dataclass(frozen=True)
class Decay:
    """Steps γ_k = γ (1 + k/τ)^(−a), k = 0, 1, …: stochastic approximation with such steps ends at a root despite noise.

    Args:
        rate: γ, above 0.
        power: a, above 0. For a in (½, 1] the noise averages out, and the steps still sum to infinity.
        delay: τ, above 0: the step stays near γ for about as many rounds.

    >>> schedule = Decay(rate=1.0, power=1.0, delay=10)
    >>> schedule(0), schedule(10)
    (1.0, 0.5)
    """

    rate: float = 1.0
    power: float = 0.6
    delay: float = 10.0

    def __post_init__(self) -> None:
        checks.above_zero("Decay", rate=self.rate, power=self.power, delay=self.delay)

    def __call__(self, round: int) -> float:
        return float(self.rate * (1 + round / self.delay) ** -self.power)
