"""What keeps covariances from collapsing: a ridge as scikit-learn's, or an inverse-Wishart prior.

Let S_k be the covariance of component k in the statistics and w_k its mean responsibility. The part of −⟨s, φ⟩ + ψ that
Σ_k enters is w_k/2 (log |Σ_k| + tr Σ_k⁻¹ S_k).

With R(θ) = κ/2 Σ_k (log |Σ_k| + ψ tr Σ_k⁻¹) its minimum is (w_k S_k + κψI)/(w_k + κ), exactly: a prior.

The ridge, S_k + ρI, would be the minimum with w_k ρ/2 tr Σ_k⁻¹, where w_k belongs to the statistics, not to θ. If
covariances are tied Σ_k w_k = 1, so that R = ρ/2 tr Σ⁻¹ gives it exactly. For the others no R does:
R = ρ/2 Σ_k π_k tr Σ_k⁻¹ pulls on Σ_k as the ridge does where π_k = w_k, at fixed points, but on π too, which the ridge
leaves out. (For a likelihood that never falls the ridge would have to enter the E-step, with responsibilities
∝ π_k N_k exp(−ρ/2 tr Σ_k⁻¹).) So under a ridge the penalised likelihood may fall by something of the order of ρ tr Σ⁻¹;
under the prior it can't.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from archipel.core import checks


class Shrinkage(Protocol):
    """A pull on covariances."""

    def blend(self, weight: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """(a, b) of the covariance in T, aS + bI, where ``weight`` is w."""

    def penalty(self, weight: Tensor, log_det: Tensor, trace: Tensor) -> Tensor:
        """R from π, log |Σ| and tr Σ⁻¹ of each covariance."""


@dataclass(frozen=True)
class Ridge:
    """ρI added to every covariance, as scikit-learn's ``reg_covar``.

    Args:
        amount: ρ, above 0; the data's units squared.

    >>> import torch
    >>> Ridge(1e-3).blend(torch.tensor([0.5]))
    (1.0, 0.001)
    """

    amount: float = 1e-6

    def __post_init__(self) -> None:
        checks.above_zero("Ridge", amount=self.amount)

    def blend(self, weight: Tensor) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, self.amount

    def penalty(self, weight: Tensor, log_det: Tensor, trace: Tensor) -> Tensor:
        return self.amount / 2 * (weight * trace).sum()


@dataclass(frozen=True)
class InverseWishart:
    """A prior worth κ examples of covariance ψI for each that there is: the mode of an inverse-Wishart law.

    With n examples in all it has nκ − d − 1 degrees of freedom and scale matrix nκψI. An empty component ends at ψI.

    Args:
        strength: κ, above 0; k pseudo-examples are k/n.
        scale: ψ, above 0; the data's units squared.

    >>> import torch
    >>> InverseWishart(0.5, scale=2.0).blend(torch.tensor([0.5]))
    (tensor([0.5000]), tensor([1.]))
    """

    strength: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.above_zero("InverseWishart", strength=self.strength, scale=self.scale)

    def blend(self, weight: Tensor) -> tuple[Tensor | float, Tensor | float]:
        total = weight + self.strength
        return weight / total, self.strength * self.scale / total

    def penalty(self, weight: Tensor, log_det: Tensor, trace: Tensor) -> Tensor:
        return self.strength / 2 * (log_det + self.scale * trace).sum()


def check_prior(owner: str, prior: object) -> None:
    """Raises ValueError for anything but an :class:`InverseWishart`."""
    if not isinstance(prior, InverseWishart):
        raise ValueError(f"{owner}'s prior is InverseWishart(strength, scale); given {prior!r}.")
