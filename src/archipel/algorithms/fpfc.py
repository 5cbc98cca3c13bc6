"""FPFC.

X. Yu, Z. Liu, W. Wang, Y. Sun: Clustered federated learning based on nonconvex pairwise fusion. arXiv 2211.04218.
Equation numbers are those of docs/methods/personalised.md, or the paper's where it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.shared_model import LOCAL
from archipel.core import pairs
from archipel.core.checks import Positive
from archipel.core.examples import ClientData
from archipel.core.groups import among, means_within
from archipel.core.trees import PerClient, Tree, leaves, nbytes, put_rows, row, tree_map
from archipel.learning.sgd import SGD, proximal, trained, untrained
from archipel.learning.solver_checks import starts_afresh
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FPFC(Algorithm):
    """Clusters found by a non-convex penalty that fuses or separates every pair of personal models.

    The objective is (eq. 19)

        Σ_i f_i(ω_i) + 1/(2m) Σ_ij g(‖ω_i − ω_j‖),

    g the SCAD penalty smoothed at 0, with slope g'(t) = λt/ξ up to ξ, λ up to λ, (aλ − t)/(a − 1) up to aλ, and 0
    beyond: close models are pulled together, far ones not at all. It is solved by ADMM with θ_ij = ω_i − ω_j and
    multipliers v_ij. In a round

        client i ∈ A:  local steps on f_i(ω) + ρ/2 ‖ω − ζ_i‖² from its ω_i;
        server:        δ_ij = ω_i − ω_j + v_ij/ρ,  θ_ij = prox_{g/ρ}(δ_ij),  v_ij ← v_ij + ρ (ω_i − ω_j − θ_ij),
                       ζ_i = 1/m Σ_j (ω_j + θ_ij − v_ij/ρ).

    Only δ is stored, a model for each of the m(m − 1)/2 pairs: the proximal map (eq. 6 of the paper) is radial,
    θ = s(‖δ‖) δ (:func:`shrinkage`), and v/ρ = δ − θ, so that both can be had from it whenever they are needed. (v
    alone does not determine θ: it has the length λ wherever the penalty's slope is λ.) The log tells at the start how
    much memory the pairs take.

    Clients whose ‖θ_ij‖ is nearly 0 belong to one cluster (:meth:`clusters`). ADMM's own models of a cluster are alike,
    not equal; with ``final="clusters"`` the last round ends with the mean of each cluster's models, as in the paper,
    sent to everybody in it.

    Args:
        task: the model and its loss.
        local: the local solver: α and T_i epochs or steps.
        penalty: λ, above ξ.
        xi: ξ, above 0: differences up to it are smoothed.
        a: where the penalty flattens, above 1 + 1/ρ (3.7 is usual).
        rho: ρ, above 0.
        pairs: which are updated where some clients aren't sampled: ``"both"``, pairs of which both are, the default,
            or ``"either"``, pairs of which one is, as the authors' program does it (which updates those of which both
            are twice; here it is once).
        final: what clients end with: their ``"own"`` models, or the means of their ``"clusters"``.

    Raises:
        ValueError: a setting out of its range, with which of them to change.
        MemoryError: the pairs don't fit the machine.

    >>> import torch
    >>> from archipel import FPFC, SGD, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.ones(4, 1, 1), torch.tensor([[0.0], [0.2], [5.0], [5.1]])
    >>> fpfc = FPFC(Quadratic(), SGD(lr=0.3, steps=5, batch=None), penalty=1.0, xi=0.1)
    >>> run = fit(fpfc, quadratic_federation(A, a), rounds=60)
    >>> fpfc.clusters(run.server).tolist()
    [0, 0, 1, 1]
    """

    task: Task
    local: SGD = LOCAL
    penalty: Positive = 1.0
    xi: Positive = 1e-2
    a: float = 3.7
    rho: Positive = 1.0
    pairs: Literal["both", "either"] = "both"
    final: Literal["own", "clusters"] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.xi >= self.penalty:
            raise ValueError(
                f"FPFC's xi must lie below the penalty; given xi={self.xi} and penalty={self.penalty}. xi is where the "
                "penalty's slope stops growing: make it small against the differences that matter."
            )
        if not self.a > 1 + 1 / self.rho:
            raise ValueError(
                f"FPFC's a must lie above 1 + 1/rho = {1 + 1 / self.rho:g}; given {self.a}. Below, the proximal "
                "problem isn't convex: raise a (3.7 is usual) or rho."
            )
        starts_afresh("FPFC", self.local)

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model, m = self.task.init(key), clients.population
        pairs.say_memory("FPFC", m, nbytes(trained(model)))
        models = tree_map(lambda t: t.expand(m, *t.shape).clone(), trained(model))
        omega = pairs.flat(models)
        # Zeros that take no memory.
        delta = omega.new_zeros(()).expand(m * (m - 1) // 2, omega.shape[1])
        # Buffers, where the model has some, are never looked at again: the clients' own start from them.
        return {"models": models, "pairs": delta} | untrained(model)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        delta, m = server["pairs"], clients.population
        length = pairs.lengths(delta)
        s = self._shrinkage(length)
        rate = self.local.rate(clients.round, clients.rounds)
        message = {"zeta": PerClient(self.centres(server["models"], delta, s, clients.ids)), "lr": rate}
        replies = clients.collect(self.train, message, key)
        models = put_rows(server["models"], replies.ids, replies.value["model"])
        # δ ← ω_i − ω_j + v/ρ, with v/ρ = (1 − s) δ
        delta, length = pairs.ascend(
            delta, length, 1 - s, pairs.flat(models), among(replies.ids, m), both=self.pairs == "both"
        )
        found = self._clusters(length, m, self.xi)
        if self.final == "clusters" and clients.round + 1 == clients.rounds:
            models = means_within(found, models)
            clients.everyone.apply(self.settle, {"model": PerClient(models)}, key)
        info = {"loss": replies.value["loss"].mean(), "clusters": int(found.max()) + 1}
        return server | {"models": models, "pairs": delta}, info

    def centres(self, models: Tree, delta: Tensor, s: Tensor, ids: Tensor) -> Tree:
        """ζ_i of these clients, ``(m, …)``: of each pair θ − v/ρ = (2s − 1) δ. Rows of others aren't whole sums."""
        omega, m = pairs.flat(models), len(leaves(models)[0])
        return pairs.parted(omega.mean(0) + pairs.pulls(delta, 2 * s - 1, among(ids, m)) / m, models)

    def clusters(self, server: Tree, tolerance: float | None = None) -> Tensor:
        """``(m,)`` cluster numbers: clients joined by pairs with ‖θ_ij‖ up to the tolerance.

        Args:
            server: the server's state.
            tolerance: default: ξ, up to which the penalty is quadratic and shrinks all differences by one factor.
        """
        m = len(leaves(server["models"])[0])
        return self._clusters(pairs.lengths(server["pairs"]), m, self.xi if tolerance is None else tolerance)

    def _clusters(self, length: Tensor, m: int, tolerance: float) -> Tensor:
        close = self._shrinkage(length) * length <= tolerance * (1 + 1e-6)  # θ = ξ is rounded to either side
        return pairs.joined(close, m)

    def _shrinkage(self, length: Tensor) -> Tensor:
        return shrinkage(length, self.penalty, self.xi, self.a, self.rho)

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        server = message["server"]
        return {"model": row(server["models"], 0) | untrained(server)}  # all start from one

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local steps on f_i + ρ/2 ‖· − ζ_i‖² from the client's own model, whose buffers stay with it."""
        pull = proximal(self.rho, message["zeta"])
        end = self.local.minimise(self.task.loss, client["model"], data.train, key, message["lr"], shift=pull)
        return {"model": end.params}, {"model": trained(end.params), "loss": end.loss}

    def settle(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Take the cluster's model in place of the client's own, whose buffers stay."""
        return {"model": client["model"] | message["model"]}, {}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(client["model"], x)


def shrinkage(n: Tensor, penalty: float, xi: float, a: float, rho: float) -> Tensor:
    """S with prox_{g/ρ}(δ) = s δ for differences of length n (eq. 6 of the paper).

    ξρ/(λ + ξρ) up to ξ + λ/ρ; 1 − λ/(ρn) up to λ + λ/ρ; max(0, 1 − aλ/((a − 1)ρn))/(1 − 1/((a − 1)ρ)) up to aλ; then 1.

    >>> n = torch.tensor([0.5, 1.5, 3.0, 5.0])
    >>> shrinkage(n, penalty=1.0, xi=0.1, a=3.7, rho=1.0)
    tensor([0.0909, 0.3333, 0.8627, 1.0000])
    """
    safe = torch.where(n > 0, n, 1.0)
    middle = (1 - a * penalty / ((a - 1) * rho * safe)).clamp(min=0) / (1 - 1 / ((a - 1) * rho))
    s = torch.where(n <= a * penalty, middle, 1.0)
    s = torch.where(n <= penalty + penalty / rho, 1 - penalty / (rho * safe), s)
    return torch.where(n <= xi + penalty / rho, xi * rho / (penalty + xi * rho), s)
