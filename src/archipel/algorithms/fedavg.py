"""FedAvg.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.algorithms.parts.shared_model import SharedModel


@dataclass(frozen=True, eq=False)
class FedAvg(SharedModel):
    """Federated averaging: clients run local SGD from the shared model, and the server averages the results.

    θ^(t+1) = Σ_{i∈S} n_i θ_i^(t+1) / Σ_{i∈S} n_i, with θ_i^(t+1) the end of client i's local run from θ^(t)
    (Algorithm 1 of the paper), n_i the training examples it holds and S those who answered.

    Args:
        task: the model and its loss.
        local: the local solver.
        weights: ``"examples"`` as in the paper, or ``"uniform"``.
        batch_norm: what becomes of BatchNorm's statistics: ``"share"``, ``"local"`` or ``"recompute"``.

    >>> import torch
    >>> from archipel import SGD, FedAvg, Federation, classification, fit
    >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> halves = [(x[:20], (x[:20, 0] > 0).long()), (x[20:], (x[20:, 0] > 0).long())]
    >>> islands = Federation.from_arrays(halves)
    >>> task = classification(torch.nn.Linear(3, 4), islands)
    >>> run = fit(FedAvg(task, SGD(lr=0.5, epochs=2, batch=5)), islands, rounds=5)
    >>> run.metrics["system_accuracy"] > 0.8
    True
    """
