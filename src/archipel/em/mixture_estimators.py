"""The base of the federated mixtures: starts, personal weights, and the components of examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.algorithm import Clients
from archipel.algorithms.parts.mean_field import Start
from archipel.core import checks
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.em.estimator import FederatedModel
from archipel.em.splitting import split_coinciding
from archipel.em.starts import KMeansPlusPlus, RandomResponsibilities
from archipel.em.validation import whole
from archipel.families.mixture import Mixture
from archipel.families.parameters import check_parameters

STARTS = {"k-means++": KMeansPlusPlus, "random": RandomResponsibilities}


@dataclass(eq=False, repr=False)
class FederatedMixture(FederatedModel):
    """A mixture of K components that is fitted to clients.

    Args:
        n_components: K.
        init: ``"k-means++"`` over clients; ``"random"`` responsibilities; or parameters to start from, a dict of
            arrays with the names and shapes of the fitted attributes, without their underscore.
        personal_weights: whether every client has its own mixing weights, which stay with it.
        personal_pseudo_count: pseudo-examples of each client, spread evenly over components. 0 gives
            maximum-likelihood weights, which may be zero.
    """

    n_components: int = 1
    init: Any = "k-means++"
    personal_weights: bool = False
    personal_pseudo_count: float = 1.0

    def _check(self) -> None:
        super()._check()
        owner = type(self).__name__
        checks.positive_int(owner, n_components=whole(self.n_components))
        checks.one_of(owner, "personal_weights", self.personal_weights, True, False)
        checks.at_least_zero(owner, personal_pseudo_count=self.personal_pseudo_count)
        if not isinstance(self.init, Mapping):
            checks.one_of(owner, "init", self.init, *STARTS)

    def _start(self, family: Mixture, federation: Federation) -> Start:
        n, K = int(federation.sizes.sum()), family.components
        if n < K:
            raise ValueError(f"Expected n_samples >= n_components, but all clients together have n_samples = {n}, and "
                             f"n_components = {K}.")  # fmt: skip
        if not isinstance(self.init, Mapping):
            start: Start = STARTS[self.init](family)
            return start
        theta = self._given(self.init)
        row = {name: column[:1] for name, column in federation.clients[0].train.items()}
        like = family.maximise(family.complete(torch.full((1, K), 1 / K), row, torch.tensor([True])))
        for shown, name in self.names.items():
            if theta[name].shape != like[name].shape:
                raise ValueError(
                    f"init's {shown} must be of shape {self._shown(shown, like[name].numpy()).shape}; given "
                    f"{np.shape(self.init[shown])}."
                )
        check_parameters("init", family, theta, {name: shown for shown, name in self.names.items()})

        def separate(clients: Clients, key: Tensor) -> Tree:
            return split_coinciding(family, theta, clients, key)

        return separate

    def _given(self, init: Mapping[str, Any]) -> Tree:
        """Read parameters in the estimator's shapes; the inverse of :meth:`_shown`."""
        if init.keys() != self.names.keys():
            raise ValueError(
                f"init must have {', '.join(self.names)}; given are {', '.join(map(str, init)) or 'none'}."
            )
        return {
            name: torch.tensor(self._hidden(shown, np.asarray(init[shown], dtype=np.float64)))
            for shown, name in self.names.items()
        }

    def _hidden(self, name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert a parameter from the estimator's shape to the family's."""
        return value


class Assigns:
    """Methods that tell which component examples belong to."""

    def predict(self, X: Any, *, client: str | int | None = None) -> NDArray[np.int64]:
        """Return the most probable component of each example, ``(n,)``.

        Args:
            X: one matrix, ``(n, d)``.
            client: the client whose mixing weights are used, by name or number; ``None``: the weights of all clients.
        """
        found: NDArray[np.int64] = self.predict_proba(X, client=client).argmax(1)
        return found

    def predict_proba(self, X: Any, *, client: str | int | None = None) -> NDArray[np.float64]:
        """Return the probability of each component given an example, ``(n, K)``."""
        rows: NDArray[np.float64] = self._rows(responsibilities(self), X, None, client)  # type: ignore[attr-defined]
        return rows


def responsibilities(model: Any) -> Any:
    """Return a function (θ, batch) → ``(n, K)`` of responsibilities."""
    posterior = model._family_of_rows("posterior")

    def probabilities(theta: Tree, batch: Tree) -> Tensor:
        logs: Tensor = posterior(theta, batch)
        return logs.exp()

    return probabilities
