"""FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in heterogeneous networks.
MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import NonNegative
from archipel.core.trees import Tree
from archipel.learning.sgd import Shift, proximal


@dataclass(frozen=True, eq=False)
class FedProx(SharedModel):
    """Federated averaging with a proximal term that keeps clients near the shared model.

    Client k minimises f_k(θ_k) + μ/2 ‖θ_k − θ^(t)‖² from θ^(t) by local SGD (the paper's eq. 2 and Algorithm 2), with
    steps θ_k ← θ_k − η (∇f_k(θ_k) + μ (θ_k − θ^(t))), and the server averages where they end:
    θ^(t+1) = Σ_{k∈S} n_k θ_k / Σ_{k∈S} n_k. With μ = 0 it is FedAvg, to the bit. Solved exactly, a round is
    θ ← mean of prox_{f_k/μ}(θ), whose fixed point minimises the sum of the f_k's Moreau envelopes.

    Args:
        task: the model and its loss.
        local: the local solver. An exact solve takes ``batch=None``, a ``tolerance`` and enough steps.
        penalty: μ, 0 or above.
        weights: ``"examples"``, or ``"uniform"`` as in the paper, which draws the cohort by n_k instead.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a penalty below 0.

    >>> import torch
    >>> from archipel import SGD, FedProx, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> prox = FedProx(Quadratic(), SGD(lr=0.2, steps=15, batch=None), penalty=2.0)
    >>> fit(prox, quadratic_federation(A, a), rounds=30).server["model"]["theta"]
    tensor([0.6667], dtype=torch.float64)
    """

    penalty: NonNegative = 0.1

    def shift(self, client: Tree, message: Tree) -> Shift | None:
        """Return the gradient of μ/2 ‖· − θ^(t)‖²."""
        return proximal(self.penalty, message["model"]) if self.penalty else None
