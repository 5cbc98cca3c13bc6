"""FedBABU.

J. Oh, S. Kim, S.-Y. Yun: FedBABU: toward enhanced representation for federated image classification. ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from archipel.algorithms.fedavgft import FedAvgFT
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm
from archipel.learning.client_models import at_rest, beside
from archipel.learning.sgd import Loss, Solution, trained


@dataclass(frozen=True, eq=False)
class FedBABU(FedAvgFT):
    """A shared body trained under a fixed random head, which each client tunes after training.

    All clients share one random head v⁰. In a round client k makes local SGD on the body alone, w_k ← w_k − η ∇_w
    f_k(w_k, v⁰), and the server averages, w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k (Algorithm 1). So the bodies learn to serve
    the same head and can be averaged without what clients' heads would pull apart. Before it is used, a client tunes
    the head on its own data, v_k ← v_k − η ∇_v f_k(w, v_k) from v⁰ with w fixed, or both parts together.

    Only the body is sent. Clients get the head once, at enrolment, and it never changes.
    Training never sees the tuned heads; after the last round every client keeps its own and predicts with it.

    Args:
        task: the model and its loss.
        local: solver of the body.
        tuning: the solver before evaluation; default: one epoch. Its rate is constant: there are no rounds in it.
        tune: what is tuned: ``"head"``, or ``"all"``.
        frozen: the entries of the task's parameters that are the head.
        weights: ``"examples"`` as in the paper, or ``"uniform"``.
        batch_norm: what becomes of the statistics of the body's BatchNorm: ``"share"``, ``"local"`` or ``"recompute"``,
            as for FedPer. Tuning updates them, whatever it tunes, since they are not parameters.

    Raises:
        TypeError: ``tuning`` is no solver, or ``frozen`` is one name instead of a list.
        ValueError: ``tune`` is anything else; ``frozen`` isn't part of the task's parameters, or all of them; a tuning
            solver with a schedule or with momentum that is kept.

    >>> import torch
    >>> from archipel import SGD, FedBABU, Federation, classification, fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> tuning = SGD(lr=0.5, epochs=10, batch=5)
    >>> run = fit(FedBABU(task, SGD(lr=0.1, epochs=1, batch=5), tuning), opposite, rounds=3)
    >>> run.metrics["average_accuracy"] > 0.8 > run.metrics["average_before_accuracy"]
    True
    """

    tune: Literal["head", "all"] = "head"
    frozen: Sequence[str] = ("head",)

    @property
    def own_parts(self) -> Sequence[str]:
        return self.frozen

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return at_rest(self.local, super().init_client(message, data, key), message["server"]["model"])

    def local_run(
        self, client: Tree, message: Tree, data: ClientData, key: Tensor, loss: Loss | None = None
    ) -> tuple[Tree, Solution]:
        """Minimise over the body alone, under the common head."""
        body = batch_norm.receive(self.batch_norm, message["model"], client)
        under_head = beside(self.task.loss, client["head"])
        end = self.local.minimise(under_head, body, data.train, key, message["lr"], client.get("velocity"))
        return self.keep(client, end), end

    def adapt(self, server: Tree, client: Tree, data: ClientData, key: Tensor) -> Tree:
        """Tune a model of the client's own from the shared body and the common head."""
        model = self.complete(server["model"], client)
        fixed = [name for name in trained(model) if self.tune == "head" and name not in self.frozen]
        loss = beside(self.task.loss, {name: model[name] for name in fixed})
        moving = {name: part for name, part in model.items() if name not in fixed}
        end = self.tuning.minimise(loss, moving, data.train, key, self.tuning.rate(0, 1))
        return client | {"tuned": model | end.params}

    def one_encoder(self, server: Tree) -> bool:
        """Whether tuning leaves the encoder as it is: statistics move on, whatever is tuned."""
        return self.tune == "head" and "buffers" not in server["model"] and super().one_encoder(server)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        """By the shared body and the common head, which nobody has tuned."""
        return self.task.predict(server["model"] | server["head"], x)
