"""pFedMe.

C. T. Dinh, N. H. Tran, T. D. Nguyen: Personalized federated learning with Moreau envelopes. NeurIPS 2020. Equation
numbers are those of docs/methods/personalised.md.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archipel.algorithm import Clients, Info, Weights
from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.checks import NonNegative, Positive, PositiveInt
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, add
from archipel.learning import batch_norm
from archipel.learning.sgd import proximal, trained
from archipel.learning.solver_checks import starts_afresh


@dataclass(frozen=True, eq=False)
class PFedMe(SharedModel):
    """Gradient descent of the shared model on the mean of the clients' Moreau envelopes.

    F_k(θ) = min over θ_k of f_k(θ_k) + λ/2 ‖θ_k − θ‖² (eq. 4), whose gradient is λ (θ − prox_k(θ)) (eq. 5). A client
    starts from ω_k^(t,0) = θ^(t) and makes R local rounds, each on a minibatch b_r of its own (eq. 6):

        θ_k^(t,r) ≈ prox_k(ω_k^(t,r); b_r),  ω_k^(t,r+1) = ω_k^(t,r) − ηλ (ω_k^(t,r) − θ_k^(t,r)).

    Its personal model is the last θ_k^(t,R−1), never ω. The server mixes (eq. 7):
    θ^(t+1) = (1 − β) θ^(t) + β · mean over S of ω_k^(t,R). The inner problem is solved from ω by ``local``: by K steps
    on the same minibatch, or to its ``tolerance``.

    Args:
        task: the model and its loss.
        local: the inner solver. Its ``steps`` are K, its ``batch`` the size of b_r, ``augment`` is applied to b_r once.
        penalty: λ, 0 or above.
        rate: η, above 0, the step of ω. ω moves to between itself and θ_k where ηλ is at most 1.
        local_rounds: R.
        mixing: β, above 0; 1 is plain averaging.
        participants: who trains: only ``"sampled"`` clients, or ``"all"`` as in the paper, where the sampled ones send.
        weights: of the mean: ``"uniform"`` as in the paper, or ``"examples"``.
        batch_norm: what becomes of the shared model's BatchNorm statistics; personal models keep their own.

    Raises:
        ValueError: a setting out of its range, or a solver that keeps its momentum: inner problems start afresh.

    >>> import torch
    >>> from archipel import SGD, PFedMe, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> solver = SGD(lr=0.2, steps=25, batch=None)
    >>> me = PFedMe(Quadratic(), solver, penalty=2.0, rate=0.5, local_rounds=1)
    >>> run = fit(me, quadratic_federation(A, a), rounds=25)
    >>> run.server["model"]["theta"].item(), [client["personal"]["theta"].item() for client in run.clients]
    (0.66666..., [0.44444..., 0.88888...])
    """

    penalty: NonNegative = 15.0
    rate: Positive = 0.005
    local_rounds: PositiveInt = 20
    mixing: Positive = 1.0
    participants: Literal["sampled", "all"] = "sampled"
    _: KW_ONLY
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        starts_afresh("PFedMe", self.local)

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        new, info = super().round(server, clients, key)
        if self.participants == "all":
            everyone = clients.everyone
            others = everyone.ids[~torch.isin(everyone.ids, clients.ids)]
            everyone.only(others).apply(self.personalise, self.broadcast(server, clients), key)
        return new, info

    def step(self, server: Tree, mean: Tree, share: float) -> Tree:
        """Mix the old model and the mean (eq. 7)."""
        theta = trained(server["model"])
        mixed = add(theta, add(trained(mean["model"]), theta, -1.0), self.mixing)
        return {"model": server["model"] | mean["model"] | mixed}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        return {"personal": message["server"]["model"]}

    def train(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make R local rounds from θ^(t): the personal model stays, ω goes to the server (eq. 6)."""
        batches = replace(self.local, steps=self.local_rounds, epochs=None).minibatches(data.train, key)
        inner = replace(self.local, batch=None, augment=None)
        omega, losses = batch_norm.receive(self.batch_norm, message["model"], client["personal"]), []
        for batch in batches:
            pull = proximal(self.penalty, omega)
            end = inner.minimise(self.task.loss, omega, batch, key, message["lr"], shift=pull)
            # the pull at θ_k is λ (θ_k − ω)
            omega = end.params | add(trained(omega), pull(trained(end.params)), self.rate)
            losses.append(end.loss)
        sent = self.reply(replace(end, params=omega, loss=torch.stack(losses).mean()))
        return {"personal": end.params}, sent

    def personalise(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Train where nothing is sent."""
        client, _ = self.train(client, message, data, key)
        return client, {}

    def own_model(self, server: Tree, client: Tree) -> Tree:
        return client["personal"]
