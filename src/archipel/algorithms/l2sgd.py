"""L2SGD.

F. Hanzely, P. Richtárik: Federated learning of a mixture of global and local models. arXiv 2002.05516, 2020. Equation
numbers are those of docs/methods/personalised.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from typing import Annotated

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info, Weights
from archipel.algorithms.parts.shared_model import PLAIN, SharedModel
from archipel.core import keys
from archipel.core.checks import Interval, NonNegative
from archipel.core.examples import ClientData
from archipel.core.trees import PerClient, Tree, tree_map
from archipel.learning import batch_norm
from archipel.learning.client_models import at_rest, continued
from archipel.learning.sgd import SGD, trained


@dataclass(frozen=True, eq=False)
class L2SGD(SharedModel):
    """Personal models near their mean; a coin chooses between local steps and steps towards the mean.

    It minimises (1/K) Σ_k f_k(θ_k) + λ/(2K) Σ_k ‖θ_k − θ̄‖² (eq. 1) by the unbiased gradient of eq. (2). At each step
    one coin, shared by all clients, decides:

        with probability 1 − p:  θ_k ← θ_k − η/(K(1 − p)) ∇f_k(θ_k), at the clients;
        with probability p:      θ_k ← θ_k − ηλ/(Kp) (θ_k − θ̄).

    A round is a run of steps of the first kind and the run of the second kind that follows: the server draws how many
    there are, every client makes its local steps, sends its model, gets the mean, and makes the steps towards it. With
    equal weights steps of the second kind leave θ̄ where it is, so that a round is one exchange, p(1 − p) a step of the
    coin. With ``weights="examples"`` they move θ̄, and each of them is an exchange more. The rounds' info counts the
    steps (``iterations``). With a constant η the models hover about the minimiser, within O(η).

    Args:
        task: the model and its loss.
        local: η, minibatches, momentum within a round's local steps, …; it is one step of the coin, so ``steps=1``.
        penalty: λ, 0 or above.
        p: the probability of a step towards the mean, in (0, 1).
        weights: ρ_k, of clients in both sums and in θ̄: ``"uniform"``, 1/K, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of the mean's BatchNorm statistics; personal models keep their own.
        coins: coins to follow instead of drawing them (1 = towards the mean); they make a limited number of rounds.

    Raises:
        ValueError: a setting out of its range; at the start, ηλ/(Kp) above 1, which would jump over the mean.

    >>> import torch
    >>> from archipel import L2SGD, SGD, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1, 1), torch.tensor([[0.0], [1.0], [3.0]])
    >>> step = SGD(lr=0.3, steps=1, batch=None)
    >>> loopless = L2SGD(Quadratic(), step, penalty=1.0, p=0.4, coins=(0, 0, 1, 1, 0))
    >>> run = fit(loopless, quadratic_federation(A, a), rounds=2)
    >>> [round(client["model"]["theta"].item(), 6) for client in run.clients]
    [0.39159, 0.854938, 2.656636]
    """

    local: SGD = replace(PLAIN, steps=1)
    penalty: NonNegative = 0.1
    p: Annotated[float, Interval(0, 1, "()")] = 0.1
    _: KW_ONLY
    weights: Weights = "uniform"
    coins: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.steps != 1:
            raise ValueError("The coin decides how many local steps L2SGD makes: give its local solver steps=1.")
        if self.coins is not None and not set(self.coins) <= {0, 1}:
            raise ValueError(f"L2SGD's coins must be 0 (a local step) or 1 (towards the mean); given {self.coins}.")

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        largest = float(self._shares(clients).max())
        pull = self.local.lr * self.penalty * largest / self.p
        if pull > 1 + 1e-12:
            raise ValueError(
                f"L2SGD's ηλ/(Kp) must be at most 1, or a step towards the mean jumps over it; with "
                f"lr={self.local.lr}, penalty={self.penalty}, p={self.p} and {clients.population} clients it is "
                f"{pull:.3g}. Lower the learning rate to {self.p / (self.penalty * largest):.3g} or less, or raise p."
            )
        return {"model": self.task.init(key)}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        return at_rest(self.local, {"model": model}, model)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        alone, together = self._runs(clients.round, key)
        share, rate = PerClient(self._shares(clients)), self.local.rate(clients.round, clients.rounds)
        message = {"steps": torch.tensor(alone), "lr": rate / (1 - self.p), "share": share}
        mean = clients.mean(self.descend, message, key, self.weights)
        model = server["model"] | mean["model"]
        message = {"lr": rate * self.penalty / self.p, "share": share}
        if self.weights == "examples":  # a step moves the mean, so that each needs the one before
            for _ in range(together):
                message |= {"mean": trained(model), "steps": torch.tensor(1)}
                model = model | clients.mean(self.approach_and_send, message, key, self.weights)
        elif together:
            message |= {"mean": trained(model), "steps": torch.tensor(together)}
            clients.apply(self.approach, message, key)
        return {"model": self.refreshed(model, clients, key)}, {"loss": mean["loss"], "iterations": alone + together}

    def descend(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local steps, then the model to the server."""
        steps, loss = int(message["steps"]), torch.zeros(())
        if steps:
            local, rate = replace(self.local, steps=steps), message["lr"] * message["share"]
            client, end = continued(local, self.task.loss, client, data, key, rate)
            loss = end.loss
        return client, {"model": batch_norm.send(self.batch_norm, client["model"]), "loss": loss}

    def approach(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make steps towards a mean that they do not move: each shrinks what lies between it and the model."""
        left = (1 - message["lr"] * message["share"]) ** message["steps"]
        nearer = tree_map(lambda p, c: c + left.to(p.dtype) * (p - c), trained(client["model"]), message["mean"])
        return client | {"model": client["model"] | nearer}, {}

    def approach_and_send(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make a step towards the mean, and send the new model for the next mean."""
        client, _ = self.approach(client, message, data, key)
        return client, trained(client["model"])

    def own_model(self, server: Tree, client: Tree) -> Tree:
        return client["model"]

    def _shares(self, clients: Clients) -> Tensor:
        """``(m,)``: 1/K, or n_k/n."""
        held = clients.sizes.double() if self.weights == "examples" else torch.ones(clients.population).double()
        return held / held.sum()

    def _runs(self, round: int, key: Tensor) -> tuple[int, int]:
        """Return the coins of a round: so many local steps, then so many towards the mean."""
        if self.coins is not None:
            rounds = runs(self.coins)
            if round >= len(rounds):
                raise ValueError(f"L2SGD's {len(self.coins)} coins make {len(rounds)} rounds; ask fit for no more.")
            return rounds[round]
        # The wait for an event of probability q is 1 + ⌊ln u / ln(1 − q)⌋: the coin turns with p, and back with 1 − p.
        u = (1 - keys.uniform(keys.fold(key, "coins"), 2, dtype=torch.float64)).log().tolist()
        return 1 + math.floor(u[0] / math.log1p(-self.p)), 1 + math.floor(u[1] / math.log(self.p))


def runs(coins: Sequence[int]) -> list[tuple[int, int]]:
    """Return the rounds of (local steps, steps towards the mean) that a sequence of coins makes.

    >>> runs((0, 0, 1, 1, 0))
    [(2, 2), (1, 0)]
    >>> runs((1, 0, 1))
    [(0, 1), (1, 1)]
    """
    lengths = [(coin, len(list(same))) for coin, same in groupby(coins)]
    lengths = [(0, 0)] * (list(coins[:1]) == [1]) + lengths + [(1, 0)] * (list(coins[-1:]) == [0])
    return [(alone, together) for (_, alone), (_, together) in zip(lengths[::2], lengths[1::2], strict=True)]
