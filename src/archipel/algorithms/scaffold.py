"""SCAFFOLD.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: stochastic controlled averaging
for federated learning. ICML 2020. Equation numbers are the paper's.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients, Weights
from archipel.algorithms.parts.shared_model import PLAIN, SharedModel
from archipel.core.checks import Positive
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, tree_map, zeros_like
from archipel.learning.sgd import SGD, Shift, trained
from archipel.learning.solver_checks import plain_steps


@dataclass(frozen=True, eq=False)
class SCAFFOLD(SharedModel):
    """One model for all clients by local steps that control variates correct for drift.

    The objective is Σ_k ρ_k f_k(θ). Client k keeps c_k, an estimate of ∇f_k, and the server their mean c = Σ_k ρ_k c_k.
    A local run starts from θ and makes K steps

        y ← y − η (g_k(y) − c_k + c) (eq. 3),  then  c_k⁺ = c_k − c + (θ − y)/(Kη) (eq. 4, option II),

    which is the mean of the gradients g_k along the run; or, by option I, c_k⁺ = ∇f_k(θ), the gradient of all the
    client's examples at the server's model, which takes one more pass over them. The server moves by the means over
    the sampled clients S, the control variate with what they are of all N (eq. 5), so that it stays the mean of
    everybody's:

        θ ← θ + η_g Σ_{k∈S} ρ_k (y_k − θ) / Σ_{k∈S} ρ_k,  c ← c + Σ_{k∈S} ρ_k (c_k⁺ − c_k)  (uniform: |S|/N · mean).

    At the fixed point c_k = ∇f_k(θ*) and c = 0: the common optimum, for every K and every choice of S.

    Args:
        task: the model and its loss.
        local: the local solver, without momentum: η and K above.
        server_rate: η_g, above 0.
        option: ``"II"``, or ``"I"``, which costs more and depends less on the local run.
        weights: ρ_k: ``"uniform"``, 1/N, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a server rate that isn't above 0; momentum, or no learning rate.

    >>> import torch
    >>> from archipel import SCAFFOLD, SGD, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> scaffold = SCAFFOLD(Quadratic(), SGD(lr=0.1, steps=10, batch=None))
    >>> fit(scaffold, quadratic_federation(A, a), rounds=60).server["model"]["theta"]  # FedAvg ends at 0.61
    tensor([0.8000], dtype=torch.float64)
    """

    local: SGD = PLAIN
    server_rate: Positive = 1.0
    option: Literal["I", "II"] = "II"
    _: KW_ONLY
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        plain_steps("SCAFFOLD", self.local)

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = super().init_server(clients, key)
        return server | {"control": zeros_like(trained(server["model"]))}

    def broadcast(self, server: Tree, clients: Clients) -> Tree:
        return super().broadcast(server, clients) | {"control": server["control"]}

    def step(self, server: Tree, mean: Tree, share: float) -> Tree:
        """Move the model and the control variate by the means (eq. 5)."""
        old, new = trained(server["model"]), trained(mean["model"])
        moved = tree_map(lambda old, new: torch.lerp(old, new, self.server_rate), old, new)
        control = add(server["control"], mean["change"], share)
        return {"model": server["model"] | mean["model"] | moved, "control": control}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = super().init_client(message, data, key)
        return client | {"control": zeros_like(trained(message["server"]["model"]))}

    def shift(self, client: Tree, message: Tree) -> Shift:
        """Return −c_k + c, which takes the drift out of the local steps (eq. 3)."""
        correction = add(message["control"], client["control"], -1.0)
        return lambda params: correction

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make corrected local steps, and update the client's control variate (eq. 4)."""
        start = self.complete(message["model"], client)
        client, end = self.local_run(client, message, data, key)
        if self.option == "I":
            change = add(self.gradient(start, data, key), client["control"], -1.0)
        else:
            scale = 1 / (end.steps * message["lr"])
            along = tree_map(lambda x, y: (x - y) * scale.to(x.dtype), trained(start), trained(end.params))
            change = add(along, message["control"], -1.0)
        client = client | {"control": add(client["control"], change)}
        return client, self.reply(end) | {"change": change}

    def gradient(self, model: Tree, data: ClientData, key: Tensor) -> Tree:
        """Return the gradient of all the client's examples as the solver takes it, with weight decay and clipping."""
        # With momentum, a step's velocity from rest is the gradient; a rate of 0 makes it a step of no length.
        once = replace(self.local, steps=1, epochs=None, batch=None, augment=None, momentum=0.5)
        return once.minimise(self.task.loss, model, data.train, key, torch.zeros(())).velocity
