"""pFedMac.

Y. Li, X. Liu, X. Zhang, Y. Shao, Q. Wang, Y. Geng: Personalized federated learning via maximizing correlation with
sparse and hierarchical extensions. arXiv 2107.05330, 2021. Equation numbers are those of docs/methods/personalised.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from archipel.algorithm import Clients, DivergenceError, Info, NoReplyError, Weights
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core import keys
from archipel.core.checks import NonNegative, Positive, PositiveInt
from archipel.core.examples import ClientData
from archipel.core.trees import Sum, Tree, add, norm, row, stack, tree_map
from archipel.learning import batch_norm
from archipel.learning.sgd import Shift, soft_threshold, trained
from archipel.learning.solver_checks import starts_afresh

GROWTH, PATIENCE = 1e3, 10
"""A run diverges when the shared model's steps have grown this much, in rounds on end of which there are so many."""


@dataclass(frozen=True, eq=False)
class PFedMac(SharedModel):
    """Personal models that maximise their correlation with a shared one; sparse or in three tiers by choice.

    The objective is the mean over clients of (eqs. 16 and 18)

        F_k(θ) = min over ω of f_k(ω) − λ ⟨ω, θ⟩ + γ ‖ω‖₁ + λ/2 ‖θ‖²,  ∇F_k(θ) = λ (θ − ω_k(θ)).

    A client starts from θ_k^(t,0) = θ^(t) and makes R local rounds, each on a minibatch D_r of its own:

        ω_k^(t,r) ≈ argmin over ω of ℓ_k(ω; D_r) − λ ⟨ω, θ_k^(t,r)⟩ + γ ‖ω‖₁,
        θ_k^(t,r+1) = θ_k^(t,r) − ηλ (θ_k^(t,r) − ω_k^(t,r)).

    Its personal model is the last ω, which is sparse where γ > 0: the inner steps end with the exact proximal map of
    γ ‖·‖₁, soft-thresholding. The server mixes: θ^(t+1) = (1 − β) θ^(t) + β · mean over S of θ_k^(t,R).

    Where clients come in groups (``fit``'s ``groups``: the edges) there are three tiers, the same correlation once
    more: the objective is the mean over edges of

        G_e(θ) = min over φ of mean over the edge's k of F_k(φ) − λ_e ⟨φ, θ⟩ + λ_e/2 ‖θ‖²,  ∇G_e(θ) = λ_e (θ − φ_e(θ)).

    In a round every edge makes steps φ_e ← φ_e + β (mean of its clients' θ_k^(R) from φ_e − φ_e + R η λ_e θ), which for
    R = 1 is gradient descent on the inner problem, and then θ ← θ − η_e λ_e (θ − mean of φ_e).

    −⟨ω, θ⟩ pulls outwards, so that there is a minimum only where f_k is curved enough: for quadratics if
    λ · λmax(mean A_k⁻¹) < 1 (with R local rounds, if the mean of (I − ηλ(I − λA_k⁻¹))^R has a spectral radius below 1).
    With cross-entropy the inner minimum may not exist; a prescribed number of inner steps, or weight decay, bounds it.
    Curvature can't be known beforehand: a run whose steps grow round by round is ended with an error.

    Args:
        task: the model and its loss.
        local: the inner solver. Its ``steps`` are those on one minibatch, its ``batch`` the size of D_r, ``augment`` is
            applied to D_r once.
        penalty: λ, 0 or above.
        rate: η, above 0.
        local_rounds: R.
        mixing: β, above 0.
        sparsity: γ, 0 or above.
        weights: of the means: ``"uniform"`` as in the paper, or ``"examples"``.
        batch_norm: what becomes of the shared model's BatchNorm statistics; personal models keep their own.
        edge_penalty: λ_e, 0 or above; this and what follows for three tiers alone.
        edge_rate: η_e, above 0.
        edge_rounds: steps of an edge a round.

    Raises:
        ValueError: a setting out of its range or momentum to be kept.
        DivergenceError: the steps of θ grow without end.

    >>> import torch
    >>> from archipel import SGD, PFedMac, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1, 1), torch.tensor([[0.0], [1.0], [3.0]])
    >>> solver = SGD(lr=0.4, steps=70, batch=None, tolerance=1e-12)
    >>> mac = PFedMac(Quadratic(), solver, penalty=0.5, rate=2.0, local_rounds=1)
    >>> run = fit(mac, quadratic_federation(A, a), rounds=25)
    >>> run.server["model"]["theta"] * 17, [round(client["personal"]["theta"].item() * 17, 6) for client in run.clients]
    (tensor([32.0000], dtype=torch.float64), [16.0, 25.0, 55.0])
    """

    penalty: NonNegative = 0.1
    rate: Positive = 1.0
    local_rounds: PositiveInt = 5
    mixing: Positive = 1.0
    sparsity: NonNegative = 0.0
    _: KW_ONLY
    weights: Weights = "uniform"
    edge_penalty: NonNegative = 0.1
    edge_rate: Positive = 1.0
    edge_rounds: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        starts_afresh("PFedMac", self.local)

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        model = self.task.init(key)
        growth = {"rounds": torch.tensor(0), "from": torch.tensor(0.0), "last": torch.tensor(0.0)}
        edges = {"edges": stack([model] * len(clients.groups))} if clients.groups else {}
        return {"model": model, "growth": growth} | edges

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        tiers = self.three_tiers if clients.groups else self.two_tiers
        new, info = tiers(server, clients, key)
        model = self.refreshed(new["model"], clients, key)
        step = norm(add(trained(model), trained(server["model"]), -1.0))
        return server | new | {"model": model, "growth": watched(server["growth"], step)}, info | {"step": step}

    def two_tiers(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        model, info = self.descend(server["model"], clients, key)
        return {"model": model}, info

    def three_tiers(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        theta, phi, total = server["model"], [row(server["edges"], e) for e in range(len(clients.groups))], Sum()
        pull = tree_map(lambda t: self.local_rounds * self.rate * self.edge_penalty * t, trained(theta))
        for e, edge in enumerate(clients.groups):
            try:
                for step in range(self.edge_rounds):
                    phi[e], info = self.descend(phi[e], edge, keys.fold(key, step), pull)
            except NoReplyError:
                continue  # nobody of this edge takes part
            weight = int(clients.sizes[edge.everyone.ids].sum()) if self.weights == "examples" else 1
            total.add(tree_map(lambda t: t[None], {"model": phi[e], "loss": info["loss"]}), [weight])
        if total.weight == 0:
            raise NoReplyError(f"No reply could be used in round {clients.round} at any edge.")
        mean = total.mean()
        gap = add(trained(mean["model"]), trained(theta), -1.0)
        model = theta | mean["model"] | add(trained(theta), gap, self.edge_rate * self.edge_penalty)
        return {"model": model, "edges": stack(phi)}, {"loss": mean["loss"]}

    def descend(self, model: Tree, clients: Clients, key: Tensor, pull: Tree | None = None) -> tuple[Tree, Info]:
        """Make a mixing step on the mean of these clients' F_k, with whatever else pulls at the model."""
        mean = clients.mean(self.train, self.broadcast({"model": model}, clients), key, self.weights)
        theta = trained(model)
        change = add(trained(mean["model"]), theta, -1.0)
        change = add(change, pull) if pull else change
        return model | mean["model"] | add(theta, change, self.mixing), {"loss": mean["loss"]}

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return {"personal": message["server"]["model"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make R local rounds from the message's model: ω stays as the personal model, θ_k goes to the server."""
        batches = replace(self.local, steps=self.local_rounds, epochs=None).minibatches(data.train, key)
        inner = replace(self.local, batch=None, augment=None)
        shrink = soft_threshold(self.sparsity * message["lr"]) if self.sparsity else None
        omega, losses = batch_norm.receive(self.batch_norm, message["model"], client["personal"]), []
        theta = trained(omega)
        for batch in batches:
            away = self.away_from(theta)
            end = inner.minimise(self.task.loss, omega, batch, key, message["lr"], shift=away, project=shrink)
            omega = end.params
            theta = add(theta, add(trained(omega), theta, -1.0), self.rate * self.penalty)
            losses.append(end.loss)
        sent = self.reply(replace(end, params=omega | theta, loss=torch.stack(losses).mean()))
        return {"personal": omega}, sent

    def away_from(self, theta: Tree) -> Shift:
        """Return the gradient of −λ ⟨ω, θ⟩."""
        away = tree_map(lambda t: -self.penalty * t, theta)
        return lambda omega: away

    def own_model(self, server: Tree, client: Tree) -> Tree:
        return client["personal"]


def watched(growth: Tree, step: Tensor) -> Tree:
    """Follows the norm of the shared model's steps: how long it has been growing, and from what."""
    grows = bool(step > growth["last"]) and bool(growth["last"] > 0)
    rounds = int(growth["rounds"]) + 1 if grows else 0
    start = growth["from"] if grows else step
    if rounds >= PATIENCE and step > GROWTH * start:
        raise DivergenceError(
            f"pFedMac diverges: its steps have grown {float(step / start):.0f} times in {rounds} rounds. The "
            "correlation outweighs the losses' curvature, and the objective has no minimum: lower the penalty (for "
            "quadratics below 1/λmax(mean A⁻¹)) or add weight decay."
        )
    as_given = growth["last"].dtype
    return {"rounds": torch.tensor(rounds), "from": start.to(as_given), "last": step.to(as_given)}
