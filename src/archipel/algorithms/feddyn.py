"""FedDyn.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated learning based on dynamic
regularization. ICLR 2021. Equation numbers are those of docs/methods/averaging.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from archipel.algorithm import Clients, Weights
from archipel.algorithms.parts.shared_model import PLAIN, SharedModel
from archipel.core.checks import Positive
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add, zeros_like
from archipel.learning.sgd import SGD, Shift, proximal, trained


@dataclass(frozen=True, eq=False)
class FedDyn(SharedModel):
    """One model for all clients; its fixed point is the common optimum for any number of local steps.

    Client k keeps an estimate g_k of ∇f_k at where it last was, 0 at first, and minimises by local SGD from θ^(t)
    (eq. 12)

        f_k(θ_k) − ⟨g_k, θ_k⟩ + μ/2 ‖θ_k − θ^(t)‖², then g_k ← g_k − μ (θ_k^(t+1) − θ^(t)) (eq. 15),

    which is ∇f_k(θ_k^(t+1)) if the minimum is exact (eq. 14). The server follows the mean h = Σ_k ρ_k g_k over *all*
    clients, of which those that were not sampled have not moved, and corrects the model by it:

        h ← h − μ Σ_{k∈S} ρ_k (θ_k^(t+1) − θ^(t)),  θ^(t+1) = Σ_{k∈S} ρ_k θ_k^(t+1) / Σ_{k∈S} ρ_k − h/μ,

    where the first sum is the sampled clients' mean times their share of all weights. At a fixed point θ_k = θ and
    h = 0: Σ_k ρ_k ∇f_k(θ) = 0.

    Args:
        task: the model and its loss.
        local: the local solver. An exact solve takes ``batch=None``, a ``tolerance`` and enough steps.
        penalty: μ, above 0 (the paper's α). Large μ moves in small steps, small μ trusts the estimates more.
        weights: ρ_k: ``"uniform"``, 1/K, as in the paper, or ``"examples"``, n_k/n.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    Raises:
        ValueError: the penalty is not above 0.

    >>> import torch
    >>> from archipel import SGD, FedDyn, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> dyn = FedDyn(Quadratic(), SGD(lr=0.1, steps=5, batch=None), penalty=1.0)
    >>> fit(dyn, quadratic_federation(A, a), rounds=60).server["model"]["theta"]
    tensor([0.8000], dtype=torch.float64)
    """

    local: SGD = PLAIN
    penalty: Positive = 0.1
    _: KW_ONLY
    weights: Weights = "uniform"

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = super().init_server(clients, key)
        return server | {"h": zeros_like(trained(server["model"]))}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = super().init_client(message, data, key)
        return client | {"gradient": zeros_like(trained(message["server"]["model"]))}

    def step(self, server: Tree, mean: Tree, share: float) -> Tree:
        """Update h by the clients' moves, and the model by their mean and h."""
        average = trained(mean["model"])
        h = add(server["h"], add(average, trained(server["model"]), -1.0), -self.penalty * share)
        return {"model": server["model"] | mean["model"] | add(average, h, -1 / self.penalty), "h": h}

    def shift(self, client: Tree, message: Tree) -> Shift:
        """Return the gradient of −⟨g_k, ·⟩ + μ/2 ‖· − θ^(t)‖²."""
        pull = proximal(self.penalty, message["model"])
        return lambda params: add(pull(params), client["gradient"], -1.0)

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run local SGD on the dynamically regularised objective, and update g_k."""
        client, end = self.local_run(client, message, data, key)
        pull = proximal(self.penalty, message["model"])
        g = add(client["gradient"], pull(trained(end.params)), -1.0)
        return client | {"gradient": g}, self.reply(end)
