"""FedDyn. D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated learning based
on dynamic regularization. ICLR 2021. Equation numbers are those of the page on personalised algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, proximal, trained
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class FedDyn(Algorithm):
    """One model for everybody, whose fixed point is the common optimum however many local steps are made.

    Client k keeps an estimate g_k of ∇f_k at where it last was, 0 at first, and minimises by local SGD from θ^(t)
    (eq. 12)

        f_k(θ_k) − ⟨g_k, θ_k⟩ + μ/2 ‖θ_k − θ^(t)‖², then g_k ← g_k − μ (θ_k^(t+1) − θ^(t)) (eq. 15),

    which is ∇f_k(θ_k^(t+1)) where the minimum is exact (eq. 14) and is what is kept where it isn't. The server follows
    the mean h = Σ_k ρ_k g_k over *all* clients, of which those that weren't sampled haven't moved, and corrects by it:

        h ← h − μ Σ_{k∈S} ρ_k (θ_k^(t+1) − θ^(t)),  θ^(t+1) = Σ_{k∈S} ρ_k θ_k^(t+1) / Σ_{k∈S} ρ_k − h/μ,

    where the first sum is the sampled clients' mean times their share of all weights. At a fixed point θ_k = θ and
    h = 0: Σ_k ρ_k ∇f_k(θ) = 0.

    Args:
        task: the model and its loss.
        local: the local solver; for an exact solve give it ``batch=None``, a ``tolerance`` and steps enough.
        penalty: μ, above 0 (the paper's α). Large μ moves in small steps, small μ trusts the estimates more.
        weights: ρ_k: ``"uniform"``, 1/K, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: a penalty that isn't above 0.

    >>> import torch
    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> dyn = FedDyn(Quadratic(), SGD(lr=0.1, steps=5, batch=None), penalty=1.0)
    >>> fit(dyn, quadratic_federation(A, a), rounds=60).server["model"]["theta"]
    tensor([0.8000], dtype=torch.float64)
    """

    task: Task
    local: SGD
    penalty: float = 0.1
    weights: Weights = "uniform"
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        checks.above_zero("FedDyn", penalty=self.penalty)
        batchnorm.check(self.batch_norm)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        return {"model": model, "h": zeros_like(trained(model))}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        return averaging.enrol(self, model) | {"gradient": zeros_like(trained(model))}

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        theta = trained(server["model"])
        message = averaging.broadcast(self, server["model"], clients)
        mean, share = clients.mean_and_share(self.train, message, key, self.weights)
        average = trained(mean["model"])
        h = add(server["h"], add(average, theta, -1.0), -self.penalty * share)
        model = server["model"] | mean["model"] | add(average, h, -1 / self.penalty)
        return {"model": averaging.refreshed(self, model, clients, key), "h": h}, {"loss": mean["loss"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Local SGD on the dynamically regularised objective, and the new g_k."""
        theta, g = trained(message["model"]), client["gradient"]
        pull = proximal(self.penalty, theta)
        client, end = averaging.train(self, client, message, data, key, lambda here: add(pull(here), g, -1.0))
        g = add(g, pull(trained(end.params)), -1.0)
        reply = {"model": batchnorm.send(self.batch_norm, end.params), "loss": end.loss}
        return client | {"gradient": g}, reply

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the averaged model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(batchnorm.receive(self.batch_norm, server["model"], client), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"], x)

    def personalises(self, server: Tree) -> bool:
        return batchnorm.is_local(self.batch_norm, server["model"])
