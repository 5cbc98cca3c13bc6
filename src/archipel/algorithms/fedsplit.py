"""FedSplit.

R. Pathak, M. J. Wainwright: FedSplit: an algorithmic framework for fast federated optimization. NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from archipel.algorithm import Weights
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import Positive
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, tree_map
from archipel.learning.sgd import Shift, proximal, trained, untrained


@dataclass(frozen=True, eq=False)
class FedSplit(SharedModel):
    """One model for all clients by Peaceman-Rachford splitting; its fixed point is the common optimum.

    The objective is Σ_k ρ_k f_k(θ). Client k keeps z_k, θ^(0) at first, and in a round (Algorithm 1)

        u_k = prox_{s f_k}(2θ − z_k) = argmin_u f_k(u) + 1/(2s) ‖u − (2θ − z_k)‖²,  z_k ← z_k + 2 (u_k − θ),

    after which θ ← Σ_k ρ_k z_k, over all clients, of which those that weren't sampled haven't moved. At the fixed point
    u_k = θ* and z_k = θ* − s ∇f_k(θ*): the common optimum (Proposition 1), where averaging proximal points (FedProx)
    ends elsewhere. With f_k μ-strongly convex and L-smooth and s = 1/√(μL) an exact round contracts by
    (√κ − 1)/(√κ + 1) (Theorem 1).

    The proximal point is found by the local solver from θ. It is θ* itself that solves the problem at the fixed point,
    so that a prescribed number of steps, however few, leaves the fixed point where it is.

    Args:
        task: the model and its loss.
        local: the solver of the proximal problem; for an exact one ``batch=None``, a ``tolerance`` and steps enough.
        s: the proximal step, above 0.
        weights: ρ_k: ``"uniform"`` as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: an s that isn't above 0.

    >>> import torch
    >>> from archipel import SGD, FedSplit, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> split = FedSplit(Quadratic(), SGD(lr=0.2, steps=20, batch=None), s=0.5)
    >>> fit(split, quadratic_federation(A, a), rounds=40).server["model"]["theta"]
    tensor([0.8000], dtype=torch.float64)
    """

    s: Positive = 1.0
    _: KW_ONLY
    weights: Weights = "uniform"

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return super().init_client(message, data, key) | {"z": trained(message["server"]["model"])}

    def step(self, server: Tree, mean: Tree, share: float) -> Tree:
        """Update the mean of all z_k; those of clients that did not take part have not moved."""
        theta = add(trained(server["model"]), mean["change"], share)
        return {"model": server["model"] | theta | mean["statistics"]}

    def shift(self, client: Tree, message: Tree) -> Shift:
        """Return the gradient of 1/(2s) ‖· − (2θ − z_k)‖²."""
        return proximal(1 / self.s, tree_map(lambda x, z: 2 * x - z, trained(message["model"]), client["z"]))

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make the reflected proximal step, and send z_k's change."""
        client, end = self.local_run(client, message, data, key)
        change = tree_map(lambda u, x: 2 * (u - x), trained(end.params), trained(message["model"]))
        reply = self.reply(end)
        sent = {"change": change, "statistics": untrained(reply["model"]), "loss": reply["loss"]}
        return client | {"z": add(client["z"], change)}, sent
