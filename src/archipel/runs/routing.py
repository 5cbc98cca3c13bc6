"""Routes of queries to clients, under any prior over clients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from archipel.algorithm import Algorithm, HasRoutingPrior
from archipel.core.trees import Tree
from archipel.runs.facts import Facts
from archipel_serve.arrays import unmasked

Prior = Literal["uniform"] | Sequence[float] | Tensor
"""Shares of the clients among queries."""


@dataclass(frozen=True)
class Routing:
    """The clients that queries belong to.

    Args:
        clients: ``(n,)`` int64, the most likely client of each query.
        probabilities: ``(n, m)`` posterior over clients.
        names: the clients' names.
    """

    clients: Tensor
    probabilities: Tensor
    names: tuple[str, ...]

    def ranked(self, top: int = 3) -> list[list[tuple[str, float]]]:
        """Return each query's most likely clients with their probabilities, best first."""
        best = self.probabilities.topk(min(top, len(self.names)))
        return [
            [(self.names[i], p) for i, p in zip(ids, ps, strict=True)]
            for ids, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def reweighting(algorithm: Algorithm, server: Tree, facts: Facts, prior: Prior | None) -> Tensor | None:
    """Return ``(m,)``, log π_i − log ρ_i: what a prior π adds to log-posteriors under the method's own prior ρ.

    Args:
        algorithm: the router.
        server: the server's state.
        facts: of the run.
        prior: π, see :meth:`archipel.Run.route`; ``None``: ρ, and nothing is added.

    Raises:
        ValueError: the prior isn't a share for each client.
    """
    if prior is None:
        return None
    m = len(facts.names)
    asked: Tensor | None = torch.ones(m) if isinstance(prior, str) and prior == "uniform" else None
    with suppress(ValueError, TypeError):
        shares = unmasked(prior, "prior") if isinstance(prior, np.ma.MaskedArray) else prior
        asked = torch.as_tensor(shares, dtype=torch.float64) if asked is None else asked
    if asked is None or asked.shape != (m,) or not bool((asked >= 0).all() & asked.isfinite().all() & asked.any()):
        raise ValueError(
            f"prior must be 'uniform', or a share of 0 or above for each of the {m} clients, not all of them 0; given "
            f"{prior!r:.200}."
        )
    own = algorithm.routing_prior(server) if isinstance(algorithm, HasRoutingPrior) else torch.tensor(facts.sizes)
    return asked.double().log() - own.double().log()


def reweighted(posterior: Tensor, weight: Tensor | None) -> Tensor:
    """Return log-posteriors ``(n, m)`` under another prior.

    Args:
        posterior: ``(n, m)`` log-posteriors.
        weight: ``(m,)``, the log of the new prior minus the log of the old; ``None``: the prior stays.

    >>> reweighted(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([1.0, 4.0]).log()).exp()
    tensor([[0.5000, 0.5000]])
    """
    return posterior if weight is None else torch.log_softmax(posterior.double() + weight, -1).to(posterior.dtype)
