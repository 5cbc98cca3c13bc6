"""FedRep.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting shared representations for personalized federated
learning. ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Clients
from archipel.algorithms.parts.shared_model import LOCAL, SharedModel
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm
from archipel.learning.client_models import at_rest, beside, remember
from archipel.learning.sgd import SGD, trained, untrained


@dataclass(frozen=True, eq=False)
class FedRep(SharedModel):
    """A shared body under local heads, trained alternately: the head for the body, then the body for the head.

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
            as for FedPer. Both runs update them, since they are not parameters.

    Raises:
        TypeError: ``head`` is no solver, or ``personal`` is one name instead of a list.
        ValueError: ``personal`` isn't part of the task's parameters, or all of them.

    >>> import torch
    >>> from archipel import SGD, FedRep, Federation, classification, fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> rep = FedRep(task, local=SGD(lr=0.5, epochs=1, batch=5), head=SGD(lr=0.5, epochs=2, batch=5))
    >>> fit(rep, opposite, rounds=10).metrics["average_accuracy"] > 0.8  # no common model can be better than 1/2
    True
    """

    head: SGD = LOCAL
    personal: Sequence[str] = ("head",)

    predict_global = None  # type: ignore[assignment]  # no model is everybody's

    @property
    def own_parts(self) -> Sequence[str]:
        return self.personal

    def broadcast(self, server: Tree, clients: Clients) -> Tree:
        return super().broadcast(server, clients) | {"head_lr": self.head.rate(clients.round, clients.rounds)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = super().init_client(message, data, key)
        client = at_rest(self.local, client, message["server"]["model"])
        return at_rest(self.head, client, client["head"], "head_velocity")

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Train the head on the body as it was sent, then the body under the new head; send the body."""
        body = batch_norm.receive(self.batch_norm, message["model"], client)
        head = self.head.minimise(
            beside(self.task.loss, trained(body)),
            client["head"] | untrained(body),
            data.train,
            keys.fold(key, "head"),
            message["head_lr"],
            client.get("head_velocity"),
        )
        client = remember(self.head, client | {"head": trained(head.params)}, head.velocity, "head_velocity")
        end = self.local.minimise(
            beside(self.task.loss, client["head"]),
            body | untrained(head.params),
            data.train,
            key,
            message["lr"],
            client.get("velocity"),
        )
        return self.keep(client, end), self.reply(end)
