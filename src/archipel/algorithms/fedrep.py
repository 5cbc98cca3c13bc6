"""FedRep. L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting shared representations for personalized
federated learning. ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.fedper import parted, with_head
from archipel.algorithms.parts import embedding
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks, keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, Batch, Loss, trained
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedRep(Algorithm):
    """A shared body under local heads, trained in turns: the head to the body it is given, then the body to the head.

    The objective is that of :class:`FedPer`, Σ_k ρ_k f_k(w, v_k) over one body w and a head v_k a client. In a round
    client k (Algorithm 1)

        v_k ← v_k − η ∇_v f_k(w, v_k), τ steps from the head it kept, with the body w as it was sent;
        w_k ← w − η ∇_w f_k(w, v_k), from w, with the new head;

    and the server averages the bodies: w ← Σ_{k∈S} ρ_k w_k / Σ_{k∈S} ρ_k. The two runs draw minibatches of their own.
    A head never leaves its client.

    Args:
        task: the model and its loss.
        local: solver of the body; the paper makes one step or one epoch.
        head: solver of the heads; the paper makes several, τ.
        personal: the entries of the task's parameters that stay with the client.
        weights: ρ_k: ``"examples"``, n_k/n, or ``"uniform"`` as in the paper, whose clients hold equally much.
        batch_norm: what becomes of the statistics of the body's BatchNorm: ``"share"``, ``"local"`` or ``"recompute"``,
            as for FedPer. They are no parameters: both runs move them on.

    Raises:
        TypeError: ``head`` is no solver, or ``personal`` is one name instead of a list.
        ValueError: ``personal`` isn't part of the task's parameters, or all of them.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> rep = FedRep(task, local=SGD(lr=0.5, epochs=1, batch=5), head=SGD(lr=0.5, epochs=2, batch=5))
    >>> fit(rep, opposite, rounds=10).metrics["average_accuracy"] > 0.8  # no common model can be better than 1/2
    True
    """

    task: Task
    local: SGD
    head: SGD
    personal: Sequence[str] = ("head",)
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        checks.names("FedRep", personal=self.personal)
        if not isinstance(self.head, SGD):
            raise TypeError(
                f"FedRep's head is the solver of the heads, an SGD(…); given {checks.kind_of(self.head)}. Which "
                "parameters are the head is said by personal."
            )

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        shared, head = parted("FedRep's personal", self.task.init(key), self.personal)
        return {"model": shared, "head": head}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        body, head = message["server"]["model"], message["server"]["head"]
        client = batchnorm.keep(self.batch_norm, {"head": head}, body)
        return self._remember(client, zeros_like(trained(body)), zeros_like(head))

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        message["head_lr"] = self.head.rate(clients.round, clients.rounds)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return server | {"model": model}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The head's run under the body as it was sent, then the body's under the new head; the body is sent."""
        body = batchnorm.receive(self.batch_norm, message["model"], client)
        head = self.head.minimise(
            beside(self.task.loss, trained(body)),
            client["head"] | statistics_of(body),
            data.train,
            keys.fold(key, "head"),
            message["head_lr"],
            client.get("head_velocity"),
        )
        end = self.local.minimise(
            beside(self.task.loss, trained(head.params)),
            body | statistics_of(head.params),
            data.train,
            key,
            message["lr"],
            client.get("velocity"),
        )
        client = batchnorm.keep(self.batch_norm, client | {"head": trained(head.params)}, end.params)
        client = self._remember(client, end.velocity, head.velocity)
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}

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

    def _remember(self, client: Tree, body: Tree, head: Tree) -> Tree:
        """The client's state with the velocities of those solvers that keep theirs."""
        client = averaging.remember(self.local, client, body)
        return client | {"head_velocity": head} if self.head.keep_momentum else client


def beside(loss: Loss, fixed: Tree) -> Loss:
    """The loss as a function of the other parameters alone, with ``fixed`` held where they are."""

    def partial(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return loss(params | fixed, batch)

    return partial


def statistics_of(model: Tree) -> Tree:
    """``{"buffers": …}`` where the model has some, else nothing."""
    return {name: part for name, part in model.items() if name == "buffers"}
