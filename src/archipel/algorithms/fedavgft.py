"""FedAvgFT.

K. Wang, R. Mathews, C. Kiddon, H. Eichner, F. Beaufays, D. Ramage: Federated evaluation of on-device personalization.
arXiv 1910.10252, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.algorithms.parts.shared_model import SharedModel
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.learning.sgd import SGD
from archipel.learning.solver_checks import one_run

TUNING = SGD(lr=0.01, epochs=1, batch=128, momentum=0.9)
"""One pass over the client's own data, with the solver of the FedSPM paper's comparison."""


@dataclass(frozen=True, eq=False)
class FedAvgFT(SharedModel):
    """FedAvg, whose shared model every client tunes on its own data before it predicts.

    Training is :class:`FedAvg`'s to the bit, θ^(t+1) = Σ_{i∈S} n_i θ_i^(t+1) / Σ_{i∈S} n_i. In an evaluation client i
    tunes the shared model by local SGD on f_i, and is measured before and after. Training never sees the tuned models,
    so that how often there is an evaluation changes nothing. After the last round every client keeps its tuned model
    and predicts with it. With a tuning rate of 0 all is FedAvg's.

    Args:
        task: the model and its loss.
        local: the local solver in training.
        tuning: the solver before evaluation; default: one epoch. Its rate is constant: there are no rounds in it.
        weights: ``"examples"`` as FedAvg's paper has it, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``. Tuning
            updates them, as all training does.

    Raises:
        TypeError: ``tuning`` is no solver.
        ValueError: a tuning solver with a schedule or with momentum that is kept.

    >>> import torch
    >>> from archipel import SGD, FedAvgFT, Federation, classification, fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> tuning = SGD(lr=0.5, epochs=10, batch=5)
    >>> run = fit(FedAvgFT(task, SGD(lr=0.1, epochs=1, batch=5), tuning), opposite, rounds=3)
    >>> run.metrics["average_accuracy"] > 0.8 > run.metrics["average_before_accuracy"]
    True
    """

    tuning: SGD = TUNING

    def __post_init__(self) -> None:
        super().__post_init__()
        one_run(f"{type(self).__name__}'s tuning", self.tuning)

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = super().init_client(message, data, key)
        return client | {"adapted": {"tuned": self.complete(message["server"]["model"], client)}}

    def adapt(self, server: Tree, client: Tree, data: ClientData, key: Tensor) -> Tree:
        """Tune a model of the client's own from the shared one."""
        start = self.complete(server["model"], client)
        end = self.tuning.minimise(self.task.loss, start, data.train, key, self.tuning.rate(0, 1))
        return client | {"tuned": end.params}

    def own_model(self, server: Tree, client: Tree) -> Tree:
        return client["tuned"] if "tuned" in client else super().own_model(server, client)
