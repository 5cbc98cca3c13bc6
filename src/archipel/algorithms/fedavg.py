"""FedAvg. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning of deep
networks from decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedAvg(Algorithm):
    """Federated averaging: every client runs local SGD from the shared model, the server averages where they end.

    θ^(t+1) = Σ_{i∈S} n_i θ_i^(t+1) / Σ_{i∈S} n_i, with θ_i^(t+1) the end of client i's local run from θ^(t)
    (Algorithm 1 of the paper), n_i the training examples it holds and S those who answered.

    Args:
        task: the model and its loss.
        local: the local solver.
        weights: ``"examples"`` as in the paper, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> halves = [(x[:20], (x[:20, 0] > 0).long()), (x[20:], (x[20:, 0] > 0).long())]
    >>> islands = Federation.from_arrays(halves)
    >>> task = classification(torch.nn.Linear(3, 4), islands)
    >>> run = fit(FedAvg(task, SGD(lr=0.5, epochs=2, batch=5)), islands, rounds=5)
    >>> run.metrics["system_accuracy"] > 0.8
    True
    """

    task: Task
    local: SGD
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
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
        """Local SGD from the shared model."""
        client, end = averaging.train(self, client, message, data, key)
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
