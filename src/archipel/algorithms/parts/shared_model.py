"""What methods with a shared model have in common: sending it, training it at a client, and BatchNorm's statistics.

FedAvg, FedProx, FedDyn and others differ in what a client minimises and in what the server does with the answers. The
rest is here, as functions of the algorithm.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from archipel.algorithm import Clients, Weights
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, Shift, Solution, trained
from archipel.learning.tasks import Task


class SharesAModel(Protocol):
    """An algorithm as the functions here see it."""

    @property
    def task(self) -> Task: ...

    @property
    def local(self) -> SGD: ...

    @property
    def weights(self) -> Weights: ...

    @property
    def batch_norm(self) -> BatchNorm: ...

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """A step: BatchNorm's statistics of ``message["model"]`` on the client's training data."""


def enrol(algorithm: SharesAModel, model: Tree) -> Tree:
    """What a client keeps for the shared model's sake: statistics where they are local, momentum where it is kept."""
    return remember(algorithm.local, batchnorm.keep(algorithm.batch_norm, {}, model), zeros_like(trained(model)))


def remember(local: SGD, client: Tree, velocity: Tree) -> Tree:
    """The client's state with the velocity, for solvers that keep it between rounds."""
    return client | {"velocity": velocity} if local.keep_momentum else client


def broadcast(algorithm: SharesAModel, model: Tree, clients: Clients) -> Tree:
    """The message: the model and the round's learning rate."""
    sent = batchnorm.broadcast(algorithm.batch_norm, model)
    return {"model": sent, "lr": algorithm.local.rate(clients.round, clients.rounds)}


def train(
    algorithm: SharesAModel, client: Tree, message: Tree, data: ClientData, key: Tensor, shift: Shift | None = None
) -> tuple[Tree, Solution]:
    """A local run from the message's model: the client's new state, and where the run ended."""
    start = batchnorm.receive(algorithm.batch_norm, message["model"], client)
    end = algorithm.local.minimise(
        algorithm.task.loss, start, data.train, key, message["lr"], client.get("velocity"), shift
    )
    client = batchnorm.keep(algorithm.batch_norm, client, end.params)
    return remember(algorithm.local, client, end.velocity), end


def refreshed(algorithm: SharesAModel, model: Tree, clients: Clients, key: Tensor) -> Tree:
    """The new shared model; under ``"recompute"`` with statistics of its own, which costs one more exchange."""
    if algorithm.batch_norm != "recompute" or "buffers" not in model:
        return model
    key = keys.fold(key, "statistics")
    return model | {"buffers": clients.mean(algorithm.statistics, {"model": model}, key, algorithm.weights)}
