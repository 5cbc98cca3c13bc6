"""FedEM with experts. O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated multi-task learning under a
mixture of distributions. NeurIPS 2021. (The plain name is another method's here, that of A. Dieuleveut et al.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.algorithms.parts.experts import Experts, posterior, recomputed
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class FedEMExperts(Algorithm):
    """C experts that all share, mixed by each client in its own proportions, learnt by federated EM.

    Client i's labels follow Σ_c π_ic p(y|x; θ_c): the experts θ are everybody's, the mixing weights π_i its own. A
    round is one of Algorithm 1, with ℓ(θ_c; x, y) = −log p(y|x; θ_c):

    - E-step, on all local data: q_ijc ∝ π_ic exp(−ℓ(θ_c; x_ij, y_ij));
    - M-step: π_ic = mean_j q_ijc; every expert by local SGD on mean_j q_ijc ℓ(θ_c; x_ij, y_ij);
    - the server averages each expert: θ_c ← Σ_{i∈S} n_i θ_ic / Σ_{i∈S} n_i, S those who answered.

    All experts take their steps on the same minibatches; with a shared encoder, that minimises the sum of their losses.
    Responsibilities and π_i never leave the client. With C = 1 it is FedAvg. It can't route: nothing says where a
    client's inputs lie.

    Args:
        task: one expert: encoder, head and criterion; with a squared error, p(y|x) is normal with unit variance and
            the answer is the mixture's mean.
        local: the local solver.
        components: C, at least 1.
        encoders: ``"own"``, one an expert (C×) as in the paper, or ``"shared"`` by all (1×): C heads.
        weights: of the experts' mean: ``"examples"`` as in the paper, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: C below 1, or a setting out of its range.
        TypeError: a task without encoder and head.

    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:100], y[:100]), (x[100:], 1 - y[100:])])
    >>> task = classification(torch.nn.Identity(), opposite)
    >>> run = fit(FedEMExperts(task, SGD(lr=1.0, epochs=2, batch=20), components=2), opposite, rounds=15)
    >>> run.metrics["average_accuracy"] > 0.9  # no common model can be better than 1/2
    True
    """

    task: Supervised
    local: SGD = SGD(lr=0.01, steps=10, batch=128, momentum=0.9, schedule="cosine")
    components: int = 3
    encoders: Literal["shared", "own"] = "own"
    weights: Weights = "examples"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        checks.positive_int("FedEMExperts", components=self.components)
        checks.one_of("FedEMExperts", "encoders", self.encoders, "shared", "own")
        if not isinstance(self.task, Supervised):
            raise TypeError(
                "FedEMExperts's task is an encoder and a head, by classification(encoder, federation) or "
                f"regression(…); given {checks.kind_of(self.task)}."
            )

    @property
    def experts(self) -> Experts:
        return Experts(self.task, self.components, self.encoders == "shared")

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"model": self.experts.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        uniform = torch.full((self.components,), 1 / self.components)
        return averaging.enrol(self, message["server"]["model"]) | {"pi": uniform}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        return {"model": model}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The E-step, π_i, and local SGD on the experts."""
        model = batchnorm.receive(self.batch_norm, message["model"], client)
        likelihoods = self.experts.log_likelihoods(model, data.train)
        q = posterior(client["pi"].log(), likelihoods) * data.train.mask[:, None]
        end = self.local.minimise(
            self.experts.weighted_loss, model, data.train.adding(w=q), key, message["lr"], client.get("velocity")
        )
        client = batchnorm.keep(self.batch_norm, client, end.params) | {"pi": q.sum(0) / data.train.count}
        client = averaging.remember(self.local, client, end.velocity)
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged experts on the client's training data."""
        return client, recomputed(self.experts.encoder, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        """The client's mixture: log Σ_c π_ic p(y|x; θ_c)."""
        return self.predict_embedded(server, client, self.embed(server, x))

    def embed(self, server: Tree, x: Tensor) -> Tensor:
        """All experts' outputs, ``(n, C, K)``; x, where clients normalise by statistics of their own."""
        if batchnorm.is_local(self.batch_norm, server["model"]):
            return x
        return self.experts.outputs(server["model"], x)[0]

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tensor) -> Tensor:
        outputs = embedded
        if batchnorm.is_local(self.batch_norm, server["model"]):
            model = batchnorm.receive(self.batch_norm, server["model"], client)
            outputs, _ = self.experts.outputs(model, embedded)
        return self.task.criterion.mix(client["pi"].log().expand(len(outputs), -1), outputs)
