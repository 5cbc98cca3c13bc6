"""APFL. Y. Deng, M. M. Kamani, M. Mahdavi: Adaptive personalized federated learning. arXiv 2003.13461, 2020. Equation
numbers are those of the page on personalised algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, Weights
from archipel.algorithms.parts import shared_model as averaging
from archipel.core import checks
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, leaves, tree_map, zeros_like
from archipel.learning import batch_norm as batchnorm
from archipel.learning.batch_norm import BatchNorm
from archipel.learning.sgd import SGD, Batch, trained
from archipel.learning.solver_checks import solver
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class APFL(Algorithm):
    """A personal model that is a mixture of a local one and the shared one.

    Client k's model is the mixture ω̄_k = α_k ω_k + (1 − α_k) θ (eq. 11), where θ minimises the mean of all f_k and ω_k
    minimises f_k(ω̄_k) (eq. 10). A step takes both gradients on one minibatch at the old ω_k and the old θ_k,

        θ_k ← θ_k − η ∇f_k(θ_k),  ω_k ← ω_k − η α_k ∇f_k(ω̄_k),

    where the chain factor α_k belongs to the gradient of ω, and, where α is adapted,
    α_k ← α_k − η ⟨ω_k − θ_k, ∇f_k(ω̄_k)⟩, clipped to [0, 1]. After τ steps the server averages the θ_k and sends the
    mean out again. With α = 1 the personal models are those of :class:`Local`, with α = 0 they are the shared one; for
    any fixed α between and τ = 1 the mixture ends at the client's own optimum as the rounds go on (for τ > 1 beside it,
    since the θ_k leave θ between two exchanges).

    Args:
        task: the model and its loss.
        local: the solver of both; its ``steps`` are the synchronisation gap τ. ``clip`` is for all gradients together.
        alpha: α, in [0, 1], the weight of the local model; where α is adapted, the one to start from.
        adaptive: adapt α. Needs a solver without weight decay, which would pull α to 0.
        weights: of the mean: ``"uniform"`` as in the paper, or ``"examples"``.
        averaging: ``None``: the last models are used. A number a, 0 or above: the means of all there were where the
            clients met, with weights (t + a)² after t steps (passes over the data count as one step), which the paper's
            analysis uses with a = max(128 κ, τ); a client averages over the rounds it takes part in.
        batch_norm: what becomes of the shared model's BatchNorm statistics; mixtures keep their own.

    Raises:
        ValueError: a setting out of its range.

    >>> from archipel.fit import fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> islands = quadratic_federation(A, a)
    >>> run = fit(APFL(Quadratic(), SGD(lr=0.4, steps=1, batch=None), alpha=0.5), islands, rounds=150)
    >>> [round(client["omega"]["theta"].item(), 6) for client in run.clients]
    [-0.8, 1.2]
    """

    task: Task
    local: SGD
    alpha: float = 0.5
    adaptive: bool = False
    weights: Weights = "uniform"
    averaging: float | None = None
    batch_norm: BatchNorm = "share"

    def __post_init__(self) -> None:
        batchnorm.check(self.batch_norm)
        checks.number("APFL", alpha=self.alpha)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"APFL's alpha must lie in [0, 1]; given {self.alpha}.")
        solver("APFL", local=self.local)
        if self.adaptive and self.local.weight_decay:
            raise ValueError("Weight decay would pull an adaptive alpha to 0: give APFL's local solver weight_decay=0.")
        if self.averaging is not None:
            checks.at_least_zero("APFL", averaging=self.averaging)

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        return {"model": model} | self._nothing_averaged(model) | self._weight(0)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        message = averaging.broadcast(self, server["model"], clients)
        if self.averaging is not None:
            message["weight"] = server["weight"]
        mean = clients.mean(self.train, message, key, self.weights)
        model = averaging.refreshed(self, server["model"] | mean["model"], clients, key)
        server = server | {"model": model} | self._weight(clients.round + 1)
        return self._averaged(server, model, server.get("weight")), {"loss": mean["loss"], "alpha": mean["alpha"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        alpha = torch.full((), self.alpha, dtype=leaves(trained(model))[0].dtype)
        client = averaging.enrol(self, model) | {"omega": model, "alpha": alpha} | self._nothing_averaged(model)
        return averaging.remember(self.local, client, zeros_like(trained(self._blocks(model, client))))

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """τ steps of θ_k from θ and of ω_k from where it was, and of α_k; θ_k goes to the server."""
        alpha = client["alpha"]
        client = self._averaged(client, mixture(alpha, client["omega"], message["model"]), message.get("weight"))
        blocks = self._blocks(batchnorm.receive(self.batch_norm, message["model"], client), client)

        def objective(blocks: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            shared, omega = (_part(blocks, name) for name in ("shared", "omega"))
            values, after = self.task.loss(shared, batch)
            mixed = mixture(blocks.get("alpha", alpha), omega, tree_map(Tensor.detach, shared))
            own, own_after = self.task.loss(mixed, batch)
            # The mixture's loss, with the gradients of both.
            return own + (values - values.detach()), {"shared": after, "omega": own_after}

        end = self.local.minimise(
            objective,
            blocks,
            data.train,
            key,
            message["lr"],
            client.get("velocity"),
            project=_with_alpha_clipped if self.adaptive else None,
        )
        shared, omega = (_part(end.params, name) for name in ("shared", "omega"))
        client = batchnorm.keep(self.batch_norm, client, shared)
        client = client | {"omega": omega, "alpha": end.params.get("alpha", alpha)}
        reply = {"model": batchnorm.send(self.batch_norm, shared), "loss": end.loss, "alpha": client["alpha"]}
        return averaging.remember(self.local, client, end.velocity), reply

    def statistics(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """BatchNorm's statistics of the shared model on the client's training data."""
        return client, batchnorm.recompute(self.task.loss, self.task, message["model"], data.train)

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        model = mixture(client["alpha"], client["omega"], server["model"])
        return self.task.predict(model | self._averaged(client, model, server.get("weight")).get("average", {}), x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        return self.task.predict(server["model"] | server.get("average", {}), x)

    # What is trained together

    def _blocks(self, shared: Tree, client: Tree) -> Tree:
        blocks = {"shared": trained(shared), "omega": trained(client["omega"])}
        if self.adaptive:
            blocks["alpha"] = client["alpha"]
        if "buffers" in shared:
            blocks["buffers"] = {"shared": shared["buffers"], "omega": client["omega"]["buffers"]}
        return blocks

    # Means over the rounds

    def _weight(self, rounds: int) -> Tree:
        """p_t = (t + a)² after so many rounds; nothing at the start, where no step was made."""
        if self.averaging is None:
            return {}
        t = rounds * (self.local.steps or 1)
        return {"weight": torch.tensor((t + self.averaging) ** 2 if t else 0.0, dtype=torch.float64)}

    def _nothing_averaged(self, model: Tree) -> Tree:
        if self.averaging is None:
            return {}
        return {"average": trained(model), "total": torch.zeros((), dtype=torch.float64)}

    def _averaged(self, state: Tree, model: Tree, weight: Tensor | None) -> Tree:
        """The state with one model more in its mean."""
        if weight is None:
            return state
        total = state["total"] + weight
        gain = weight / torch.clamp(total, min=1e-300)
        moved = tree_map(lambda a, p: a + gain.to(p.dtype) * (p - a), state["average"], trained(model))
        return state | {"average": moved, "total": total}


def mixture(alpha: Tensor, omega: Tree, shared: Tree) -> Tree:
    """α ω + (1 − α) θ, with ω's buffers.

    >>> mixture(torch.tensor(0.25), {"theta": torch.tensor([4.0])}, {"theta": torch.tensor([0.0])})
    {'theta': tensor([1.])}
    """
    return omega | tree_map(
        lambda w, p: alpha.to(p.dtype) * w + (1 - alpha.to(p.dtype)) * p, trained(omega), trained(shared)
    )


def _part(blocks: Tree, name: str) -> Tree:
    return blocks[name] | ({"buffers": blocks["buffers"][name]} if "buffers" in blocks else {})


def _with_alpha_clipped(blocks: Tree) -> Tree:
    return blocks | {"alpha": blocks["alpha"].clamp(0, 1)}
