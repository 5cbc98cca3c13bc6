"""Ditto.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: fair and robust federated learning through personalization. ICML 2021.
Equation numbers are those of docs/methods/personalised.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info, PredictsGlobally
from archipel.algorithm.composition import PartClients
from archipel.algorithms.parts.shared_model import LOCAL, SharedModel
from archipel.core.checks import NonNegative
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning.client_models import at_rest, continued
from archipel.learning.sgd import SGD, proximal, trained
from archipel.learning.tasks import Task


@dataclass(frozen=True, eq=False)
class Ditto(Algorithm):
    """A personal model beside the shared one, kept near it by a proximal term; the shared model ignores it.

    Problem (8): client k minimises f_k(ω_k) + μ/2 ‖ω_k − θ*‖², θ* being where the inner algorithm ends. In a round the
    clients make s steps each on the proximal task, whose centre is the model that was broadcast,

        ω_k ← ω_k − η (∇f_k(ω_k) + μ (ω_k − θ^(t))) (eq. 9, where s = 1),

    and the inner algorithm makes its round, θ^(t) → θ^(t+1), as if ω weren't there. Both see the same minibatches. With
    μ = 0 the personal models are those of :class:`Local`; with μ → ∞ (and ημ below 1) they follow θ.

    Args:
        inner: the shared model's algorithm, such as ``FedAvg(task, SGD(…))``: any that keeps a whole ``"model"``.
        personal: solver of the proximal task; its ``steps`` are s.
        penalty: μ, 0 or above (the paper's λ).

    Raises:
        TypeError: ``inner`` is no algorithm, or ``personal`` no solver.
        ValueError: a penalty below 0; at the start, an inner algorithm without a shared model, or with a part of one.

    >>> import torch
    >>> from archipel import SGD, Ditto, FedAvg, fit
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.tensor([1.0, 4.0]).reshape(2, 1, 1), torch.tensor([[0.0], [1.0]])
    >>> step = SGD(lr=0.2, steps=1, batch=None)
    >>> run = fit(Ditto(FedAvg(Quadratic(), step), step, penalty=2.0), quadratic_federation(A, a), rounds=100)
    >>> [round(client["personal"]["theta"].item(), 5) for client in run.clients]
    [0.53333, 0.93333]
    """

    inner: Algorithm
    personal: SGD = LOCAL
    penalty: NonNegative = 0.1

    @staticmethod
    def takes(kind: type[Algorithm]) -> bool:
        """Return whether a class of algorithms shares one whole model, as the inner one must."""
        return (
            issubclass(kind, SharedModel)
            and kind.own_parts is SharedModel.own_parts
            and kind.own_model is SharedModel.own_model
        )

    @property
    def task(self) -> Task:
        """The inner algorithm's task."""
        task: Task = self.inner.task  # type: ignore[attr-defined]  # every method with a shared model has one
        return task

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = self.inner.init_server(clients, key)
        if "model" not in server:
            raise ValueError(
                f"Ditto's inner algorithm must keep a shared model under 'model' in its server's state; "
                f"{type(self.inner).__name__} keeps {', '.join(server)}. FedAvg, FedProx and FedDyn do."
            )
        if apart := [name for name in self.task.init(key) if name not in server["model"]]:
            raise ValueError(
                f"Ditto's inner algorithm must share the whole model; {type(self.inner).__name__} keeps "
                f"{', '.join(apart)} apart. FedAvg, FedProx and FedDyn share all."
            )
        return {"inner": server}

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        inner = message["server"]["inner"]
        client = {
            "inner": self.inner.init_client({"server": inner, "index": message["index"]}, data, key),
            "personal": inner["model"],
        }
        return at_rest(self.personal, client, inner["model"])

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        rate = self.personal.rate(clients.round, clients.rounds)
        centre = trained(server["inner"]["model"])  # θ^(t), before the inner round moves it
        clients.apply(self.personalise, {"centre": centre, "lr": rate}, key)
        inner, info = self.inner.round(server["inner"], PartClients(clients, self, "inner"), key)
        return {"inner": inner}, info

    def personalise(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Make s steps on f_k + μ/2 ‖· − θ^(t)‖² from ω_k; send nothing (eq. 9)."""
        pull = proximal(self.penalty, message["centre"]) if self.penalty else None
        client, _ = continued(self.personal, self.task.loss, client, data, key, message["lr"], pull, "personal")
        return client, {}

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        return self.task.predict(client["personal"], x)

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        assert isinstance(self.inner, PredictsGlobally)
        return self.inner.predict_global(server["inner"], x)
