"""FedSPM. Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026. Equation numbers are the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import PerExample, Tree, stack, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.networks import Copies, Network, linear_init
from archipel.learning.sgd import SGD, Batch
from archipel.learning.tasks import Supervised

PIECE = 512
"""Examples a forward pass of the E-step."""


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

    Only Σ-differences of (γ, ξ) are identified: adding the same (a, b) to every (i, c) changes neither the surrogate,
    the responsibilities nor the routing.

    Args:
        task: the predictive part: encoder g, outputs K and criterion. Its head's shape is used, once for each
            component of each client.
        router: the encoder h, with the federation's inputs.
        components: C, at least 1; with C = 1 this is FedDRM's routing-prediction model.
        local: solver of the predictive block (α, β, θ).
        routing: solver of the density-ratio block (γ, ξ, ν).
        encoders: ``"shared"`` by the components (1×), or ``"own"``, one a component (C×).
        expectation: ``"exact"``: all local data each round; ``"incremental"``: only the examples that both blocks are
            about to draw, the others keep their responsibilities (the partial E-step of R. Neal and G. Hinton, 1998,
            under which the free energy never rises, whatever is left out).
        batch_norm: what becomes of BatchNorm's statistics.

    Raises:
        ValueError: C below 1, or a setting out of its range.
        TypeError: a task without encoder and head, or a router that is no network.

    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
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
    components: int = 3
    local: SGD = SGD(lr=0.01, steps=10, batch=128, momentum=0.9, schedule="cosine")
    routing: SGD = SGD(lr=0.01, steps=15, batch=128, momentum=0.95, schedule="cosine")
    encoders: Literal["shared", "own"] = "shared"
    expectation: Literal["exact", "incremental"] = "exact"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        if not isinstance(self.task, Supervised):
            raise TypeError(
                f"FedSPM's task is an encoder and a head, by classification(encoder, federation) or regression(…); "
                f"given a {type(self.task).__name__}."
            )
        if not isinstance(self.router, Network):
            raise TypeError(
                f"FedSPM's router is a Network(module, federation.inputs); given a {type(self.router).__name__}."
            )
        if not isinstance(self.components, int) or self.components < 1:
            raise ValueError(
                f"FedSPM needs at least one component a client; given components={self.components}. The paper uses 3, "
                "and 1 is the model without a mixture."
            )
        if self.encoders not in ("shared", "own"):
            raise ValueError(f"FedSPM's encoders must be 'shared' (1×) or 'own' (C×); given {self.encoders!r}.")
        if self.expectation not in ("exact", "incremental"):
            raise ValueError(f"FedSPM's expectation must be 'exact' or 'incremental'; given {self.expectation!r}.")

    @property
    def _g(self) -> Copies:
        return Copies(self.task.encoder, self.components, self.encoders == "shared")

    @property
    def _h(self) -> Copies:
        return Copies(self.router, self.components, self.encoders == "shared")

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        m, C = clients.population, self.components
        theta, theta_buffers = self._g.init(keys.fold(key, "g"))
        nu, nu_buffers = self._h.init(keys.fold(key, "h"))
        tilt = linear_init(keys.fold(key, "tilt"), m * C, self.router.features())
        return {
            "predictive": _part({"encoder": theta}, theta_buffers),
            "ratio": _part(
                {"encoder": nu, "gamma": torch.zeros(m, C), "xi": tilt["weight"].reshape(m, C, -1)}, nu_buffers
            ),
            "tau": clients.sizes[:, None].float().expand(m, C) / C,
        }

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        shared = {part: batchnorm.broadcast(self.batch_norm, server[part]) for part in ("predictive", "ratio")}
        expected = clients.collect(self.expect, shared, key)
        tau = server["tau"].index_copy(0, expected.ids, expected.value)  # who wasn't asked keeps its row
        rates = {
            "lr": self.local.rate(clients.round, clients.rounds),
            "routing_lr": self.routing.rate(clients.round, clients.rounds),
        }
        # The key is the E-step's: an incremental E-step looks at the minibatches that are drawn here.
        mean = clients.mean(self.maximise, shared | {"tau": tau} | rates, key)
        server = {part: server[part] | mean[part] for part in shared} | {"tau": tau}
        if self.batch_norm == "recompute" and ("buffers" in server["predictive"] or "buffers" in server["ratio"]):
            server = self._with_statistics(server, clients, key)
        return server, {"loss": mean["loss"], "routing_loss": mean["routing_loss"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        server, C = message["server"], self.components
        heads = [linear_init(keys.fold(key, c), self.task.outputs, self.task.features) for c in range(C)]
        predictive = batchnorm.keep(self.batch_norm, {"heads": stack(heads)}, server["predictive"])
        ratio = batchnorm.keep(self.batch_norm, {}, server["ratio"])
        if self.local.keep_momentum:
            predictive["velocity"] = zeros_like(
                {"encoder": server["predictive"]["encoder"], "heads": predictive["heads"]}
            )
        if self.routing.keep_momentum:
            ratio["velocity"] = zeros_like({name: t for name, t in server["ratio"].items() if name != "buffers"})
        uniform = torch.full((data.train.length, C), 1 / C) * data.train.mask[:, None]
        client = {
            "index": message["index"],
            "predictive": predictive,
            "ratio": ratio,
            "pi": torch.full((C,), 1 / C),
            "responsibilities": PerExample(uniform),
        }
        if self.expectation == "incremental":
            # Responsibilities that are kept must once have been computed.
            client["responsibilities"] = PerExample(self._responsibilities(client, server, data.train))
        return client

    def expect(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The local E-step: new responsibilities, and their totals τ_i, ``(C,)``, to the server."""
        drawn = None if self.expectation == "exact" else self._drawn_by_both(data.train, key)
        if drawn is None or len(drawn) >= data.train.length:
            w = self._responsibilities(client, message, data.train)
        else:
            some = Examples(data.train.take(drawn), torch.full_like(data.train.count, len(drawn)), len(drawn))
            new = self._responsibilities(client, message, some)
            w = client["responsibilities"].values.scatter(0, drawn[:, None].expand(-1, self.components), new)
        return client | {"responsibilities": PerExample(w)}, w.sum(0)

    def maximise(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The local M-step: π here, (α, β, θ) and (γ, ξ, ν) by local SGD; the shared ones go to the server."""
        w = client["responsibilities"].values
        examples = data.train.adding(w=w)
        index, tau = client["index"], message["tau"]

        def ratio_loss(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            return self.ratio_loss(params, batch, tau, index)

        start = batchnorm.receive(self.batch_norm, message["predictive"], client["predictive"])
        predictive = self.local.minimise(
            self.predictive_loss,
            start | {"heads": client["predictive"]["heads"]},
            examples,
            key,
            message["lr"],
            client["predictive"].get("velocity"),
        )
        start = batchnorm.receive(self.batch_norm, message["ratio"], client["ratio"])
        ratio = self.routing.minimise(
            ratio_loss, start, examples, key, message["routing_lr"], client["ratio"].get("velocity")
        )
        mine = batchnorm.keep(self.batch_norm, {"heads": predictive.params["heads"]}, predictive.params)
        tilt = batchnorm.keep(self.batch_norm, {}, ratio.params)
        mine |= {"velocity": predictive.velocity} if self.local.keep_momentum else {}
        tilt |= {"velocity": ratio.velocity} if self.routing.keep_momentum else {}
        ours = {name: tree for name, tree in predictive.params.items() if name != "heads"}
        client = client | {"pi": w.sum(0) / data.train.count, "predictive": mine, "ratio": tilt}
        return client, {
            "predictive": batchnorm.send(self.batch_norm, ours),
            "ratio": batchnorm.send(self.batch_norm, ratio.params),
            "loss": predictive.loss,
            "routing_loss": ratio.loss,
        }

    # Prediction and routing

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        """Eq. (11): the client's mixture over components."""
        return self.predict_embedded(server, client, self.embed(server, x))

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """Eq. (10) as a log-posterior over clients."""
        return self.route_embedded(server, {"h": self._features(self._h, server["ratio"], x)})

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """h(x) and g(x); instead of g(x) x itself, where clients normalise by statistics of their own."""
        h = self._features(self._h, server["ratio"], x)
        return {"h": h} | ({"x": x} if self._local(server) else {"z": self._features(self._g, server["predictive"], x)})

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        z, h = embedded.get("z"), embedded["h"]
        if self._local(server):
            parts = {p: batchnorm.receive(self.batch_norm, server[p], client[p]) for p in ("predictive", "ratio")}
            z = self._features(self._g, parts["predictive"], embedded["x"])
            h = self._features(self._h, parts["ratio"], embedded["x"])
        log_weights = client["pi"].log() + self._own_log_ratios(server["ratio"], client["index"], h)
        outputs = self._answers(client["predictive"]["heads"], z)
        return self.task.criterion.mix(torch.log_softmax(log_weights, dim=-1), outputs)

    def route_embedded(self, server: Tree, embedded: Tree) -> Tensor:
        ratios = self._tilted(server["ratio"], embedded["h"])
        return torch.log_softmax(torch.logsumexp(_log(server["tau"]) + ratios, dim=-1), dim=-1)

    def _local(self, server: Tree) -> bool:
        """Whether clients normalise by statistics of their own in either encoder."""
        return any(batchnorm.is_local(self.batch_norm, server[part]) for part in ("predictive", "ratio"))

    # The model

    def log_ratios(self, ratio: Tree, x: Tensor, train: bool = False) -> tuple[Tensor, Tree]:
        """Log dP_ic/dG(x) = γ_ic + ξ_icᵀ h_νc(x) (eq. 3) for all i and c, ``(n, m, C)``, and buffers."""
        h, buffers = self._h(ratio["encoder"], ratio.get("buffers", {}), x, train)
        return self._tilted(ratio, h), buffers

    def ratio_loss(self, ratio: Tree, batch: Batch, tau: Tensor, index: Tensor) -> tuple[Tensor, Tree]:
        """One example's term of −Q̃₂ at client ``index``, given its responsibilities ``batch["w"]``, ``(n, C)``."""
        ratios, buffers = self.log_ratios(ratio, batch["x"], train=True)
        logits = _log(tau) + ratios
        own = logits.index_select(1, index[None])[:, 0]
        return torch.logsumexp(logits.flatten(1), dim=1) - (batch["w"] * own).sum(1), buffers

    def predictive_loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """One example's term of −Q₁: responsibility-weighted losses of the components."""
        outputs, buffers = self._outputs(params, batch["x"], train=True)
        return (batch["w"] * self._losses(outputs, batch["y"])).sum(1), buffers

    def _outputs(self, params: Tree, x: Tensor, train: bool) -> tuple[Tensor, Tree]:
        """``(n, C, K)``."""
        z, buffers = self._g(params["encoder"], params.get("buffers", {}), x, train)
        return self._answers(params["heads"], z), buffers

    def _features(self, encoder: Copies, part: Tree, x: Tensor) -> Tensor:
        """``(n, C, features)`` as it predicts; of an encoder that the components share ``(n, 1, features)``."""
        z, _ = encoder(part["encoder"], part.get("buffers", {}), x)
        return z[:, :1] if encoder.shared else z

    def _answers(self, heads: Tree, z: Tensor) -> Tensor:
        """``(n, C, K)``."""
        bias: Tensor = heads["bias"]
        return torch.einsum("ncd,ckd->nck", z.expand(-1, self.components, -1), heads["weight"]) + bias

    def _tilted(self, ratio: Tree, h: Tensor) -> Tensor:
        """``(n, m, C)``."""
        gamma: Tensor = ratio["gamma"]
        return gamma + torch.einsum("ncd,mcd->nmc", h.expand(-1, self.components, -1), ratio["xi"])

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``(n, C)``: −log P_ic(y|x)."""
        return torch.stack([self.task.criterion.loss(outputs[:, c], y) for c in range(self.components)], dim=1)

    def _own_log_ratios(self, ratio: Tree, index: Tensor, h: Tensor) -> Tensor:
        """``(n, C)``: client ``index``'s own."""
        own = {name: ratio[name].index_select(0, index[None]) for name in ("gamma", "xi")}
        return self._tilted(own, h)[:, 0]

    def _responsibilities(self, client: Tree, message: Tree, examples: Examples) -> Tensor:
        """Eq. (7), ``(N, C)``; zero for padding."""
        part = batchnorm.receive(self.batch_norm, message["predictive"], client["predictive"])
        part = part | {"heads": client["predictive"]["heads"]}
        tilts = batchnorm.receive(self.batch_norm, message["ratio"], client["ratio"])
        found = []
        for batch in examples.pieces(PIECE):
            outputs, _ = self._outputs(part, batch["x"], train=False)
            log_joint = client["pi"].log() - self._losses(outputs, batch["y"])
            h = self._features(self._h, tilts, batch["x"])
            log_joint = log_joint + self._own_log_ratios(tilts, client["index"], h)
            found.append(torch.softmax(log_joint, dim=-1))
        return torch.cat(found) * examples.mask[:, None]

    def _drawn_by_both(self, examples: Examples, key: Tensor) -> Tensor:
        """The rows of this round's minibatches in both blocks: with one key both go through the same order, and one of
        them further.
        """
        draws = [block.plan(examples, key).index.flatten() for block in (self.local, self.routing)]
        return min(draws, key=len)

    def _with_statistics(self, server: Tree, clients: Clients, key: Tensor) -> Tree:
        """BatchNorm's statistics of the averaged encoders, from everybody's training data."""
        message = {"predictive": server["predictive"], "ratio": server["ratio"], "tau": server["tau"]}
        found = clients.mean(self.statistics, message, keys.fold(key, "statistics"))
        return server | {part: server[part] | found[part] for part in found}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the aggregated encoders on the client's training data."""
        examples = data.train.adding(w=client["responsibilities"].values)
        heads = {"heads": client["predictive"]["heads"]}
        losses = {
            "predictive": self.predictive_loss,
            "ratio": lambda params, batch: self.ratio_loss(params, batch, message["tau"], client["index"]),
        }
        found = {
            part: {"buffers": batchnorm.recompute(loss, self, message[part] | heads, examples)}
            for part, loss in losses.items()
            if "buffers" in message[part]
        }
        return client, found


def _part(params: Tree, buffers: Tree) -> Tree:
    return params | ({"buffers": buffers} if buffers else {})


def _log(tau: Tensor) -> Tensor:
    """Log τ, finite where a component has died: 1e-30 of an example is none, and 0 · (−∞) would be NaN."""
    return torch.log(torch.clamp(tau, min=1e-30))
