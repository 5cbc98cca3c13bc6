"""FedSplit. R. Pathak, M. J. Wainwright: FedSplit: an algorithmic framework for fast federated optimization. NeurIPS
2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, tree_map
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, proximal, trained
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedSplit(Algorithm):
    """One model for everybody by Peaceman and Rachford's splitting: proximal steps whose fixed point is the optimum.

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
    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> split = FedSplit(Quadratic(), SGD(lr=0.2, steps=20, batch=None), s=0.5)
    >>> fit(split, quadratic_federation(A, a), rounds=40).server["model"]["theta"]
    tensor([0.8000], dtype=torch.float64)
    """

    task: Task
    local: SGD
    s: float = 1.0
    weights: Weights = "uniform"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        checks.above_zero("FedSplit", s=self.s)
        batchnorm.check(self.batch_norm)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"model": self.task.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        return averaging.enrol(self, model) | {"z": trained(model)}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean, share = clients.mean_and_share(self.split, message, key, self.weights)
        theta = add(trained(server["model"]), mean["change"], share)
        model = averaging.refreshed(self, server["model"] | theta | mean["statistics"], clients, key)
        return {"model": model}, {"loss": mean["loss"]}

    def split(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The reflected proximal step; z_k's change goes to the server."""
        theta = trained(message["model"])
        centre = tree_map(lambda x, z: 2 * x - z, theta, client["z"])
        client, end = averaging.train(self, client, message, data, key, proximal(1 / self.s, centre))
        change = tree_map(lambda u, x: 2 * (u - x), trained(end.params), theta)
        client = client | {"z": add(client["z"], change)}
        statistics = {name: t for name, t in batchnorm.send(self.batch_norm, end.params).items() if name == "buffers"}
        return client, {"change": change, "statistics": statistics, "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the shared model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return batchnorm.is_local(self.batch_norm, server["model"])
