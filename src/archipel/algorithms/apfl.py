"""APFL.

Y. Deng, M. M. Kamani, M. Mahdavi: Adaptive personalized federated learning. arXiv 2003.13461, 2020. Equation numbers
are those of docs/methods/personalised.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info, Weights
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import Fraction, NonNegative
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, leaves, tree_map
from archipel.learning.client_models import at_rest
from archipel.learning.sgd import Batch, trained


@dataclass(frozen=True, eq=False)
class APFL(SharedModel):
    """A personal model that mixes a local model and the shared one.

    Client k's model is the mixture ω̄_k = α_k ω_k + (1 − α_k) θ (eq. 11), where θ minimises the mean of all f_k and ω_k
    minimises f_k(ω̄_k) (eq. 10). A step takes both gradients on one minibatch at the old ω_k and the old θ_k,

        θ_k ← θ_k − η ∇f_k(θ_k),  ω_k ← ω_k − η α_k ∇f_k(ω̄_k),

    where the chain factor α_k belongs to the gradient of ω, and, where α is adapted,
    α_k ← α_k − η ⟨ω_k − θ_k, ∇f_k(ω̄_k)⟩, clipped to [0, 1]. After τ steps the server averages the θ_k and sends the
    mean out again. With α = 1 the personal models are those of :class:`Local`, with α = 0 they are the shared one; for
    a fixed α in (0, 1) and τ = 1 the mixture converges to the client's own optimum (for τ > 1 only nearly, since the
    θ_k leave θ between two exchanges).

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

    >>> import torch
    >>> from archipel import APFL, SGD, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> islands = quadratic_federation(A, a)
    >>> run = fit(APFL(Quadratic(), SGD(lr=0.4, steps=1, batch=None), alpha=0.5), islands, rounds=150)
    >>> [round(client["omega"]["theta"].item(), 6) for client in run.clients]
    [-0.8, 1.2]
    """

    alpha: Fraction = 0.5
    adaptive: bool = False
    _: KW_ONLY
    weights: Weights = "uniform"
    averaging: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive and self.local.weight_decay:
            raise ValueError("Weight decay would pull an adaptive alpha to 0: give APFL's local solver weight_decay=0.")

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        return {"model": model} | self._nothing_averaged(model) | self._weight(0)

    def broadcast(self, server: Tree, clients: Clients) -> Tree:
        weight = {} if self.averaging is None else {"weight": server["weight"]}
        return super().broadcast(server, clients) | weight

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        mean = clients.mean(self.train, self.broadcast(server, clients), key, self.weights)
        model = self.refreshed(server["model"] | mean["model"], clients, key)
        new = server | {"model": model} | self._weight(clients.round + 1)
        return self._averaged(new, model, new.get("weight")), {"loss": mean["loss"], "alpha": mean["alpha"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        model = message["server"]["model"]
        alpha = torch.full((), self.alpha, dtype=leaves(trained(model))[0].dtype)
        client = super().init_client(message, data, key) | {"omega": model, "alpha": alpha}
        client |= self._nothing_averaged(model)
        return at_rest(self.local, client, self._blocks(model, client))

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make τ steps of θ_k from θ, of ω_k from where it was, and of α_k; θ_k goes to the server."""
        alpha = client["alpha"]
        client = self._averaged(client, mixture(alpha, client["omega"], message["model"]), message.get("weight"))

        def objective(blocks: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            shared, omega = (_part(blocks, name) for name in ("shared", "omega"))
            values, after = self.task.loss(shared, batch)
            mixed = mixture(blocks.get("alpha", alpha), omega, tree_map(Tensor.detach, shared))
            own, own_after = self.task.loss(mixed, batch)
            # The mixture's loss, with the gradients of both.
            return own + (values - values.detach()), {"shared": after, "omega": own_after}

        end = self.local.minimise(
            objective,
            self._blocks(self.complete(message["model"], client), client),
            data.train,
            key,
            message["lr"],
            client.get("velocity"),
            project=_with_alpha_clipped if self.adaptive else None,
        )
        client = client | {"omega": _part(end.params, "omega"), "alpha": end.params.get("alpha", alpha)}
        end = replace(end, params=_part(end.params, "shared"))
        return self.keep(client, end), self.reply(end) | {"alpha": client["alpha"]}

    # Prediction

    def own_model(self, server: Tree, client: Tree) -> Tree:
        model = mixture(client["alpha"], client["omega"], server["model"])
        averaged: Tree = self._averaged(client, model, server.get("weight")).get("average", {})
        return model | averaged

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
        """Return the state with one model more in its mean."""
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
