"""SCAFFOLD. S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: stochastic
controlled averaging for federated learning. ICML 2020. Equation numbers are the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, tree_map, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, trained
from archipel.learning.solver_checks import plain_steps
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class SCAFFOLD(Algorithm):
    """One model for everybody by local steps whose drift is taken out with control variates.

    The objective is Σ_k ρ_k f_k(θ). Client k keeps c_k, an estimate of ∇f_k, and the server their mean c = Σ_k ρ_k c_k.
    A local run starts from θ and makes K steps

        y ← y − η (g_k(y) − c_k + c) (eq. 3),  then  c_k⁺ = c_k − c + (θ − y)/(Kη) (eq. 4, option II),

    which is the mean of the gradients g_k along the run; or, by option I, c_k⁺ = ∇f_k(θ), the gradient of all the
    client's examples at the server's model, which takes one more pass over them. The server moves by the means over
    the sampled clients S, the control variate with what they are of all N (eq. 5), so that it stays the mean of
    everybody's:

        θ ← θ + η_g Σ_{k∈S} ρ_k (y_k − θ) / Σ_{k∈S} ρ_k,  c ← c + Σ_{k∈S} ρ_k (c_k⁺ − c_k)  (uniform: |S|/N · mean).

    At the fixed point c_k = ∇f_k(θ*) and c = 0: the common optimum, whatever K, whoever is sampled.

    Args:
        task: the model and its loss.
        local: the local solver, without momentum: η and K above.
        server_rate: η_g, above 0.
        option: ``"II"``, or ``"I"``, which costs more and depends less on the local run.
        weights: ρ_k: ``"uniform"``, 1/N, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a server rate that isn't above 0; momentum, or no learning rate.

    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> scaffold = SCAFFOLD(Quadratic(), SGD(lr=0.1, steps=10, batch=None))
    >>> fit(scaffold, quadratic_federation(A, a), rounds=60).server["model"]["theta"]  # FedAvg ends at 0.61
    tensor([0.8000], dtype=torch.float64)
    """

    task: Task
    local: SGD
    server_rate: float = 1.0
    option: Literal["I", "II"] = "II"
    weights: Weights = "uniform"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        checks.above_zero("SCAFFOLD", server_rate=self.server_rate)
        checks.one_of("SCAFFOLD", "option", self.option, "I", "II")
        plain_steps("SCAFFOLD", self.local)
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
        start = batchnorm.receive(self.batch_norm, message["model"], client)
        client, end = averaging.train(self, client, message, data, key, lambda here: correction)
        if self.option == "I":
            change = add(self.gradient(start, data, key), client["control"], -1.0)
        else:
            scale = 1 / (end.steps * message["lr"])
            along = tree_map(lambda x, y: (x - y) * scale.to(x.dtype), trained(start), trained(end.params))
            change = add(along, message["control"], -1.0)
        client = client | {"control": add(client["control"], change)}
        return client, {"model": batchnorm.send(self.batch_norm, end.params), "change": change, "loss": end.loss}

    def gradient(self, model: Tree, data: ClientData, key: Tensor) -> Tree:
        """The gradient of all the client's examples as the solver takes it, weight decay and clipping included."""
        # With momentum, a step's velocity from rest is the gradient; a rate of 0 makes it a step of no length.
        once = replace(self.local, steps=1, epochs=None, batch=None, augment=None, momentum=0.5)
        return once.minimise(self.task.loss, model, data.train, key, torch.zeros(())).velocity

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return batchnorm.is_local(self.batch_norm, server["model"])
