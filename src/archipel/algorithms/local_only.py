"""Training alone: the baseline that a personalised method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.shared_model import LOCAL
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning.client_models import at_rest, continued
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class Local(Algorithm):
    """Every client trains its own model on its own data; nothing is shared.

    Client k minimises f_k(θ_k) by local SGD and continues in each round. All start from one θ^(0), drawn as the shared
    methods draw theirs: with the same seed their limits without a penalty equal this method to the bit. Only the
    training loss, one number, goes to the server.

    Args:
        task: the model and its loss.
        local: the local solver.

    >>> import torch
    >>> from archipel import SGD, Local, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> run = fit(Local(Quadratic(), SGD(lr=0.2, steps=5, batch=None)), quadratic_federation(A, a), rounds=40)
    >>> [round(client["model"]["theta"].item(), 6) for client in run.clients]
    [0.0, 1.0]
    """

    task: Task
    local: SGD = LOCAL

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"start": self.task.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        start = message["server"]["start"]
        return at_rest(self.local, {"model": start}, start)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        mean = clients.mean(self.train, {"lr": self.local.rate(clients.round, clients.rounds)}, key)
        return server, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD from the client's own model."""
        client, end = continued(self.local, self.task.loss, client, data, key, message["lr"])
        return client, {"loss": end.loss}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(client["model"], x)
