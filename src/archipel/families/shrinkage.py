"""Shrinkage, which keeps covariances from collapsing: a ridge like scikit-learn's, or an inverse-Wishart prior.

Let S_k be the covariance of component k in the statistics and w_k its mean responsibility. In −⟨s, φ⟩ + ψ, Σ_k enters
as w_k/2 (log |Σ_k| + tr Σ_k⁻¹ S_k).

With R(θ) = κ/2 Σ_k (log |Σ_k| + ψ tr Σ_k⁻¹), the inverse-Wishart prior, the minimum is exactly
(w_k S_k + κψI)/(w_k + κ).

The ridge is S_k + ρI. It is the minimum if w_k ρ/2 tr Σ_k⁻¹ is added, but w_k belongs to the statistics, not to θ. For
tied covariances Σ_k w_k = 1, so R = ρ/2 tr Σ⁻¹ gives the ridge exactly. For the other kinds no R does. R =
ρ/2 Σ_k π_k tr Σ_k⁻¹ pulls on Σ_k as the ridge does at fixed points, where π_k = w_k, but also on π, which the ridge
doesn't. (A ridge under which the likelihood never falls would have to enter the E-step, with responsibilities
∝ π_k N_k exp(−ρ/2 tr Σ_k⁻¹).) Under a ridge the penalised likelihood may therefore fall, by the order of ρ tr Σ⁻¹.
Under the prior it never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from archipel.core import checks


class Shrinkage(Protocol):
    """A pull on covariances."""

    def blend(self, weight: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Return (a, b) of the covariance in T, aS + bI, where ``weight`` is w."""

    def penalty(self, weight: Tensor, log_det: Tensor, trace: Tensor) -> Tensor:
        """Return R from π, log |Σ| and tr Σ⁻¹ of each covariance."""


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
    """An inverse-Wishart prior, which adds nκ pseudo-examples of covariance ψI to each component.

    With n examples it has nκ − d − 1 degrees of freedom and scale matrix nκψI. The covariance of an empty component
    is ψI.

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
    """Raise ValueError for anything but an :class:`InverseWishart`."""
    if not isinstance(prior, InverseWishart):
        raise ValueError(f"{owner}'s prior is InverseWishart(strength, scale); given {prior!r}.")
