"""The base of methods with a shared model: broadcast it, train it at the clients, average the trained models.

FedAvg is this base as it stands. Other methods change the local objective (``shift``), the server's step (``step``),
what a client keeps (``own_parts``), or the model that a client predicts with (``own_model``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.client_models import at_rest, parted, remember, split
from archipel.learning.sgd import SGD, Loss, Shift, Solution
from archipel.learning.tasks import Supervised, Task

LOCAL = SGD(lr=0.01, steps=10, batch=128, momentum=0.9, schedule="cosine")
"""The local solver of the FedSPM paper's comparison."""
ROUTING = SGD(lr=0.01, steps=15, batch=128, momentum=0.95, schedule="cosine")
"""The solver of that paper's density-ratio block."""
PLAIN = replace(LOCAL, momentum=0.0)
"""The same for methods that read gradients off where local steps end."""


@dataclass(frozen=True, eq=False)
class SharedModel(Algorithm):
    """A model that the server holds under ``"model"`` and averages over the clients who trained it.

    Args:
        task: the model and its loss.
        local: the local solver.
        weights: of the clients in the mean: ``"examples"``, n_k, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.
    """

    task: Task
    local: SGD = LOCAL
    _: KW_ONLY
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    @property
    def own_parts(self) -> Sequence[str] | None:
        """The entries of the model that stay with each client, under ``"head"`` in its state; ``None``: none does."""
        return None

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        if self.own_parts is None:
            return {"model": model}
        shared, head = parted(type(self).__name__, model, self.own_parts)
        return {"model": shared, "head": head}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        mean, share = clients.mean_and_share(self.train, self.broadcast(server, clients), key, self.weights)
        server = server | self.step(server, mean, share)
        return server | {"model": self.refreshed(server["model"], clients, key)}, {"loss": mean["loss"]}

    def broadcast(self, server: Tree, clients: Clients) -> Tree:
        """Return the message to the clients: the model and the round's learning rate."""
        sent = batch_norm.broadcast(self.batch_norm, server["model"])
        return {"model": sent, "lr": self.local.rate(clients.round, clients.rounds)}

    def step(self, server: Tree, mean: Tree, share: float) -> Tree:
        """Return the server's new entries, from the mean reply and the share of all weights that it is made of."""
        return {"model": server["model"] | mean["model"]}

    def refreshed(self, model: Tree, clients: Clients, key: Tensor) -> Tree:
        """Return the new shared model; under ``"recompute"`` with recomputed statistics, by one more exchange."""
        if self.batch_norm != "recompute" or "buffers" not in model:
            return model
        key = keys.fold(key, "statistics")
        return model | {"buffers": clients.mean(self.statistics, {"model": model}, key, self.weights)}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        shared, head = message["server"]["model"], message["server"].get("head", {})
        client = batch_norm.keep(self.batch_norm, {"head": head} if head else {}, shared)
        return at_rest(self.local, client, shared | head)

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run local SGD from the shared model."""
        client, end = self.local_run(client, message, data, key)
        return client, self.reply(end)

    def local_run(
        self, client: Tree, message: Tree, data: ClientData, key: Tensor, loss: Loss | None = None
    ) -> tuple[Tree, Solution]:
        """Minimise the local objective from the message's model: the client's new state, and where the run ended.

        Args:
            client: its state.
            message: the server's, with ``"model"`` and ``"lr"``.
            data: whose training examples are used.
            key: of the minibatches.
            loss: of an example; default: the task's.
        """
        end = self.local.minimise(
            loss or self.task.loss,
            self.complete(message["model"], client),
            data.train,
            key,
            message["lr"],
            client.get("velocity"),
            self.shift(client, message),
        )
        return self.keep(client, end), end

    def shift(self, client: Tree, message: Tree) -> Shift | None:
        """Return what the method adds to the gradient of f_k at each local step; by default nothing."""
        return None

    def complete(self, model: Tree, client: Tree) -> Tree:
        """Return the shared model with the client's own entries, and with its own statistics where they are local."""
        completed: Tree = batch_norm.receive(self.batch_norm, model, client) | client.get("head", {})
        return completed

    def keep(self, client: Tree, end: Solution) -> Tree:
        """Return the client's state after a run: its own entries, local statistics, and momentum where it is kept."""
        if self.own_parts is not None:
            client = client | {"head": client["head"] | split(end.params, self.own_parts)[1]}
        return remember(self.local, batch_norm.keep(self.batch_norm, client, end.params), end.velocity)

    def reply(self, end: Solution) -> Tree:
        """Return what the client sends: the shared entries of the trained model, and the loss."""
        shared, _ = split(end.params, self.own_parts or ())
        return {"model": batch_norm.send(self.batch_norm, shared), "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        model = self.complete(message["model"], client)
        return client, batch_norm.recompute(self.task.loss, self.task, model, data.train)

    # Prediction

    def own_model(self, server: Tree, client: Tree) -> Tree:
        """Return the complete model that the client predicts with."""
        return self.complete(server["model"], client)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.predict_embedded(server, client, self.embed(server, x))

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """Return the features of the encoder that all heads stand on; x itself where there is no such encoder."""
        task = self.task
        return task.embed(server["model"], x) if isinstance(task, Supervised) and self.one_encoder(server) else x

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        task, model = self.task, self.own_model(server, client)
        if isinstance(task, Supervised) and self.one_encoder(server):
            return task.answer(model, embedded)
        return task.predict(model, embedded)

    def one_encoder(self, server: Tree) -> bool:
        """Whether the clients' models differ in their heads alone."""
        model = server["model"]
        apart = batch_norm.is_local(self.batch_norm, model)
        return tuple(self.own_parts or ()) == ("head",) and isinstance(self.task, Supervised) and not apart

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        """Whether clients predict with other models than the shared one: of another kind, or with own statistics."""
        another = type(self).own_model is not SharedModel.own_model
        return another or batch_norm.is_local(self.batch_norm, server["model"])
