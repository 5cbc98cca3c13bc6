"""ProxSkip, as Scaffnew in federated learning. K. Mishchenko, G. Malinovsky, S. Stich, P. Richtárik: ProxSkip: yes!
Local gradient steps provably lead to communication acceleration! Finally! ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks, keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, tree_map, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, trained
from archipel.learning.solver_checks import plain_steps
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class ProxSkip(Algorithm):
    """One model for everybody; communication is skipped most of the time, and accelerated by it (Scaffnew).

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
    longer the theorem's.

    Args:
        task: the model and its loss.
        local: the local solver, without momentum: γ is its lr, and its number of steps is drawn instead of taken.
        p: the probability of communicating after an iteration, in (0, 1].
        weights: ρ_k: ``"uniform"`` as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.
        coins: the coins of iterations 0, 1, … instead of drawn ones (1 = communicate), for tests and trajectories.

    Raises:
        ValueError: p outside (0, 1]; momentum, or no learning rate; too few coins for the rounds.

    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> skip = ProxSkip(Quadratic(), SGD(lr=0.25, steps=1, batch=None), p=0.5)
    >>> run = fit(skip, quadratic_federation(A, a), rounds=100)
    >>> run.server["model"]["theta"], [round(client["h"]["theta"].item(), 6) for client in run.clients]
    (tensor([0.8000], dtype=torch.float64), [0.8, -0.8])
    """

    task: Task
    local: SGD
    p: float = 0.1
    weights: Weights = "uniform"
    batch_norm: BatchNorm = "share"
    coins: Sequence[int] | None = None

    def __post_init__(self) -> None:
        checks.number("ProxSkip", p=self.p)
        if not 0 < self.p <= 1:
            raise ValueError(
                f"ProxSkip's p must lie in (0, 1]; given {self.p}. 1/√κ is the theory's choice, 1 communicates always."
            )
        plain_steps("ProxSkip", self.local)
        batchnorm.check(self.batch_norm)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        return {"model": self.task.init(key), "iteration": torch.tensor(0)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        nothing = zeros_like(trained(model))
        return averaging.enrol(self, model) | {"h": nothing, "end": nothing, "waits": torch.tensor(0.0)}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        steps = self.iterations(int(server["iteration"]), key)
        message = averaging.broadcast(self, server["model"], clients)
        mean = clients.mean(self.train, message | {"steps": torch.tensor(steps)}, key, self.weights)
        model = server["model"] | mean["model"]
        clients.apply(self.correct, {"mean": trained(model), "lr": message["lr"]}, key)
        model = averaging.refreshed(self, model, clients, key)
        return {"model": model, "iteration": server["iteration"] + steps}, {"loss": mean["loss"], "steps": steps}

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

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The round's local steps from the shared model."""
        h = client["h"]
        minus_h = tree_map(torch.neg, h)
        # The number is broadcast, the same for all clients of a batch: a plain number, and not data of theirs.
        drawn = replace(self, local=replace(self.local, steps=int(message["steps"]), epochs=None))
        client, end = averaging.train(drawn, client, message, data, key, lambda here: minus_h)
        client = client | {"end": trained(end.params), "waits": torch.ones_like(client["waits"])}
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}

    def correct(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """h_k ← h_k + p/γ (x̄ − x̂_k), for those whose x̂_k is in the mean."""
        scale = client["waits"] * (self.p / message["lr"])
        gap = add(message["mean"], client["end"], -1.0)
        h = tree_map(lambda h, gap: h + scale.to(h.dtype) * gap, client["h"], gap)
        return client | {"h": h, "waits": torch.zeros_like(client["waits"])}, {}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return batchnorm.is_local(self.batch_norm, server["model"])
