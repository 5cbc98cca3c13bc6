"""Quadratic clients: problems with solutions in closed form, for tests of algorithms.

Client k has the objective f_k(θ) = ½ (θ − a_k)ᵀ A_k (θ − a_k) and the weight ρ_k; A_k is symmetric and positive
definite. With M_k(λ) = (A_k + λI)⁻¹ A_k and sums weighted by ρ_k:

- the minimum of Σ ρ_k f_k is (Σ ρ_k A_k)⁻¹ Σ ρ_k A_k a_k;
- E full-batch gradient steps of size η move a client from θ to a_k + (I − ηA_k)^E (θ − a_k), so the fixed point of
  federated averaging solves Σ ρ_k N_k (θ − a_k) = 0 with N_k = I − (I − ηA_k)^E: it is
  (Σ ρ_k N_k)⁻¹ Σ ρ_k N_k a_k;
- the proximal point of f_k at θ is θ − M_k(λ) (θ − a_k), so the fixed point of exact proximal averaging (FedProx,
  L2SGD, pFedMe) is (Σ ρ_k M_k)⁻¹ Σ ρ_k M_k a_k, and the personal models for θ are (A_k + λI)⁻¹ (A_k a_k + λθ).

Everything is float64, so that tests can iterate to the fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core.trees import Tree
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.learning.sgd import Batch


@dataclass(frozen=True)
class Quadratic:
    """The task: an example is a quadratic, with A as ``x``, ``(n, d, d)``, and the minimum a as ``y``, ``(n, d)``.

    Args:
        dimension: d.

    >>> task = Quadratic(dimension=1)
    >>> example = {"x": torch.tensor([[[4.0]]]), "y": torch.tensor([[3.0]])}
    >>> task.loss({"theta": torch.tensor([1.0])}, example)[0]
    tensor([8.])
    """

    dimension: int = 1

    def init(self, key: Tensor) -> Tree:
        return {"theta": torch.zeros(self.dimension, dtype=torch.float64)}

    def loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        gap = params["theta"] - batch["y"]
        return 0.5 * torch.einsum("ni,nij,nj->n", gap, batch["x"], gap), {}

    def predict(self, params: Tree, x: Tensor) -> Tensor:
        """Return θ for every query, ``(n, d)``: the model's estimate of the minimum."""
        theta: Tensor = params["theta"]
        return theta.expand(len(x), -1)


def quadratic_federation(A: Tensor, a: Tensor, sizes: Sequence[int] | None = None) -> Federation:
    """Make a federation of clients with one quadratic each.

    Args:
        A: ``(m, d, d)``, symmetric and positive definite.
        a: ``(m, d)``.
        sizes: the number of identical examples of each client, which is its weight; default: one each.

    Returns:
        The federation, without test examples.

    Raises:
        ValueError: shapes that don't fit, or a size below 1.

    >>> from archipel.learning.sgd import SGD
    >>> from archipel.algorithms.fedavg import FedAvg
    >>> from archipel.fit import fit
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> federation = quadratic_federation(A, a)
    >>> run = fit(FedAvg(Quadratic(), SGD(lr=0.1, steps=1, batch=None)), federation, rounds=100)
    >>> run.server["model"]["theta"]  # (1·0 + 4·1) / (1 + 4)
    tensor([0.8000], dtype=torch.float64)
    """
    m, d = a.shape
    sizes = [1] * m if sizes is None else sizes
    if A.shape != (m, d, d) or len(sizes) != m or min(sizes) < 1:
        raise ValueError(
            f"Quadratic clients need A (m, d, d), a (m, d) and m sizes of at least 1; given A {tuple(A.shape)}, "
            f"a {tuple(a.shape)} and sizes {list(sizes)}."
        )
    clients = []
    for k, size in enumerate(sizes):
        x, y = (t[k].double().expand(size, *t.shape[1:]).contiguous() for t in (A, a))
        clients.append(Client(f"client-{k}", {"x": x, "y": y}, {"x": x[:0], "y": y[:0]}))
    inputs = Inputs("series", (d, d), 1.0, (0.0,) * d, (1.0,) * d)
    return Federation("quadratics", tuple(clients), inputs, None)
