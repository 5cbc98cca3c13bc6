"""FedGMM: a mixture of Gaussians on inputs and of experts on labels, with weights of each client's own.

Y. Wu, S. Zhang, W. Yu, Y. Liu, Q. Gu, D. Zhou, H. Chen, W. Cheng: Personalized federated learning under mixture of
distributions. ICML 2023. See docs/methods/mixtures.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info
from archipel.algorithms.parts.shared_model import ROUTING, SharedModel
from archipel.core import keys
from archipel.core.checks import Positive, PositiveInt
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import PerExample, Tree
from archipel.learning.client_models import at_rest, remember
from archipel.learning.experts import Experts, joint_posterior, recomputed
from archipel.learning.gaussians import drawn, log_normal, moments_of, refitted
from archipel.learning.networks import Network, encoder_model, linear, linear_init
from archipel.learning.sgd import SGD, Batch
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class FedGMM(SharedModel):
    """Gaussians for where inputs lie times experts for what they mean, mixed by each client; routes queries to clients.

    Client i's examples follow Σ_ab π_i(a, b) N(e(x); μ_a, Σ_a) p(y|x; θ_b): the M₁ Gaussians on an embedding e and the
    M₂ experts are everybody's, the joint mixing weights π_i its own. A round is one of federated EM:

    - E-step, on all local data: γ_ij(a, b) ∝ π_i(a, b) N(e(x_ij); μ_a, Σ_a) p(y_ij|x_ij; θ_b);
    - M-step: π_i = mean_j γ_ij; every expert by local SGD on mean_j Σ_a γ_ij(a, b) (−log p(y_ij|x_ij; θ_b)), and the
      server averages it with weights n_i over those who answered; Gaussians in closed form from their sums of
      γ_ij(a) = Σ_b γ_ij(a, b), of γ_ij(a) e and of γ_ij(a) e eᵀ, N_a, s_a and S_a,

          μ_a = s_a/N_a,   Σ_a = S_a/N_a − μ_a μ_aᵀ.

    Since these are moments of all examples, Σ_a holds the scatter between clients, which a mean of the clients' own
    covariances misses. Everything about Gaussians is float64.

    Queries are routed by ρ_i Σ_a π_i(a) N(e(x); μ_a, Σ_a), with π_i(a) = Σ_b π_i(a, b) and ρ_i π_i(a) = τ_i(a)/n, τ_i
    being the totals Σ_j γ_ij(a) that a client sends; the chosen client answers by its mixture, weighted by P_i(b|x).
    With M₁ = M₂ = 1 it predicts as FedAvg does.

    At the start the pooled mean and covariance of the embedding are asked of the clients; every Gaussian has that
    covariance, and a mean drawn from the normal with these two. No client shows more of its inputs than their moments.

    A client keeps the embedded inputs of a fixed embedding, one vector for each training example, so that the embedding
    is sent once. A simulation's checkpoint holds all clients' states, and with them these vectors: keep such a file as
    safely as the data. ``embedding="learned"`` keeps none.

    Args:
        task: one expert: encoder, head and criterion.
        router: the embedding e, with the federation's inputs.
        local: the experts' solver.
        routing: the learned embedding's solver; a fixed one doesn't use it.
        components: M₂ experts, at least 1.
        gaussians: M₁, at least 1.
        encoders: of the experts: ``"own"``, one each (C×) as in the paper, or ``"shared"`` (1×).
        embedding: ``"fixed"``: e stays as it began, drawn at random or, for a network with ``initial="given"``,
            trained beforehand: what is learnt is EM of this model. ``"learned"``: before the Gaussians are refitted, e
            is trained as a classifier of its own, under a head that all share, by local SGD and averaging: features
            that tell labels apart. Likelihood can't train it: e(x) = 0 everywhere, with a covariance as small as you
            like, has an unbounded one, and so the embedding would collapse.
        ridge: is added to the covariances' diagonals, in units of the embedding's pooled mean variance; above 0.
        batch_norm: what becomes of the statistics of the experts' BatchNorm: ``"share"``, ``"local"`` or
            ``"recompute"``. Those of a learned embedding are shared, since the server routes by them.

    Raises:
        ValueError: no component or no Gaussian, or a setting out of its range.
        TypeError: a task without encoder and head, or a router that is no network.

    >>> import torch
    >>> from archipel import SGD, FedGMM, Federation, Network, classification, fit
    >>> x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 4, y), (x - 4, 1 - y)])
    >>> task = classification(torch.nn.Identity(), islands)
    >>> router = Network(torch.nn.Identity(), islands.inputs)
    >>> run = fit(FedGMM(task, SGD(lr=0.5, steps=10), router=router, components=2, gaussians=2), islands, rounds=10)
    >>> run.metrics["routing_accuracy"]
    1.0
    """

    task: Supervised
    _: KW_ONLY
    router: Network
    routing: SGD = ROUTING
    components: PositiveInt = 3
    gaussians: PositiveInt = 3
    encoders: Literal["shared", "own"] = "own"
    embedding: Literal["fixed", "learned"] = "fixed"
    ridge: Positive = 1e-3
    weights: Literal["examples"] = "examples"

    predict_global = None  # type: ignore[assignment]  # each client mixes the experts in its own proportions

    @property
    def experts(self) -> Experts:
        return Experts(self.task, self.components, self.encoders == "shared")

    @property
    def learns(self) -> bool:
        """Whether the embedding is trained."""
        return self.embedding == "learned"

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        width = self.router.features()  # refuses a router that can't take the examples
        embedding = encoder_model(self.router, keys.fold(key, "embedding"))
        if self.learns:
            embedding["head"] = linear_init(keys.fold(key, "classifier"), self.task.outputs, width)
        pooled = clients.mean(self.survey, {"embedding": embedding}, keys.fold(key, "survey"))
        return {
            "model": self.experts.init(key),
            "embedding": embedding,
            "gaussians": drawn(pooled, self.gaussians, self.ridge, keys.fold(key, "means")),
            "tau": clients.sizes[:, None].float().expand(-1, self.gaussians) / self.gaussians,
        }

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = self.broadcast(server, clients) | {"gaussians": server["gaussians"]}
        if self.learns:
            rate = self.routing.rate(clients.round, clients.rounds)
            message |= {"embedding": server["embedding"], "routing_lr": rate}
        expected = clients.collect(self.expect, message, key)
        mean = clients.mean(self.maximise, message, key)
        embedding = server["embedding"] | mean["embedding"]
        # With the embedding as it is now: Gaussians that were fitted to the old one would be a round late.
        moments = clients.mean(self.measure, {"embedding": embedding} if self.learns else {}, key)
        server = {
            "model": self.refreshed(server["model"] | mean["model"], clients, key),
            "embedding": embedding,
            "gaussians": refitted(server["gaussians"], moments, self.ridge),
            "tau": server["tau"].index_copy(0, expected.ids, expected.value),  # who wasn't asked keeps its row
        }
        return server, {name: mean[name] for name in ("loss", "routing_loss") if name in mean}

    # The clients

    def survey(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply the moments of the client's embedded inputs, before the first round."""
        e = self._embed_all(message["embedding"], data.train)
        return client, moments_of(e, data.train.mask[:, None], data.train.count)

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        pi = torch.full((self.gaussians, self.components), 1 / (self.gaussians * self.components))
        client = super().init_client(message, data, key) | {"pi": pi}
        client["gamma"] = PerExample(pi * data.train.mask[:, None, None])
        embedding = message["server"]["embedding"]
        if self.learns:
            return at_rest(self.routing, client, embedding, "routing_velocity")
        return client | {"embedded": PerExample(self._embed_all(embedding, data.train))}

    def expect(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run the local E-step and set π_i; the Gaussians' totals τ_i, ``(M₁,)``, go to the server."""
        log_densities = log_normal(self._embedded(client, message, data.train), message["gaussians"])
        log_likelihoods = self.experts.log_likelihoods(self.complete(message["model"], client), data.train)
        gamma = joint_posterior(client["pi"], log_densities, log_likelihoods) * data.train.mask[:, None, None]
        pi = gamma.sum(0) / data.train.count
        return client | {"gamma": PerExample(gamma), "pi": pi}, gamma.sum((0, 2))

    def maximise(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Train the experts, and a learned embedding, by local SGD."""
        weighted = replace(data, train=data.train.adding(w=client["gamma"].values.sum(1)))
        client, end = self.local_run(client, message, weighted, key, self.experts.weighted_loss)
        reply = self.reply(end) | {"embedding": {}}
        if self.learns:
            velocity = client.get("routing_velocity")
            embedding, lr = message["embedding"], message["routing_lr"]
            end = self.routing.minimise(self.label_loss, embedding, data.train, key, lr, velocity)
            client = remember(self.routing, client, end.velocity, "routing_velocity")
            reply |= {"embedding": end.params, "routing_loss": end.loss}
        return client, reply

    def measure(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply the Gaussians' moments N, s and S under the responsibilities, divided by n_i."""
        e = self._embedded(client, message, data.train)
        return client, moments_of(e, client["gamma"].values.sum(2), data.train.count)

    def label_loss(self, embedding: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Compute the loss of the embedding as a classifier, or a regression, of its own."""
        e, buffers = self.router(embedding["encoder"], embedding.get("buffers", {}), batch["x"], train=True)
        return self.task.criterion.loss(linear(embedding["head"], e), batch["y"]), buffers

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply BatchNorm's statistics of the averaged experts on the client's training data."""
        return client, recomputed(self.experts.encoder, message["model"], data.train)

    # Prediction and routing

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """Log N(e(x); μ_a, Σ_a) and all experts' outputs; x, where clients normalise by statistics of their own."""
        densities = log_normal(self._embed(server["embedding"], x), server["gaussians"])
        return {"densities": densities, "experts": self.experts.embed(server["model"], x, self.batch_norm)}

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        """Log Σ_b P_i(b|x) p(y|x; θ_b), P_i(b|x) ∝ Σ_a π_i(a, b) N(e(x); μ_a, Σ_a)."""
        outputs = self.experts.own(server["model"], client, embedded["experts"], self.batch_norm)
        log_weights = torch.logsumexp(client["pi"].log() + embedded["densities"][:, :, None], dim=1)
        return self.task.criterion.mix(torch.log_softmax(log_weights, dim=1).to(outputs.dtype), outputs)

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """Return the clients' log-posterior: ρ_i times the density of its mixture of Gaussians."""
        e = self._embed(server["embedding"], x)
        log_joint = server["tau"].log() + log_normal(e, server["gaussians"])[:, None]
        return torch.log_softmax(torch.logsumexp(log_joint, dim=2), dim=1).to(e.dtype)

    def _embed(self, embedding: Tree, x: Tensor) -> Tensor:
        return self.router(embedding["encoder"], embedding.get("buffers", {}), x)[0]

    def _embed_all(self, embedding: Tree, examples: Examples) -> Tensor:
        return examples.in_pieces(lambda batch: self._embed(embedding, batch["x"]))

    def _embedded(self, client: Tree, message: Tree, examples: Examples) -> Tensor:
        """``(N, d)``; a fixed embedding's is computed once, at enrolment."""
        if self.learns:
            return self._embed_all(message["embedding"], examples)
        found: Tensor = client["embedded"].values
        return found
