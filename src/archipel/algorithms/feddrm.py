"""FedDRM.

Z. Wang, X. Zhang, X. Zhang, Y. Liu, Q. Zhang: Beyond aggregation: guiding clients in heterogeneous federated learning.
ICLR 2026.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core import keys
from archipel.core.checks import Fraction
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning.networks import linear, linear_init
from archipel.learning.sgd import Batch, Loss
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class FedDRM(SharedModel):
    """Local heads and a classifier of clients on one shared encoder; the classifier routes queries.

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

    >>> import torch
    >>> from archipel import SGD, FedDRM, Federation, classification, fit
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 4, y), (x - 4, 1 - y)])
    >>> drm = FedDRM(classification(torch.nn.Identity(), islands), SGD(lr=0.5, steps=10))
    >>> fit(drm, islands, rounds=5).metrics["routing_accuracy"]
    1.0
    """

    task: Supervised
    weight: Fraction = 0.1
    prior: Literal["sizes", "uniform"] = "sizes"
    _: KW_ONLY
    weights: Literal["examples"] = "examples"
    batch_norm: Literal["share", "recompute"] = "share"

    own_parts = ("head",)
    predict_global = None  # type: ignore[assignment]  # no model is everybody's

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = super().init_server(clients, key)
        classifier = linear_init(keys.fold(key, "clients"), clients.population, self.task.features)
        return server | {"model": {"clients": classifier} | server["model"], "sizes": clients.sizes}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return {"index": message["index"]} | super().init_client(message, data, key)

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run local SGD on encoder, classifier and the client's own head, which stays."""
        client, end = self.local_run(client, message, data, key, self.objective(client["index"]))
        return client, self.reply(end)

    def objective(self, index: Tensor) -> Loss:
        """Client ``index``'s loss of an example: (1 − w) of its label's, w of its owner's."""

        def loss(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            z, buffers = self.task.encoder(params["encoder"], params.get("buffers", {}), batch["x"], train=True)
            label = self.task.criterion.loss(linear(params["head"], z), batch["y"])
            owners = torch.log_softmax(linear(params["clients"], z), dim=1)
            owner = -owners.index_select(1, index[None])[:, 0]
            return (1 - self.weight) * label + self.weight * owner, buffers

        return loss

    # Routing

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """Return the clients' log-posterior: prior times density."""
        return self.route_embedded(server, self.embed(server, x))

    def log_ratios(self, server: Tree, x: Tensor) -> Tensor:
        """γ_i + ξ_iᵀ g(x), ``(n, m)``: log densities up to what all clients have in common at x."""
        return self._log_ratios(server, self.embed(server, x))

    def route_embedded(self, server: Tree, embedded: Tensor) -> Tensor:
        ratios = self._log_ratios(server, embedded)
        if self.prior == "sizes":
            ratios = ratios + _log_shares(server)
        return torch.log_softmax(ratios, dim=-1)

    def routing_prior(self, server: Tree) -> Tensor:
        """Return ``(m,)`` shares: ρ, or 1/m."""
        sizes: Tensor = server["sizes"]
        return torch.ones(len(sizes)) / len(sizes) if self.prior == "uniform" else sizes / sizes.sum()

    def _log_ratios(self, server: Tree, z: Tensor) -> Tensor:
        return linear(server["model"]["clients"], z) - _log_shares(server)


def _log_shares(server: Tree) -> Tensor:
    """Log ρ."""
    sizes: Tensor = server["sizes"]
    return torch.log(sizes / sizes.sum())
