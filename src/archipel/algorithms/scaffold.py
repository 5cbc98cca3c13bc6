"""SCAFFOLD. S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: stochastic
controlled averaging for federated learning. ICML 2020. Equation numbers are the paper's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel import averaging, batchnorm, checks
from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.batchnorm import BatchNorm
from archipel.examples import ClientData
from archipel.local import SGD, trained
from archipel.task import Task
from archipel.trees import Tree, add, tree_map, zeros_like


@dataclass(frozen=True, eq=False)
class SCAFFOLD(Algorithm):
    """One model for everybody by local steps whose drift is taken out with control variates.

    The objective is Σ_k ρ_k f_k(θ). Client k keeps c_k, an estimate of ∇f_k, and the server their mean c = Σ_k ρ_k c_k.
    A local run starts from θ and makes K steps

        y ← y − η (g_k(y) − c_k + c) (eq. 3),  then  c_k⁺ = c_k − c + (θ − y)/(Kη) (eq. 4, option II),

    which is the mean of the gradients g_k along the run. The server moves by the means over the sampled clients S, the
    control variate with what they are of all N (eq. 5), so that it stays the mean of everybody's:

        θ ← θ + η_g Σ_{k∈S} ρ_k (y_k − θ) / Σ_{k∈S} ρ_k,  c ← c + Σ_{k∈S} ρ_k (c_k⁺ − c_k)  (uniform: |S|/N · mean).

    At the fixed point c_k = ∇f_k(θ*) and c = 0: the common optimum, whatever K, whoever is sampled.

    Args:
        task: the model and its loss.
        local: the local solver, without momentum: η and K above.
        server_rate: η_g, above 0.
        weights: ρ_k: ``"uniform"``, 1/N, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a server rate that isn't above 0; momentum, or no learning rate.

    >>> from archipel import fit
    >>> from archipel.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> scaffold = SCAFFOLD(Quadratic(), SGD(lr=0.1, steps=10, batch=None))
    >>> fit(scaffold, quadratic_federation(A, a), rounds=60).server["model"]["theta"]  # FedAvg ends at 0.61
    tensor([0.8000], dtype=torch.float64)
    """

    task: Task
    local: SGD
    server_rate: float = 1.0
    weights: Weights = "uniform"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        checks.above_zero("SCAFFOLD", server_rate=self.server_rate)
        checks.plain_steps("SCAFFOLD", self.local)
        batchnorm.check(self.batch_norm)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        return {"model": model, "control": zeros_like(trained(model))}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        return averaging.enrol(self, model) | {"control": zeros_like(trained(model))}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients) | {"control": server["control"]}
        mean, share = clients.mean_and_share(self.train, message, key, self.weights)
        moved = tree_map(
            lambda old, new: torch.lerp(old, new, self.server_rate), trained(server["model"]), trained(mean["model"])
        )
        model = averaging.refreshed(self, server["model"] | mean["model"] | moved, clients, key)
        return {"model": model, "control": add(server["control"], mean["change"], share)}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Corrected local SGD from the shared model, and the client's new control variate."""
        correction = add(message["control"], client["control"], -1.0)
        client, end = averaging.train(self, client, message, data, key, lambda here: correction)
        scale = 1 / (end.steps * message["lr"])
        change = tree_map(
            lambda x, y, c: (x - y) * scale.to(x.dtype) - c,
            trained(message["model"]),
            trained(end.params),
            message["control"],
        )
        client = client | {"control": add(client["control"], change)}
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "change": change, "loss": end.loss}

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)
