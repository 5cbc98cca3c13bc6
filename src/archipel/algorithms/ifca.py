"""IFCA: clients choose one of C models, and train it.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran: An efficient framework for clustered federated learning. NeurIPS 2020. The
FedSPM paper lists it as ClusterFL. See docs/methods/mixtures.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info, NoReplyError
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core import keys
from archipel.core.checks import PositiveInt
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, leaves, stack, tree_map
from archipel.learning.client_models import at_rest
from archipel.learning.sgd import trained
from archipel.learning.tasks import risk


@dataclass(frozen=True, eq=False)
class IFCA(SharedModel):
    """Clustered federated averaging: each client trains the one of C models that fits its data best.

    A round is Algorithm 1 with model averaging (option II): client i estimates its cluster on all of its training data,

        c_i = argmin_c f_i(θ_c), the lowest c of equals,

    runs local SGD on f_i from θ_{c_i}, and the server averages each cluster over those who chose it,
    θ_c ← Σ_{i∈S: c_i=c} n_i θ_i / Σ_{i∈S: c_i=c} n_i. A cluster that nobody chose, or none of whose members' replies
    could be used, keeps its model. With C = 1 it is :class:`FedAvg` to the bit.

    A client is sent the C models once a round, and sends the number c_i and one model. It predicts by the model it
    chose in the last round in which it took part; at first it chooses among the models as they were drawn.

    **The start matters.** The models are drawn from different keys, and only the first choice among random models
    separates the clients. While every client prefers one model, the others aren't trained and IFCA is FedAvg. That
    never ends if the common model stays better for all clients than an untrained one. The paper restarts from several
    draws (use another ``seed``); ``clusters`` in the history counts the members in each round.

    Args:
        task: the model and its loss.
        local: the local solver. Momentum that is kept starts anew at a client that has changed its cluster.
        clusters: C, at least 1; 3 in the FedSPM paper's comparison.
        weights: ``"examples"``, n_i, or ``"uniform"`` as in the paper, whose clients hold equally much.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"`` or ``"recompute"``, by each cluster for itself.
            Local ones are not offered: a client would bring one model's statistics to another.

    Raises:
        ValueError: C below 1; another policy; at the start, a task that draws the same model from every key.

    >>> import torch
    >>> from archipel import IFCA, SGD, Federation, classification, fit
    >>> x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:30], y[:30]), (x[30:60], 1 - y[30:60]), (x[60:], y[60:])])
    >>> task = classification(torch.nn.Identity(), opposite)
    >>> run = fit(IFCA(task, SGD(lr=0.5, epochs=2, batch=5), clusters=2), opposite, rounds=10)
    >>> first, second, third = (int(client["cluster"]) for client in run.clients)
    >>> first == third != second, run.metrics["average_accuracy"] > 0.9
    (True, True)
    """

    clusters: PositiveInt = 3
    _: KW_ONLY
    batch_norm: Literal["share", "recompute"] = "share"

    predict_global = None  # type: ignore[assignment]  # there are C models

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        # The first is drawn as FedAvg draws its model.
        models = [self.task.init(keys.fold(key, c) if c else key) for c in range(self.clusters)]
        if self.clusters > 1 and all(equal(models[0], other) for other in models[1:]):
            raise ValueError(
                "IFCA's clusters must start from different models, or all clients choose the first for ever; this "
                "task draws the same from every key. Let it draw weights afresh (initial='keyed'), or take clusters=1."
            )
        return {"models": {str(c): model for c, model in enumerate(models)}}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        models = dict(server["models"])
        chosen = clients.collect(self.choose, {"models": server["models"]}, key)
        members = {name: chosen.ids[chosen.value == int(name)] for name in models}
        loss, total, failure = 0.0, 0.0, None
        for name, ids in members.items():
            if not len(ids):
                continue
            try:
                models[name], mean, share = self._averaged(models[name], clients.only(ids), key)
            except NoReplyError as error:
                failure = error
                continue
            loss, total = loss + share * float(mean), total + share
        if failure and not total:
            raise failure
        counts = [len(ids) for ids in members.values()]
        return {"models": models}, {"loss": loss / total, "clusters": counts}

    def _averaged(self, model: Tree, members: Clients, key: Tensor) -> tuple[Tree, Tensor, float]:
        """Return a cluster's new model, its members' mean loss, and their share of all weight."""
        message = self.broadcast({"model": model}, members)
        mean, share = members.mean_and_share(self.train, message, key, self.weights)
        return self.refreshed(model | mean["model"], members, key), mean["loss"], share

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        models = message["server"]["models"]
        client = {"cluster": self.nearest(models, data.train)}
        return at_rest(self.local, client, models["0"])

    def choose(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply the client's cluster, int64 of shape ``()``."""
        cluster = self.nearest(message["models"], data.train)
        if "velocity" in client:
            stays = cluster == client["cluster"]
            client = client | {"velocity": tree_map(lambda v: torch.where(stays, v, 0), client["velocity"])}
        return client | {"cluster": cluster}, cluster

    def nearest(self, models: Tree, examples: Examples) -> Tensor:
        """Return the number of the model with the lowest mean loss on the examples, int64 of shape ``()``."""
        found = torch.stack([risk(self.task, model, examples) for model in models.values()])
        # argmin takes NaN for the least of all, and the first of equals.
        return torch.where(found.isnan(), torch.inf, found).argmin()

    # Prediction

    def own_model(self, server: Tree, client: Tree) -> Tree:
        """Return the model of the client's cluster."""
        models = stack(list(server["models"].values()))
        model: Tree = tree_map(lambda t: t.index_select(0, client["cluster"][None])[0], models)
        return model

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """All clusters' answers, ``(n, C, K)``."""
        return torch.stack([self.task.predict(model, x) for model in server["models"].values()], dim=1)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        """By the model of the client's cluster."""
        return self.task.predict(self.own_model(server, client), x)

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        answers: Tensor = embedded.index_select(1, client["cluster"][None])[:, 0]
        return answers


def equal(one: Tree, other: Tree) -> bool:
    """Whether two models have the same parameters to the bit, whatever their buffers."""
    pairs = zip(leaves(trained(one)), leaves(trained(other)), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
