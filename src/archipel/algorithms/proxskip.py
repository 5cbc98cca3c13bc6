"""ProxSkip, called Scaffnew in federated learning.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtárik: ProxSkip: yes! Local gradient steps provably lead to communication
acceleration! Finally! ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info, NoReplyError, Weights
from archipel.algorithms.parts.shared_model import PLAIN, SharedModel
from archipel.core import keys
from archipel.core.checks import Interval
from archipel.core.examples import ClientData
from archipel.core.groups import among
from archipel.core.trees import Tree, add, tree_map, zeros_like
from archipel.learning.sgd import SGD, Shift, trained
from archipel.learning.solver_checks import plain_steps


@dataclass(frozen=True, eq=False)
class ProxSkip(SharedModel):
    """One model for all clients with rare communication, which accelerates convergence (Scaffnew).

    The objective is Σ_k ρ_k f_k(θ). Client k keeps h_k, an estimate of ∇f_k, 0 at first. In every iteration all clients
    step, and one coin that turns up with probability p says whether they communicate (Algorithm 2):

        x̂_k = x_k − γ (g_k(x_k) − h_k);
        with probability p:  x_k ← x̄ = Σ_j ρ_j x̂_j,  h_k ← h_k + p/γ (x̄ − x̂_k);  otherwise  x_k ← x̂_k.

    Σ_k ρ_k h_k stays 0, and h_k → ∇f_k(θ*). With γ ≤ 1/L, Ψ = Σ_k ‖x_k − θ*‖² + (γ/p)² Σ_k ‖h_k − ∇f_k(θ*)‖² shrinks in
    expectation by 1 − min(γμ, p²) an iteration (Theorem 3.6): with p = 1/√κ it takes O(κ log 1/ε) iterations, but only
    O(√κ log 1/ε) communications. p = 1 is gradient descent.

    A round is all the iterations up to a communication: the server draws their number, geometric with mean 1/p, and
    sends it. It ends with the mean going back to those it was made of, so that a round costs one model up and two down:
    one to start from, since the last round's clients may have been others, and one to correct h_k by. With partial
    participation the mean is over those who answered; Σ ρ_k h_k stays 0 and θ* stays a fixed point, but the rate is no
    longer the theorem's. A client that misses its correction gets it when it next takes part, before it steps again;
    until then Σ ρ_k h_k is not 0.

    Args:
        task: the model and its loss.
        local: the local solver, without momentum: γ is its lr, and its number of steps is drawn instead of taken.
        p: the probability of communicating after an iteration, in (0, 1].
        weights: ρ_k: ``"uniform"`` as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.
        coins: the coins of iterations 0, 1, … instead of drawn ones (1 = communicate), for tests and trajectories.

    Raises:
        ValueError: p outside (0, 1]; momentum, or no learning rate; too few coins for the rounds.

    >>> import torch
    >>> from archipel import SGD, ProxSkip, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> skip = ProxSkip(Quadratic(), SGD(lr=0.25, steps=1, batch=None), p=0.5)
    >>> run = fit(skip, quadratic_federation(A, a), rounds=100)
    >>> run.server["model"]["theta"], [round(client["h"]["theta"].item(), 6) for client in run.clients]
    (tensor([0.8000], dtype=torch.float64), [0.8, -0.8])
    """

    local: SGD = PLAIN
    p: Annotated[float, Interval(0, 1, "(]")] = 0.1
    _: KW_ONLY
    weights: Weights = "uniform"
    coins: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        plain_steps("ProxSkip", self.local)

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return super().init_server(clients, key) | {"iteration": torch.tensor(0)}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        clients, owed = self.settled(server, clients, key)
        steps = self.iterations(int(server["iteration"]), key)
        message = self.broadcast(server, clients)
        mean = clients.mean(self.train, message | {"steps": torch.tensor(steps)}, key, self.weights)
        model = server["model"] | mean["model"]
        correction = {"mean": trained(model), "lr": message["lr"]}
        missed = self.unconfirmed(clients, correction, key)
        if bool(missed.any()):
            owed = owed | {str(clients.round): {"correction": correction, "who": missed}}
        model = self.refreshed(model, clients, key)
        new = {"model": model, "iteration": server["iteration"] + steps} | ({"owed": owed} if owed else {})
        return new, {"loss": mean["loss"], "steps": steps}

    def settled(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Clients, Tree]:
        """Send corrections that were missed in earlier rounds: the clients who owe none, and what is still owed.

        The next local run would overwrite the x̂_k that the correction needs.
        """
        owed: Tree = {}
        for round, debt in server.get("owed", {}).items():
            asked = clients.ids[debt["who"][clients.ids]]
            who = debt["who"].index_fill(0, asked, False)
            if len(asked):
                who = who | self.unconfirmed(clients.only(asked), debt["correction"], key)
                clients = clients.only(clients.ids[~who[clients.ids]])
            if bool(who.any()):
                owed[round] = debt | {"who": who}
        return clients, owed

    def unconfirmed(self, clients: Clients, correction: Tree, key: Tensor) -> Tensor:
        """Send a correction: ``(m,)`` bool, true for those of the clients whose confirmation is missing."""
        missing = among(clients.ids, clients.population)
        try:
            return missing.index_fill(0, clients.collect(self.correct, correction, key).ids, False)
        except NoReplyError:
            return missing

    def iterations(self, done: int, key: Tensor) -> int:
        """How many iterations the round has: up to the first coin that turns up, that one included."""
        if self.coins is not None:
            if 1 not in self.coins[done:]:
                raise ValueError(f"ProxSkip's coins hold no communication (1) from iteration {done} on: give more.")
            return list(self.coins[done:]).index(1) + 1
        if self.p == 1:
            return 1
        # The geometric law by inversion: P(steps > n) = (1 − p)^n.
        u = float(keys.uniform(keys.fold(key, "coins"), dtype=torch.float64))
        return 1 + int(math.log1p(-u) / math.log1p(-self.p))

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        nothing = zeros_like(trained(message["server"]["model"]))
        return super().init_client(message, data, key) | {"h": nothing, "end": nothing, "waits": torch.tensor(0.0)}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make the round's local steps from the shared model."""
        # The number is broadcast, the same for all clients of a batch: a plain number, not data of theirs.
        drawn = replace(self, local=replace(self.local, steps=int(message["steps"]), epochs=None))
        client, end = drawn.local_run(client, message, data, key)
        client = client | {"end": trained(end.params), "waits": torch.ones_like(client["waits"])}
        return client, self.reply(end)

    def shift(self, client: Tree, message: Tree) -> Shift:
        """Return −h_k, the correction of every local step."""
        minus_h = tree_map(torch.neg, client["h"])
        return lambda params: minus_h

    def correct(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Update h_k ← h_k + p/γ (x̄ − x̂_k) at the clients whose x̂_k is in the mean."""
        scale = client["waits"] * (self.p / message["lr"])
        gap = add(message["mean"], client["end"], -1.0)
        h = tree_map(lambda h, gap: h + scale.to(h.dtype) * gap, client["h"], gap)
        return client | {"h": h, "waits": torch.zeros_like(client["waits"])}, {}
