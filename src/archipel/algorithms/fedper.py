"""FedPer.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated learning with personalization layers. arXiv
1912.00818, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archipel.algorithms.parts.shared_model import SharedModel


@dataclass(frozen=True, eq=False)
class FedPer(SharedModel):
    """A shared body under heads that stay with their clients.

    The objective is Σ_k ρ_k f_k(w, v_k) over one body w and a head v_k a client. Client k runs local SGD on both from
    (w, v_k) (Algorithm 1), keeps its head, and the server averages the bodies: w ← Σ_{k∈S} ρ_k w_k / Σ_{k∈S} ρ_k. All
    heads start from one. With one full-batch step a round and everybody it is gradient descent on the objective.

    A head never leaves its client: neither does its gradient, its velocity, or a difference of it.

    Args:
        task: the model and its loss.
        local: the local solver.
        personal: the entries of the task's parameters that stay with the client; ``"head"`` as in the paper, where it
            holds the last layers.
        weights: ρ_k: ``"examples"``, n_k/n, as in the paper, or ``"uniform"``.
        batch_norm: what becomes of the statistics of the body's BatchNorm: ``"share"``: they are averaged with the
            body, ``"local"``: they stay with the head, or ``"recompute"``: the averaged body's are taken anew.

    Raises:
        TypeError: ``personal`` is one name instead of a list.
        ValueError: ``personal`` isn't part of the task's parameters, or all of them.

    >>> import torch
    >>> from archipel import SGD, FedPer, Federation, classification, fit
    >>> x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> opposite = Federation.from_arrays([(x[:40], y[:40]), (x[40:], 1 - y[40:])])
    >>> task = classification(torch.nn.Linear(3, 4), opposite)
    >>> run = fit(FedPer(task, SGD(lr=0.5, epochs=2, batch=5)), opposite, rounds=10)
    >>> run.metrics["average_accuracy"] > 0.8  # no common model can be better than 1/2
    True
    """

    personal: Sequence[str] = ("head",)

    predict_global = None  # type: ignore[assignment]  # no model is everybody's

    @property
    def own_parts(self) -> Sequence[str]:
        return self.personal
