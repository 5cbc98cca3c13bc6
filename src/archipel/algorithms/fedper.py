"""FedPer. M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated learning with personalization layers.
arXiv 1912.00818, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import embedding
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, trained
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedPer(Algorithm):
    """A body that all share under heads that stay with their clients.

    The objective is Σ_k ρ_k f_k(w, v_k) over one body w and a head v_k a client. Client k runs local SGD on both from
    (w, v_k) (Algorithm 1), keeps its head, and the server averages the bodies: w ← Σ_{k∈S} ρ_k w_k / Σ_{k∈S} ρ_k. All
    heads start from one. With one full-batch step a round and everybody it is gradient descent on the objective.

    A head never leaves its client: neither does its gradient, its velocity, or a difference of it.

    Args:
        task: the model and its loss.
        local: the local solver.
        personal: the entries of the task's parameters that stay with the client; ``"head"`` as in the paper, where it
            holds the last layers.
        weights: ρ_k: ``"examples"``, n_k/n, as in the paper, or ``"uniform"``.
        batch_norm: what becomes of the statistics of the body's BatchNorm: ``"share"``: they are averaged with the
            body, ``"local"``: they stay with the head, or ``"recompute"``: the averaged body's are taken anew.

    Raises:
        TypeError: ``personal`` is one name instead of a list.
        ValueError: ``personal`` isn't part of the task's parameters, or all of them.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> run = fit(FedPer(task, SGD(lr=0.5, epochs=2, batch=5)), opposite, rounds=10)
    >>> run.metrics["average_accuracy"] > 0.8  # no common model can be better than 1/2
    True
    """

    task: Task
    local: SGD
    personal: Sequence[str] = ("head",)
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        checks.names("FedPer", personal=self.personal)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        shared, head = parted("FedPer's personal", self.task.init(key), self.personal)
        return {"model": shared, "head": head}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        shared, head = message["server"]["model"], message["server"]["head"]
        client = batchnorm.keep(self.batch_norm, {"head": head}, shared)
        return averaging.remember(self.local, client, zeros_like(trained(shared | head)))

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return server | {"model": model}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD on the shared body and the client's head."""
        client, end = averaging.train(self, client, with_head(message, client), data, key)
        shared, head = split(end.params, self.personal)
        return client | {"head": head}, {"model": batchnorm.send(self.batch_norm, shared), "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged body on the client's training data."""
        model = with_head(message, client)["model"]
        return client, batchnorm.recompute(self.task.loss, self.task, model, data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.predict_embedded(server, client, self.embed(server, x))

    def embed(self, server: Tree, x: Tensor) -> Tensor:
        return embedding.embed_body(self, server, x)

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tensor) -> Tensor:
        return embedding.answer_head(self, server, client, embedded)


def split(model: Tree, personal: Sequence[str]) -> tuple[Tree, Tree]:
    """What is shared, buffers included, and what is personal."""
    shared = {name: part for name, part in model.items() if name not in personal}
    return shared, {name: part for name, part in model.items() if name in personal}


def parted(setting: str, model: Tree, names: Sequence[str]) -> tuple[Tree, Tree]:
    """The same, if the names are some of the trained parameters and not all.

    Raises:
        ValueError: they aren't part of the model's parameters, or all of them.

    >>> import torch
    >>> body, head = parted("FedRep's personal", {"encoder": torch.ones(2), "head": torch.zeros(1)}, ["head"])
    >>> list(body), list(head)
    (['encoder'], ['head'])
    """
    known = list(trained(model))
    if not 0 < len(set(names)) < len(known) or not set(names) <= set(known):
        raise ValueError(
            f"{setting} must name some of the task's parameters, {', '.join(known)}, and leave some to share; given "
            f"{', '.join(names) or 'none'}. FedAvg shares all, Local none."
        )
    return split(model, names)


def with_head(message: Tree, client: Tree) -> Tree:
    """The message, its model completed by the client's own head."""
    completed: Tree = message | {"model": message["model"] | client["head"]}
    return completed
