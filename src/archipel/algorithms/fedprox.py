"""FedProx. T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in heterogeneous
networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, proximal
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedProx(Algorithm):
    """Federated averaging whose clients are held near the shared model by a proximal term.

    Client k minimises f_k(θ_k) + μ/2 ‖θ_k − θ^(t)‖² from θ^(t) by local SGD (the paper's eq. 2 and Algorithm 2), with
    steps θ_k ← θ_k − η (∇f_k(θ_k) + μ (θ_k − θ^(t))), and the server averages where they end:
    θ^(t+1) = Σ_{k∈S} n_k θ_k / Σ_{k∈S} n_k. With μ = 0 it is FedAvg, to the bit. Solved exactly, a round is
    θ ← mean of prox_{f_k/μ}(θ), whose fixed point minimises the sum of the f_k's Moreau envelopes.

    Args:
        task: the model and its loss.
        local: the local solver; for an exact solve give it ``batch=None``, a ``tolerance`` and steps enough.
        penalty: μ, 0 or above.
        weights: ``"examples"``, or ``"uniform"`` as in the paper, which draws the cohort by n_k instead.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a penalty below 0.

    >>> import torch
    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> prox = FedProx(Quadratic(), SGD(lr=0.2, steps=15, batch=None), penalty=2.0)
    >>> fit(prox, quadratic_federation(A, a), rounds=30).server["model"]["theta"]
    tensor([0.6667], dtype=torch.float64)
    """

    task: Task
    local: SGD
    penalty: float = 0.1
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        checks.at_least_zero("FedProx", penalty=self.penalty)
        batchnorm.check(self.batch_norm)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"model": self.task.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return averaging.enrol(self, message["server"]["model"])

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return {"model": model}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD on f_k + μ/2 ‖· − θ^(t)‖² from θ^(t)."""
        pull = proximal(self.penalty, message["model"]) if self.penalty else None
        client, end = averaging.train(self, client, message, data, key, pull)
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return batchnorm.is_local(self.batch_norm, server["model"])
