"""FedBABU. J. Oh, S. Kim, S.-Y. Yun: FedBABU: toward enhanced representation for federated image classification. ICLR
2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.fedavgft import TUNING, check_tuning
from archipel.algorithms.fedper import parted, with_head
from archipel.algorithms.fedrep import beside
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
class FedBABU(Algorithm):
    """A shared body trained under a head that never moves, and a head fine-tuned by every client in the end.

    All clients share one random head v⁰. In a round client k makes local SGD on the body alone, w_k ← w_k − η ∇_w
    f_k(w_k, v⁰), and the server averages, w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k (Algorithm 1). So the bodies learn to serve
    the same head and can be averaged without what clients' heads would pull apart. Before it is used, a client tunes
    the head on its own data, v_k ← v_k − η ∇_v f_k(w, v_k) from v⁰ with w fixed, or both parts together.

    Only the body travels: the head is given out once, at enrolment, and it is the same bits at every client for ever.
    The tuned one is used once and not kept.

    Args:
        task: the model and its loss.
        local: solver of the body.
        tuning: the solver before evaluation; default: one epoch. Its rate is constant: there are no rounds in it.
        tune: what is tuned: ``"head"``, or ``"all"``.
        frozen: the entries of the task's parameters that are the head.
        weights: ``"examples"`` as in the paper, or ``"uniform"``.
        batch_norm: what becomes of the statistics of the body's BatchNorm: ``"share"``, ``"local"`` or ``"recompute"``,
            as for FedPer. They are no parameters: tuning moves them on, whatever it tunes.

    Raises:
        TypeError: ``tuning`` is no solver, or ``frozen`` is one name instead of a list.
        ValueError: ``tune`` is anything else; ``frozen`` isn't part of the task's parameters, or all of them; a tuning
            solver with a schedule or with momentum that is kept.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> tuning = SGD(lr=0.5, epochs=10, batch=5)
    >>> run = fit(FedBABU(task, SGD(lr=0.1, epochs=1, batch=5), tuning), opposite, rounds=3)
    >>> run.metrics["average_accuracy"] > 0.8 > run.metrics["average_before_accuracy"]
    True
    """

    task: Task
    local: SGD
    tuning: SGD = TUNING
    tune: Literal["head", "all"] = "head"
    frozen: Sequence[str] = ("head",)
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        check_tuning("FedBABU", self.tuning)
        checks.one_of("FedBABU", "tune", self.tune, "head", "all")
        checks.names("FedBABU", frozen=self.frozen)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        body, head = parted("FedBABU's frozen", self.task.init(key), self.frozen)
        return {"model": body, "head": head}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        body, head = message["server"]["model"], message["server"]["head"]
        client = batchnorm.keep(self.batch_norm, {"head": head}, body)
        return averaging.remember(self.local, client, zeros_like(trained(body)))

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return server | {"model": model}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD on the body under the common head."""
        body = batchnorm.receive(self.batch_norm, message["model"], client)
        loss = beside(self.task.loss, client["head"])
        end = self.local.minimise(loss, body, data.train, key, message["lr"], client.get("velocity"))
        client = averaging.remember(self.local, batchnorm.keep(self.batch_norm, client, end.params), end.velocity)
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged body on the client's training data."""
        model = with_head(message, client)["model"]
        return client, batchnorm.recompute(self.task.loss, self.task, model, data.train)

    def adapt(self, server: Tree, client: Tree, data: ClientData, key: Tensor) -> Tree:
        """The client with a model of its own, tuned from the shared body and the common head."""
        model = self._before(server, client)
        kept = [name for name in trained(model) if self.tune == "head" and name not in self.frozen]
        loss = beside(self.task.loss, {name: model[name] for name in kept})
        moving = {name: part for name, part in model.items() if name not in kept}
        end = self.tuning.minimise(loss, moving, data.train, key, self.tuning.rate(0, 1))
        return client | {"tuned": model | end.params}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.predict_embedded(server, client, self.embed(server, x))

    def embed(self, server: Tree, x: Tensor) -> Tensor:
        return embedding.embed(self.task, server["model"], x, self._shares(server))

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tensor) -> Tensor:
        model = client["tuned"] if "tuned" in client else self._before(server, client)
        return embedding.answer(self.task, model, embedded, self._shares(server))

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        """By the shared body and the common head, which nobody has tuned."""
        return self.task.predict(server["model"] | server["head"], x)

    def _shares(self, server: Tree) -> bool:
        """Whether the body is the same at all clients after tuning: statistics move on, whatever is tuned."""
        moving = self.tune == "all" or "buffers" in server["model"]
        return not moving and embedding.is_shared(self.task, server["model"])

    def _before(self, server: Tree, client: Tree) -> Tree:
        """The client's model before tuning."""
        before: Tree = batchnorm.receive(self.batch_norm, server["model"], client) | client["head"]
        return before
