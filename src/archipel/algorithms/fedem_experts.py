"""FedEM with experts: shared models that each client mixes in its own proportions.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated multi-task learning under a mixture of distributions.
NeurIPS 2021. See docs/methods/mixtures.md. (FedEM is the method of A. Dieuleveut et al. here.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import PositiveInt
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning.experts import Experts, posterior, recomputed
from archipel.learning.tasks import Supervised


@dataclass(frozen=True, eq=False)
class FedEMExperts(SharedModel):
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

    >>> import torch
    >>> from archipel import SGD, FedEMExperts, Federation, classification, fit
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:100], y[:100]), (x[100:], 1 - y[100:])])
    >>> task = classification(torch.nn.Identity(), opposite)
    >>> run = fit(FedEMExperts(task, SGD(lr=1.0, epochs=2, batch=20), components=2), opposite, rounds=15)
    >>> run.metrics["average_accuracy"] > 0.9  # no common model can be better than 1/2
    True
    """

    task: Supervised
    components: PositiveInt = 3
    encoders: Literal["shared", "own"] = "own"

    predict_global = None  # type: ignore[assignment]  # each client mixes the experts in its own proportions

    @property
    def experts(self) -> Experts:
        return Experts(self.task, self.components, self.encoders == "shared")

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"model": self.experts.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return super().init_client(message, data, key) | {"pi": torch.full((self.components,), 1 / self.components)}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run the E-step, set π_i, and train the experts by local SGD."""
        likelihoods = self.experts.log_likelihoods(self.complete(message["model"], client), data.train)
        q = posterior(client["pi"].log(), likelihoods) * data.train.mask[:, None]
        weighted = replace(data, train=data.train.adding(w=q))
        client, end = self.local_run(client, message, weighted, key, self.experts.weighted_loss)
        return client | {"pi": q.sum(0) / data.train.count}, self.reply(end)

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply BatchNorm's statistics of the averaged experts on the client's training data."""
        return client, recomputed(self.experts.encoder, message["model"], data.train)

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """All experts' outputs, ``(n, C, K)``; x, where clients normalise by statistics of their own."""
        return self.experts.embed(server["model"], x, self.batch_norm)

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        """Mix the experts as the client does: log Σ_c π_ic p(y|x; θ_c)."""
        outputs = self.experts.own(server["model"], client, embedded, self.batch_norm)
        return self.task.criterion.mix(client["pi"].log().expand(outputs.shape[0], -1), outputs)
