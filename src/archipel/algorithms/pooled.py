"""Training on all data at one place: the yardstick for what a federation costs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.shared_model import LOCAL
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, tree_map
from archipel.learning.client_models import at_rest, remember
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Task

log = logging.getLogger("archipel")


@dataclass(frozen=True, eq=False)
class Pooled(Algorithm):
    """All clients send their training examples to the server, which trains one model on them.

    It minimises Σ_k (n_k/n) f_k(θ), the mean loss over all n examples, by SGD on minibatches of the pool. Before the
    first round each client sends its examples, once: that is the whole uplink, it is counted in the first round, and
    nothing is exchanged afterwards, so that neither cohorts nor lost replies matter. **No privacy is left**: the server
    holds the examples, and so do its checkpoints. It is a yardstick for methods that leave data where they are, not a
    method for data that may not leave.

    With full batches the model doesn't depend on how the examples are divided over clients; with minibatches it depends
    on it as on a seed.

    Args:
        task: the model and its loss.
        local: the server's solver; a round is its ``steps`` or ``epochs`` on the pool, to be compared with the number
            of steps that a client makes, or with that of all clients together.

    >>> import torch
    >>> from archipel import SGD, Pooled, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> run = fit(Pooled(Quadratic(), SGD(lr=0.2, steps=5, batch=None)), quadratic_federation(A, a), rounds=10)
    >>> run.server["model"]["theta"]  # (1·0 + 4·1) / (1 + 4)
    tensor([0.8000], dtype=torch.float64)
    >>> [record["uplink"] for record in run.history[:3]]  # two quadratics of two numbers of eight bytes
    [32, 0, 0]
    """

    task: Task
    local: SGD = LOCAL

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        log.warning(
            "Pooled collects all training examples at the server, %d of %d clients, and its checkpoints hold them.",
            int(clients.sizes.sum()),
            clients.population,
        )
        model = self.task.init(key)
        # In an order that doesn't tell whose an example is.
        order = keys.permutation(keys.fold(key, "pool"), int(clients.sizes.sum()))
        examples = tree_map(lambda t: t[order], self.pool(clients, key))
        return at_rest(self.local, {"model": model, "examples": examples}, model)

    def pool(self, clients: Clients, key: Tensor) -> Tree:
        """All training examples, client by client, since replies to one step have one shape."""
        given = []
        for client, size in enumerate(clients.sizes.tolist()):
            asked = clients.everyone.only(torch.tensor([client]))
            given.append(asked.collect(self.give, {"rows": torch.arange(size)}, key).value)
        return tree_map(lambda *columns: torch.cat([column[0] for column in columns]), given[0], *given[1:])

    def give(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the client's examples as they are."""
        # Engines may try a step on a smaller client than it is meant for, which has no rows beyond its last.
        return client, data.train.take(torch.minimum(message["rows"], data.train.count - 1))

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        rate = self.local.rate(clients.round, clients.rounds)
        pool = Examples.of(server["examples"])
        end = self.local.minimise(self.task.loss, server["model"], pool, key, rate, server.get("velocity"))
        return remember(self.local, server | {"model": end.params}, end.velocity), {"loss": end.loss}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return False
