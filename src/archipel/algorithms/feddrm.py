"""FedDRM. Z. Wang, X. Zhang, X. Zhang, Y. Liu, Q. Zhang: Beyond aggregation: guiding clients in heterogeneous federated
learning. ICLR 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.fedper import split, with_head
from archipel.algorithms.parts import embedding
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks, keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.networks import linear, linear_init
from archipel.learning.sgd import SGD, Batch, Loss, trained
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class FedDRM(Algorithm):
    """Local heads and a classifier of clients on one shared encoder; the classifier's logits route queries.

    Client i's inputs have the density exp(γ_i + ξ_iᵀ g_θ(x)) relative to a baseline that is never modelled, and its
    labels the model P_i(y|x) = softmax(α_i + β_i g_θ(x)). Empirical likelihood makes of the densities a classifier over
    the m clients, P(i|x) = softmax_i(b_i + ξ_iᵀ g_θ(x)) with b_i = γ_i + log ρ_i. Client i runs local SGD on

        (1 − w) · (−log P_i(y|x)) + w · (−log P(i|x)),

    keeps its head (α_i, β_i), and the server averages θ and (b, ξ) with weights n_i over those who answered.

    That weighting decides which prior the classifier carries. A client's examples all have the one label i, and count
    n_i/n together, so that the averaged objective Σ_i n_i/n E_i[−log P(i|x)] has its optimum where
    P(i|x) = ρ_i p_i(x)/Σ_i' ρ_i' p_i'(x), ρ_i = n_i/n. The log density ratio of client i is its logit minus log ρ_i,
    and queries are routed by a prior put back exactly once: with ρ, which gives P(i|x) back, or a uniform one, density
    alone, as the authors' program does. With C = 1 :class:`FedSPM` has this model too, with an encoder for each part.

    A head never leaves its client. With w = 0 it is :class:`FedPer`.

    Args:
        task: the predictive part: encoder, head and criterion.
        local: the local solver, of head, encoder and classifier together.
        weight: w in [0, 1], of the classifier's part of the loss; 0.1 as in the paper.
        prior: of the clients, when a query is routed: ``"sizes"``, ρ, or ``"uniform"``.
        batch_norm: what becomes of the statistics of the encoder's BatchNorm: ``"share"`` or ``"recompute"``. Not
            ``"local"``: the server routes, and needs some.

    Raises:
        ValueError: a weight outside [0, 1], or a setting that isn't offered.
        TypeError: a task without encoder and head.

    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 4, y), (x - 4, 1 - y)])
    >>> drm = FedDRM(classification(torch.nn.Identity(), islands), SGD(lr=0.5, steps=10))
    >>> fit(drm, islands, rounds=5).metrics["routing_accuracy"]
    1.0
    """

    task: Supervised
    local: SGD = SGD(lr=0.01, steps=10, batch=128, momentum=0.9, schedule="cosine")
    weight: float = 0.1
    prior: Literal["sizes", "uniform"] = "sizes"
    batch_norm: Literal["share", "recompute"] = "share"

    def __post_init__(self) -> None:
        checks.one_of("FedDRM", "batch_norm", self.batch_norm, "share", "recompute")
        checks.one_of("FedDRM", "prior", self.prior, "sizes", "uniform")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 <= self.weight <= 1:
            raise ValueError(
                f"FedDRM's weight must lie in [0, 1], the share of the client classifier in the loss (the paper's is "
                f"0.1); given {self.weight!r}."
            )
        if not isinstance(self.task, Supervised):
            raise TypeError(
                f"FedDRM's task is an encoder and a head, by classification(encoder, federation) or regression(…); "
                f"given {checks.kind_of(self.task)}."
            )

    @property
    def weights(self) -> Weights:
        """Of the mean. No choice: the classifier's prior would be another one."""
        return "examples"

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        shared, head = split(self.task.init(key), ("head",))
        classifier = linear_init(keys.fold(key, "clients"), clients.population, self.task.features)
        return {"model": {"clients": classifier} | shared, "head": head, "sizes": clients.sizes}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return server | {"model": model}, {"loss": mean["loss"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        shared, head = message["server"]["model"], message["server"]["head"]
        client = {"index": message["index"], "head": head}
        return averaging.remember(self.local, client, zeros_like(trained(shared | head)))

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD on encoder, classifier and the client's own head, which stays."""
        start, loss = with_head(message, client)["model"], self.objective(client["index"])
        end = self.local.minimise(loss, start, data.train, key, message["lr"], client.get("velocity"))
        shared, head = split(end.params, ("head",))
        client = averaging.remember(self.local, client | {"head": head}, end.velocity)
        return client, {"model": batchnorm.send(self.batch_norm, shared), "loss": end.loss}

    def objective(self, index: Tensor) -> Loss:
        """Client ``index``'s loss of an example: (1 − w) of its label's, w of its owner's."""

        def loss(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            z, buffers = self.task.encoder(params["encoder"], params.get("buffers", {}), batch["x"], train=True)
            label = self.task.criterion.loss(linear(params["head"], z), batch["y"])
            owners = torch.log_softmax(linear(params["clients"], z), dim=1)
            owner = -owners.index_select(1, index[None])[:, 0]
            return (1 - self.weight) * label + self.weight * owner, buffers

        return loss

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged encoder on the client's training data."""
        model = with_head(message, client)["model"]
        return client, batchnorm.recompute(self.task.loss, self.task, model, data.train)

    # Prediction and routing

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.predict_embedded(server, client, self.embed(server, x))

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """The clients' log-posterior: prior times density."""
        return self.route_embedded(server, self.embed(server, x))

    def log_ratios(self, server: Tree, x: Tensor) -> Tensor:
        """γ_i + ξ_iᵀ g(x), ``(n, m)``: log densities up to what all clients have in common at x."""
        return self._log_ratios(server, self.embed(server, x))

    def embed(self, server: Tree, x: Tensor) -> Tensor:
        """g(x)."""
        return embedding.embed(self.task, server["model"], x, shared=True)

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tensor) -> Tensor:
        return embedding.answer(self.task, client["head"], embedded, shared=True)

    def route_embedded(self, server: Tree, embedded: Tensor) -> Tensor:
        ratios = self._log_ratios(server, embedded)
        if self.prior == "sizes":
            ratios = ratios + _log_shares(server)
        return torch.log_softmax(ratios, dim=-1)

    def _log_ratios(self, server: Tree, z: Tensor) -> Tensor:
        return linear(server["model"]["clients"], z) - _log_shares(server)


def _log_shares(server: Tree) -> Tensor:
    """Log ρ."""
    sizes: Tensor = server["sizes"]
    return torch.log(sizes / sizes.sum())
