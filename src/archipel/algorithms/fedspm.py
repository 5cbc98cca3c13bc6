"""FedSPM: a semiparametric mixture that predicts and routes, learnt by federated EM.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026. Equation numbers are the paper's; see docs/methods/fedspm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.shared_model import LOCAL, ROUTING
from archipel.core import keys
from archipel.core.checks import PositiveInt
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import PerExample, Tree, stack
from archipel.learning import batch_norm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.client_models import at_rest, remember, split
from archipel.learning.experts import Experts, posterior, recomputed
from archipel.learning.networks import Copies, Network, encoder_model, linear_init
from archipel.learning.sgd import SGD, Batch
from archipel.learning.tasks import Supervised

BLOCKS = ("predictive", "ratio")


@dataclass(frozen=True, eq=False)
class FedSPM(Algorithm):
    """Semiparametric mixture of C components a client, learnt by federated EM; routes queries to clients.

    Component c of client i predicts by P_ic(k|x) ∝ exp(α_ikc + β_ikcᵀ g_θc(x)) (eq. 2) and covers inputs by the
    density ratio dP_ic/dG(x) = exp(γ_ic + ξ_icᵀ h_νc(x)) (eq. 3) to a baseline G that is never modelled. Heads (α, β)
    and mixing weights π stay with their client; the encoders θ and ν and the tilts γ, ξ are shared. A round is
    Algorithm 1:

    - E-step: w_ijc ∝ π_ic P_ic(y_ij|x_ij) exp(γ_ic + ξ_icᵀ h_νc(x_ij)) (eq. 7); the totals τ_ic = Σ_j w_ijc go to the
      server and come back as one m × C table;
    - M-step: π_ic = τ_ic/n_i (eq. 9); (α, β, θ) by local SGD on Σ_c w_ijc (−log P_ic(y|x)); (γ, ξ, ν) by local SGD on
      the surrogate −Q̃₂, log Σ_i'c τ_i'c exp(γ_i'c + ξ_i'cᵀ h(x)) − Σ_c w_ijc (log τ_ic + γ_ic + ξ_icᵀ h(x)), a
      cross-entropy with soft targets over m · C classes (the term in log τ_ic is constant and makes it one);
    - the server averages θ, γ, ξ, ν with weights ρ_i = n_i/n.

    Queries are routed by ρ_i Σ_c π_ic exp(γ_ic + ξ_icᵀ h(x)) (eq. 10), where ρ_i π_ic = τ_ic/n, so that the server
    needs nothing but τ; the chosen client answers by its mixture, weighted by P_i(c|x) (eq. 11). With a squared-error
    task the components are normal with unit variance and the answer is the mixture's mean.

    Only differences of (γ, ξ) are identified: adding the same (a, b) for all (i, c) changes neither the surrogate, the
    responsibilities nor the routing. Several local steps at a constant rate miss the exact routing posterior;
    :func:`archipel.refitted` finds it.

    Args:
        task: the predictive part: encoder g, outputs K and criterion. Its head's shape is used, once for each
            component of each client.
        router: the encoder h, with the federation's inputs.
        components: C, at least 1; with C = 1 this is FedDRM's routing-prediction model.
        local: solver of the predictive block (α, β, θ).
        routing: solver of the density-ratio block (γ, ξ, ν). With ``keep_momentum=True`` each client keeps a velocity
            of the complete tables γ and ξ, m C (d + 1) numbers for d features of h, which is O(m²) for all clients:
            4 GB for 10,000 clients, C = 1 and d = 9.
        encoders: ``"shared"`` by the components (1×), or ``"own"``, one a component (C×).
        expectation: ``"exact"``: all local data each round; ``"incremental"``: only the examples that both blocks are
            about to draw, the others keep their responsibilities (the partial E-step of R. Neal and G. Hinton, 1998,
            under which the free energy never rises, whatever is left out).
        batch_norm: what becomes of BatchNorm's statistics.

    Raises:
        ValueError: C below 1, or a setting out of its range.
        TypeError: a task without encoder and head, or a router that is no network.

    >>> import torch
    >>> from archipel import SGD, FedSPM, Federation, Network, classification, fit
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 4, y), (x - 4, 1 - y)])
    >>> task = classification(torch.nn.Identity(), islands)
    >>> router = Network(torch.nn.Identity(), islands.inputs)
    >>> block = SGD(lr=0.5, steps=10)
    >>> spm = FedSPM(task, router, components=1, local=block, routing=block)
    >>> fit(spm, islands, rounds=5).metrics["routing_accuracy"]
    1.0
    """

    task: Supervised
    router: Network
    components: PositiveInt = 3
    local: SGD = LOCAL
    routing: SGD = ROUTING
    encoders: Literal["shared", "own"] = "shared"
    expectation: Literal["exact", "incremental"] = "exact"
    batch_norm: BatchNorm = "share"

    @property
    def experts(self) -> Experts:
        """P_ic(y|x): the encoders g, and a client's heads on them."""
        return Experts(self.task, self.components, self.encoders == "shared")

    @property
    def h(self) -> Copies:
        """The encoders of the density ratios."""
        return Copies(self.router, self.components, self.encoders == "shared")

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        m, C = clients.population, self.components
        xi = linear_init(keys.fold(key, "tilt"), m * C, self.router.features())["weight"].reshape(m, C, -1)
        return {
            "predictive": encoder_model(self.experts.encoder, keys.fold(key, "g")),
            "ratio": encoder_model(self.h, keys.fold(key, "h")) | {"gamma": torch.zeros(m, C), "xi": xi},
            "tau": clients.sizes[:, None].float().expand(m, C) / C,
        }

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        shared = {block: batch_norm.broadcast(self.batch_norm, server[block]) for block in BLOCKS}
        expected = clients.collect(self.expect, shared, key)
        tau = server["tau"].index_copy(0, expected.ids, expected.value)  # who wasn't asked keeps its row
        rates = {
            "lr": self.local.rate(clients.round, clients.rounds),
            "routing_lr": self.routing.rate(clients.round, clients.rounds),
        }
        # The E-step's key: an incremental E-step looks at the minibatches that are drawn here.
        mean = clients.mean(self.maximise, shared | {"tau": tau} | rates, key)
        server = {block: server[block] | mean[block] for block in BLOCKS} | {"tau": tau}
        if self.batch_norm == "recompute" and any("buffers" in server[block] for block in BLOCKS):
            message = {block: server[block] for block in BLOCKS}
            found = clients.mean(self.statistics, message, keys.fold(key, "statistics"))
            server = server | {block: server[block] | found[block] for block in found}
        return server, {"loss": mean["loss"], "routing_loss": mean["routing_loss"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        server, C = message["server"], self.components
        drawn = [linear_init(keys.fold(key, c), self.task.outputs, self.task.features) for c in range(C)]
        heads = {"heads": stack(drawn)}
        predictive = batch_norm.keep(self.batch_norm, heads, server["predictive"])
        ratio = batch_norm.keep(self.batch_norm, {}, server["ratio"])
        uniform = torch.full((data.train.length, C), 1 / C) * data.train.mask[:, None]
        client = {
            "index": message["index"],
            "predictive": at_rest(self.local, predictive, server["predictive"] | heads),
            "ratio": at_rest(self.routing, ratio, server["ratio"]),
            "pi": torch.full((C,), 1 / C),
            "responsibilities": PerExample(uniform),
        }
        if self.expectation == "incremental":
            # Responsibilities that are kept must once have been computed.
            client["responsibilities"] = PerExample(self.responsibilities(client, server, data.train))
        return client

    def expect(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run the local E-step; the totals τ_i of the responsibilities, ``(C,)``, go to the server."""
        drawn = None if self.expectation == "exact" else self._drawn_by_both(data.train, key)
        if drawn is None or len(drawn) >= data.train.length:
            w = self.responsibilities(client, message, data.train)
        else:
            some = Examples(data.train.take(drawn), torch.full_like(data.train.count, len(drawn)), len(drawn))
            new = self.responsibilities(client, message, some)
            w = client["responsibilities"].values.scatter(0, drawn[:, None].expand(-1, self.components), new)
        return client | {"responsibilities": PerExample(w)}, w.sum(0)

    def maximise(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run the local M-step: π_i stays; (α, β, θ) and (γ, ξ, ν) move by local SGD, and the shared ones are sent."""
        w, index, tau = client["responsibilities"].values, client["index"], message["tau"]

        def ratio_loss(ratio: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            return self.ratio_loss(ratio, batch, tau, index)

        sent: Tree = {}
        own = {"pi": w.sum(0) / data.train.count}
        for block, solver, loss, rate, told in (
            ("predictive", self.local, self.experts.weighted_loss, "lr", "loss"),
            ("ratio", self.routing, ratio_loss, "routing_lr", "routing_loss"),
        ):
            kept = client[block]
            start = batch_norm.receive(self.batch_norm, message[block], kept)
            start = start | {name: tree for name, tree in kept.items() if name == "heads"}
            end = solver.minimise(loss, start, data.train.adding(w=w), key, message[rate], kept.get("velocity"))
            shared, heads = split(end.params, ("heads",))
            own[block] = remember(solver, batch_norm.keep(self.batch_norm, heads, end.params), end.velocity)
            sent |= {block: batch_norm.send(self.batch_norm, shared), told: end.loss}
        return client | own, sent

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply BatchNorm's statistics of the aggregated encoders on the client's training data."""
        encoders = {"predictive": self.experts.encoder, "ratio": self.h}
        return client, {
            block: {"buffers": recomputed(encoder, message[block], data.train)}
            for block, encoder in encoders.items()
            if "buffers" in message[block]
        }

    # Prediction and routing

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        """Eq. (11): the client's mixture over components."""
        return self.predict_embedded(server, client, self.embed(server, x))

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """Eq. (10) as a log-posterior over clients."""
        return self.route_embedded(server, {"h": self.h.features(server["ratio"], x)})

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """h(x) and g(x); instead of g(x) x itself, where clients normalise by statistics of their own."""
        h = self.h.features(server["ratio"], x)
        if self._statistics_are_local(server):
            return {"h": h, "x": x}
        return {"h": h, "z": self.experts.encoder.features(server["predictive"], x)}

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        z, h = embedded.get("z"), embedded["h"]
        if self._statistics_are_local(server):
            own = {block: batch_norm.receive(self.batch_norm, server[block], client[block]) for block in BLOCKS}
            z = self.experts.encoder.features(own["predictive"], embedded["x"])
            h = self.h.features(own["ratio"], embedded["x"])
        log_weights = client["pi"].log() + self._own_log_ratios(server["ratio"], client["index"], h)
        outputs = self.experts.answers(client["predictive"]["heads"], z)
        return self.task.criterion.mix(torch.log_softmax(log_weights, dim=-1), outputs)

    def route_embedded(self, server: Tree, embedded: Tree) -> Tensor:
        log_joint = _log(server["tau"]) + tilted(server["ratio"], embedded["h"])
        return torch.log_softmax(torch.logsumexp(log_joint, dim=-1), dim=-1)

    def _statistics_are_local(self, server: Tree) -> bool:
        return any(batch_norm.is_local(self.batch_norm, server[block]) for block in BLOCKS)

    # The model

    def responsibilities(self, client: Tree, message: Tree, examples: Examples) -> Tensor:
        """Eq. (7), ``(N, C)``; zero for padding."""
        own = {block: batch_norm.receive(self.batch_norm, message[block], client[block]) for block in BLOCKS}

        def log_ratios(batch: Batch) -> Tensor:
            return self._own_log_ratios(own["ratio"], client["index"], self.h.features(own["ratio"], batch["x"]))

        heads = {"heads": client["predictive"]["heads"]}
        log_likelihoods = self.experts.log_likelihoods(own["predictive"] | heads, examples)
        log_joint = log_likelihoods + examples.in_pieces(log_ratios)
        return posterior(client["pi"].log(), log_joint) * examples.mask[:, None]

    def log_ratios(self, ratio: Tree, x: Tensor, train: bool = False) -> tuple[Tensor, Tree]:
        """Log dP_ic/dG(x) = γ_ic + ξ_icᵀ h_νc(x) (eq. 3) for all i and c, ``(n, m, C)``, and buffers."""
        h, buffers = self.h(ratio["encoder"], ratio.get("buffers", {}), x, train)
        return tilted(ratio, h), buffers

    def ratio_loss(self, ratio: Tree, batch: Batch, tau: Tensor, index: Tensor) -> tuple[Tensor, Tree]:
        """One example's term of −Q̃₂ at client ``index``, given its responsibilities ``batch["w"]``, ``(n, C)``."""
        ratios, buffers = self.log_ratios(ratio, batch["x"], train=True)
        logits = _log(tau) + ratios
        own = logits.index_select(1, index[None])[:, 0]
        return torch.logsumexp(logits.flatten(1), dim=1) - (batch["w"] * own).sum(1), buffers

    def _own_log_ratios(self, ratio: Tree, index: Tensor, h: Tensor) -> Tensor:
        """``(n, C)``: client ``index``'s own."""
        return tilted({name: ratio[name].index_select(0, index[None]) for name in ("gamma", "xi")}, h)[:, 0]

    def _drawn_by_both(self, examples: Examples, key: Tensor) -> Tensor:
        """Return the rows that both blocks draw in this round: with one key both follow one order, one further."""
        draws = [block.plan(examples, key).index.flatten() for block in (self.local, self.routing)]
        return min(draws, key=len)


def tilted(ratio: Tree, h: Tensor) -> Tensor:
    """γ_ic + ξ_icᵀ h, ``(n, m, C)``, of features ``(n, C, d)``, or ``(n, 1, d)`` for all components."""
    gamma: Tensor = ratio["gamma"]
    return gamma + torch.einsum("ncd,mcd->nmc", h.expand(-1, gamma.shape[1], -1), ratio["xi"])


def _log(tau: Tensor) -> Tensor:
    """Log τ, finite where a component has died: 1e-30 of an example is none, and 0 · (−∞) would be NaN."""
    return torch.log(torch.clamp(tau, min=1e-30))
