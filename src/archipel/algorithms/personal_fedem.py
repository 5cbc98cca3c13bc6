"""PersonalFedEM: FedEM of a mixture whose components are shared and whose weights are each client's own.

Steps and memories are those of A. Dieuleveut, G. Fort, E. Moulines, G. Robin (NeurIPS 2021); the model is ours. See
docs/methods/federated-em.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithms.fedem import FedEM
from archipel.core.checks import NonNegative
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.families.mixture import Mixture


@dataclass(frozen=True, eq=False)
class PersonalFedEM(FedEM):
    """Federated EM of a mixture whose weights are personal: client i's examples come from Σ_k π_ik p(y; θ_k).

    It minimises F(θ, π_1, …, π_m) = −Σ_i ρ_i (mean log-likelihood of client i at θ, π_i) + R(θ) − Σ_ik a log π_ik/nK,
    ρ_i = n_i/n, the last term for a Dirichlet(1 + a/K) law of each π_i. The expected complete-data log-likelihood is a
    sum of one term in θ and one in each π_i, so that an iteration of EM is :class:`FedEM`'s with E-steps at (θ, π_i),
    and one more M-step at each client,

        π_ik ← (Σ_j r_ijk + a/K) / (n_i + a),

    r_ij being the responsibilities of example j: F never rises (full data and participation, γ = 1, an exact penalty).
    Without a, a component that a client has had no example of has no weight there, for ever, and new examples of it
    next to no density.

    π_i is kept at the client. What is sent is FedEM's: the sums of a component must be divided by its mass, and that
    is why the mass of components at a client, Σ_j r_ij, is in the reply; the server needs the sum over
    clients alone, which gives θ its own weights.

    A client starts with the weights that all clients have together. With minibatches of b examples it moves them by
    b/n_i of the way, so that about one pass over its data is behind them.

    Args:
        family: a mixture.
        start: θ_0, parameters of the family; or a function ``(clients, key) → θ_0``.
        compressor, rate, alpha, batch, replacement, memory, participation: as :class:`FedEM`'s.
        pseudo_count: a, 0 or above: how many examples, spread evenly over components, each client has seen beforehand.

    Raises:
        ValueError: a setting out of its range, a family that isn't a mixture, or a biased compressor.

    >>> import torch
    >>> from archipel import Federation, PersonalFedEM, fit
    >>> from archipel.families import GaussianMixture
    >>> x = torch.tensor([[-5.0], [-4.0], [4.0], [5.0]])
    >>> both, high = (x, torch.zeros(4)), (x[2:], torch.zeros(2))  # y isn't used
    >>> start = {"weight": torch.ones(2) / 2, "mean": torch.tensor([[-1.0], [1.0]]), "covariance": torch.ones(2, 1)}
    >>> start = {name: value.double() for name, value in start.items()}
    >>> algorithm = PersonalFedEM(GaussianMixture(2, 1, "diag"), start)
    >>> run = fit(algorithm, Federation.from_arrays([both, high], test=0.0), rounds=5)
    >>> [[round(share, 3) for share in client["weight"].tolist()] for client in run.clients]
    [[0.5, 0.5], [0.167, 0.833]]
    """

    family: Mixture
    pseudo_count: NonNegative = 1.0

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return super().init_client(message, data, key) | {"weight": message["server"]["theta"]["weight"]}

    def difference(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Estimate S_i at (θ, π_i), move π_i, and tell the server how S_i differs from what it knows."""
        batch, mask = self.minibatch(data.train, key)
        estimate = self.family.statistics(self.own(client, message["theta"]), batch, mask)
        n, a = data.train.count, self.pseudo_count
        best = (n * estimate["weight"] + a / self.family.components) / (n + a)
        weight = client["weight"] + (mask.sum() / n).clamp(max=1) * (best - client["weight"])
        return self.tell(client | {"weight": weight}, message, estimate, key)

    def own(self, client: Tree, theta: Tree) -> Tree:
        """θ with the client's weights; before it is enrolled, with everybody's."""
        return theta | {"weight": client.get("weight", theta["weight"])}

    def weights(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply π_i, for evaluations."""
        return client, client["weight"]
