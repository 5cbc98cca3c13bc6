"""FedAvgFT. K. Wang, R. Mathews, C. Kiddon, H. Eichner, F. Beaufays, D. Ramage: Federated evaluation of on-device
personalization. arXiv 1910.10252, 2019.
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
from archipel.learning.solver_checks import solver
from archipel.learning.tasks import Task

TUNING = SGD(lr=0.01, epochs=1, batch=128, momentum=0.9)
"""One pass over the client's own data, with the solver of the FedSPM paper's comparison."""


@dataclass(frozen=True, eq=False)
class FedAvgFT(Algorithm):
    """FedAvg, whose shared model every client fine-tunes on its own data before it is used.

    Training is :class:`FedAvg`'s to the bit, θ^(t+1) = Σ_{i∈S} n_i θ_i^(t+1) / Σ_{i∈S} n_i. For an evaluation client i
    goes on from the shared model by local SGD on f_i, and is measured before it and after it. What comes of it is used
    once and never kept, so that how often there is an evaluation changes nothing. With a tuning rate of 0 all is
    FedAvg's.

    Args:
        task: the model and its loss.
        local: the local solver in training.
        tuning: the solver before evaluation; default: one epoch. Its rate is constant: there are no rounds in it.
        weights: ``"examples"`` as FedAvg's paper has it, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``. Tuning moves
            them on from where they are, as all training does.

    Raises:
        TypeError: ``tuning`` is no solver.
        ValueError: a tuning solver with a schedule or with momentum that is kept.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> tuning = SGD(lr=0.5, epochs=10, batch=5)
    >>> run = fit(FedAvgFT(task, SGD(lr=0.1, epochs=1, batch=5), tuning), opposite, rounds=3)
    >>> run.metrics["average_accuracy"] > 0.8 > run.metrics["average_before_accuracy"]
    True
    """

    task: Task
    local: SGD
    tuning: SGD = TUNING
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        check_tuning("FedAvgFT", self.tuning)

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

    def adapt(self, server: Tree, client: Tree, data: ClientData, key: Tensor) -> Tree:
        """The client with a model of its own, tuned from the shared one."""
        start = batchnorm.receive(self.batch_norm, server["model"], client)
        end = self.tuning.minimise(self.task.loss, start, data.train, key, self.tuning.rate(0, 1))
        return client | {"tuned": end.params}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        if "tuned" in client:
            return self.task.predict(client["tuned"], x)
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        """By the shared model, which nobody has tuned."""
        return self.task.predict(server["model"], x)


def check_tuning(owner: str, tuning: SGD) -> None:
    """Raises TypeError for what is no solver, ValueError for one that reaches beyond one run.

    >>> check_tuning("FedAvgFT", SGD(epochs=1, schedule="cosine"))
    Traceback (most recent call last):
    ValueError: FedAvgFT's tuning is one run outside of all rounds: give it schedule='constant' and keep_momentum=False.
    """
    solver(owner, tuning=tuning)
    if tuning.schedule != "constant" or tuning.keep_momentum:
        raise ValueError(
            f"{owner}'s tuning is one run outside of all rounds: give it schedule='constant' and keep_momentum=False."
        )
