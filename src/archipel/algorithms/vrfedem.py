"""VR-FedEM: federated EM with variance reduction.

A. Dieuleveut, G. Fort, E. Moulines, G. Robin: Federated-EM with heterogeneity mitigation and variance reduction.
NeurIPS 2021. See docs/methods/federated-em.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info
from archipel.algorithms.parts.mean_field import MeanFieldEM
from archipel.core.checks import PositiveInt
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add


@dataclass(frozen=True, eq=False)
class VRFedEM(MeanFieldEM):
    """Federated EM with SPIDER's variance reduction: minibatches whose noise goes to zero with the steps.

    As :class:`FedEM`, but a client's estimate of s̄_i(T(Ŝ)) is kept and corrected from step to step (Algorithm 2). An
    outer loop has k_in rounds. In its first one every client makes a pass over all its examples,

        S_i ← s̄_i(T(Ŝ)),

    and in each of the others it draws a minibatch B of b examples, the same for both points,

        S_i ← S_i + b⁻¹ Σ_{j∈B} [s̄_ij(T(Ŝ_k)) − s̄_ij(T(Ŝ_{k−1}))].

    Δ_i = S_i − Ŝ_k − V_i, its compression, the memories and the server's step are FedEM's. (The paper writes the pass
    apart from the inner loop, whose first step starts with Ŝ_{−1} = Ŝ_0 and corrects by nothing: they are one round
    here.) With one client and no compression this is SPIDER-EM; with b as large as the largest client, drawn without
    replacement, the corrections telescope and it is FedEM with full data.

    T(Ŝ_{k−1}) isn't sent again: each client keeps the parameters that its S_i stands at. With full participation they
    are the last round's, and this is the paper's method, which knows no other. A client that was not drawn, or whose
    reply was lost, goes on from where its own S_i stands, which keeps the correction a difference between the point it
    was at and the one it is at; who misses a pass has one in the next outer loop that it is drawn in.

    Info as FedEM's, and ``inner``, the round's place in its outer loop, from 0. A pass computes n_i expectations, and a
    correction 2b.

    Args:
        family: the model: its statistics s̄, its M-step T, its penalty R.
        start: θ_0, parameters of the family; or a function ``(clients, key) → θ_0``.
        batch: b, examples that each client draws for a correction.
        inner: k_in, rounds of an outer loop, the pass among them.
        compressor: Quant, unbiased; ``Identity()`` sends statistics as they are.
        rate: γ, above 0; or a function of the round's number (from 0).
        alpha: α, above 0; ``None``: 1/(1 + ω).
        replacement: draw minibatches with replacement.
        memory: V_{0,i}: ``"start"`` for h_i(Ŝ_0), ``"zero"``; or ``"off"``.
        participation: p, as FedEM's.

    Raises:
        ValueError: a setting out of its range, or a biased compressor.

    >>> import torch
    >>> from archipel import Federation, VRFedEM, fit
    >>> from archipel.families import GaussianMixture
    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> low, high = (x[:20] - 5, torch.zeros(20)), (x[20:] + 5, torch.zeros(40))  # y isn't used
    >>> start = {"weight": torch.ones(2) / 2, "mean": torch.tensor([[-1.0], [1.0]]), "covariance": torch.ones(2, 1)}
    >>> start = {name: value.double() for name, value in start.items()}
    >>> algorithm = VRFedEM(GaussianMixture(2, 1, "diag"), start, batch=5, inner=4)
    >>> run = fit(algorithm, Federation.from_arrays([low, high], test=0.0), rounds=8)
    >>> run.server["theta"]["weight"], [r["expectations"] for r in run.history]
    (tensor([0.3333, 0.6667], dtype=torch.float64), [240, 20, 20, 20, 60, 20, 20, 20])
    """

    batch: PositiveInt = field(kw_only=True)
    inner: PositiveInt = field(kw_only=True)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        zero = torch.zeros((), dtype=torch.int64)
        return super().init_server(clients, key) | {"outer": zero, "inner": zero}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        estimate = self.expected(message["server"]["theta"], data)
        memory = self._first_memory(message["server"]["statistics"], estimate if self.memory == "start" else None)
        return memory | {"estimate": estimate, "theta": message["server"]["theta"]}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        place = int(server["inner"])
        if place:
            step, expectations = self.correct, 2 * self.expectations(clients, self.batch)
        else:
            step, expectations = self.refresh, self.expectations(clients, None)
        server, info = self.move(step, server, clients, key)
        ended = int(place + 1 == self.inner)
        loops = {"outer": server["outer"] + ended, "inner": torch.tensor((place + 1) * (1 - ended))}
        return server | loops, info | {"inner": place, "expectations": expectations}

    def _first_passes(self) -> int:
        return 3 if self.memory == "start" else 2  # for Ŝ_0, for V_0, and for the S_i at the clients

    def refresh(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Compute S_i from all the client's examples."""
        estimate = self.expected(message["theta"], data)
        return self.tell(client | {"estimate": estimate, "theta": message["theta"]}, message, estimate, key)

    def correct(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Correct S_i by a minibatch: its statistics at the server's θ minus those at the θ that S_i belongs to."""
        batch, mask = self.minibatch(data.train, key)
        here, there = (self.family.statistics(theta, batch, mask) for theta in (message["theta"], client["theta"]))
        estimate = add(client["estimate"], add(here, there, -1.0))
        return self.tell(client | {"estimate": estimate, "theta": message["theta"]}, message, estimate, key)
