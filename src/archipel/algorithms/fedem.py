"""FedEM: federated expectation-maximisation from compressed statistics.

A. Dieuleveut, G. Fort, E. Moulines, G. Robin: Federated-EM with heterogeneity mitigation and variance reduction.
NeurIPS 2021. See docs/methods/federated-em.md. (The FedEM of O. Marfoq et al. is FedEMExperts here.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Clients, Info
from archipel.algorithms.parts.mean_field import MeanFieldEM
from archipel.core.examples import ClientData
from archipel.core.trees import Tree


@dataclass(frozen=True, eq=False)
class FedEM(MeanFieldEM):
    """Federated expectation-maximisation: a latent-variable model of all clients' data, from compressed statistics.

    It minimises F(θ) = −Σ_i ρ_i (mean log-likelihood of client i) + R(θ), ρ_i = n_i/n: the penalised likelihood of the
    data pooled. A round is Algorithm 1, with ρ_i where the paper, whose clients hold equally much, has 1/n:

    - each client of the cohort A: S_i ≈ s̄_i(T(Ŝ_k)), of all its examples or of a minibatch; Δ_i = S_i − Ŝ_k − V_i goes
      to the server as Quant(Δ_i); V_i ← V_i + α Quant(Δ_i);
    - server: H = V + p⁻¹ Σ_{i∈A} ρ_i Quant(Δ_i); Ŝ_{k+1} = Ŝ_k + γ_{k+1} H; V ← V + α Σ_{i∈A} ρ_i Quant(Δ_i); it sends
      Ŝ_{k+1} and T(Ŝ_{k+1}).

    V = Σ ρ_i V_i at all times. With all clients, all data, no compression and γ = 1 a round is an iteration of EM on
    the pooled data, and memories change nothing. They serve compression: the V_i approach h_i(Ŝ), so Δ_i and the
    compression's error go to zero however different clients are.

    Before the first round, two uncompressed exchanges with everybody give Ŝ_0 = s̄(θ_0) and V_0 = h(Ŝ_0); they are
    counted in the first round. After k rounds of EM the server holds the iterate k + 1 from θ_0.

    The sum is divided by the planned participation p, not by the share that answered: a lost reply counts as a client
    that didn't take part. That doesn't move the roots, but weakens H. If replies are lost with probability f, set
    ``participation=p * (1 - f)``. If every reply of a round is lost, the server waits.

    Info, by round: ``field``, ‖H‖², the server's own estimate of ‖h(Ŝ_k)‖² (and exact with all data, all clients and no
    compression); ``projected``, how many steps so far left the domain of T and were shortened; ``expectations``, how
    many E[s(y, z) | y; θ] the round has computed. For callbacks,
    :mod:`archipel.algorithms.parts.mean_field` has h(Ŝ) and F themselves.

    Args:
        family: the model: its statistics s̄, its M-step T, its penalty R.
        start: θ_0, parameters of the family; or a function ``(clients, key) → θ_0``.
        compressor: Quant, unbiased; ``Identity()`` sends statistics as they are.
        rate: γ, above 0; or a function of the round's number (from 0), as
            :class:`archipel.learning.schedules.Decay`.
        alpha: α, above 0; ``None``: 1/(1 + ω).
        batch: b, examples that each client draws a round; ``None``: all of them.
        replacement: draw minibatches with replacement.
        memory: V_{0,i}: ``"start"`` for h_i(Ŝ_0), ``"zero"``; or ``"off"``: V = 0 in all rounds, for comparison.
        participation: p, the share of clients that take part on average (of :class:`archipel.Bernoulli` cohorts);
            ``None``: the share that the round's cohort has, which is p for cohorts of a fixed size. Cohorts must be
            drawn uniformly, since examples count as weights already.

    Raises:
        ValueError: a setting out of its range, or a biased compressor.

    >>> import torch
    >>> from archipel import FedEM, Federation, fit
    >>> from archipel.families import GaussianMixture
    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> low, high = (x[:20] - 5, torch.zeros(20)), (x[20:] + 5, torch.zeros(40))  # y isn't used
    >>> start = {"weight": torch.ones(2) / 2, "mean": torch.tensor([[-1.0], [1.0]]), "covariance": torch.ones(2, 1)}
    >>> start = {name: value.double() for name, value in start.items()}
    >>> fedem = FedEM(GaussianMixture(2, 1, "diag"), start)
    >>> run = fit(fedem, Federation.from_arrays([low, high], test=0.0), rounds=5)
    >>> run.server["theta"]["weight"], [round(m.item()) for m in run.server["theta"]["mean"]]
    (tensor([0.3333, 0.6667], dtype=torch.float64), [-5, 5])
    """

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        server, info = self.move(self.difference, server, clients, key)
        return server, info | {"expectations": self.expectations(clients, self.batch)}

    def difference(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Estimate S_i from the client's examples, and tell the server how it differs from what it knows."""
        batch, mask = self.minibatch(data.train, key)
        return self.tell(client, message, self.family.statistics(message["theta"], batch, mask), key)
