"""Questions to a fitted model: likelihoods, information criteria, samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from archipel.core import checks, keys
from archipel.core.trees import Tree
from archipel.em.validation import ONE, Table, Tables, batch_of, check_domain, read, read_targets, whole


class Scoring:
    """The methods of :class:`archipel.em.estimator.FederatedModel` that need a fit."""

    regresses: ClassVar[bool]
    missing: ClassVar[bool]
    random_state: Any
    n_parameters_: int
    client_names_: list[str]
    client_weights_: NDArray[np.float64]
    _model: Any
    _theta: Tree

    def score_samples(self, X: Any, y: Any = None, *, client: str | int | None = None) -> NDArray[np.float64]:
        """Return the log-likelihood of each example, ``(n,)``.

        Args:
            X: one matrix, ``(n, d)``.
            y: ``(n,)``, for regressions only.
            client: the client whose mixing weights are used, by name, or by number if no client has that name;
                ``None``: the weights of all clients.
        """
        return self._rows(self._family_of_rows("log_likelihood"), X, y, client)

    def score(self, X: Any, y: Any = None, *, client: str | int | None = None) -> float:
        """Return the mean log-likelihood per example of one matrix, or of clients in the form that ``fit`` takes.

        With personal weights and no ``client``, the clients must be those of the fit, by name or in order.
        """
        total, n, _ = self._total(X, y, client)
        return total / n

    def bic(self, X: Any, y: Any = None, *, client: str | int | None = None) -> float:
        """Return the Bayesian information criterion, −2 log-likelihood + p log n; lower is better. X: see ``score``.

        Examples without any value, where values may be missing, don't count in n.
        """
        total, _, n = self._total(X, y, client)
        if not n:
            raise ValueError("X has no value: all are missing, so that there is no BIC. Give examples with values.")
        return -2 * total + self.n_parameters_ * math.log(n)

    def aic(self, X: Any, y: Any = None, *, client: str | int | None = None) -> float:
        """Return Akaike's information criterion, −2 log-likelihood + 2p; lower is better. X: see ``score``."""
        total, _, _ = self._total(X, y, client)
        return -2 * total + 2 * self.n_parameters_

    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], ...]:
        """Draw examples from the model, with the mixing weights of all clients.

        Returns:
            X ``(n, d)``, y ``(n,)`` of a regression, and the latents: components ``(n,)``, or factors ``(n, q)``.
        """
        check_is_fitted(self)
        checks.positive_int(type(self).__name__, n_samples=whole(n_samples))
        key = keys.key(int(check_random_state(self.random_state).randint(2**31 - 1)))
        drawn = self._model.sample(self._theta, int(n_samples), key)
        return tuple(drawn[name].numpy() for name in ("x", "y", "z") if name in drawn)

    # Reading data and asking the family

    def _family_of_rows(self, method: str) -> Callable[[Tree, Tree], Tensor]:
        check_is_fitted(self)
        found: Callable[[Tree, Tree], Tensor] = getattr(self._model, method)
        return found

    def _rows(
        self, function: Callable[[Tree, Tree], Tensor], X: Any, y: Any, client: str | int | None
    ) -> NDArray[np.float64]:
        """Apply ``function`` to θ and the rows of one matrix."""
        tables, targets = self._read(X, y)
        if list(tables) != [ONE]:
            whose = ", client=name" if hasattr(self, "client_weights_") else ""
            raise ValueError(
                f"Give one matrix, not {len(tables)} clients. For all of them: {{name: model.predict(x{whose}) for "
                "name, x in clients.items()}."
            )
        return self._apply(function, tables[ONE], None if targets is None else targets[ONE], client)

    def _total(self, X: Any, y: Any, client: str | int | None) -> tuple[float, int, int]:
        """Return the log-likelihood, the number of examples, and the number of those with any value."""
        log_likelihood = self._family_of_rows("log_likelihood")
        tables, targets = self._read(X, y)
        whose: list[Any] = [client] * len(tables)
        if client is None and hasattr(self, "client_weights_") and list(tables) != [ONE]:
            if len(tables) != len(self.client_names_):
                raise ValueError(
                    f"Weights are personal: give the {len(self.client_names_)} clients of the fit, not {len(tables)}; "
                    "or one matrix, and client=NAME for that client's weights."
                )
            whose = list(tables) if isinstance(X, Mapping) else list(range(len(tables)))
        values = [
            self._apply(log_likelihood, table, None if targets is None else targets[name], who).sum()
            for (name, table), who in zip(tables.items(), whose, strict=True)
        ]
        valued = sum(int((~np.isnan(table)).any(1).sum()) for table in tables.values())
        return float(sum(values)), sum(len(table) for table in tables.values()), valued

    def _read(self, X: Any, y: Any) -> tuple[Tables, Tables | None]:
        tables = read(self, X, reset=False, missing=self.missing)
        return tables, read_targets(y, tables) if self.regresses else None

    def _apply(
        self, function: Callable[[Tree, Tree], Tensor], table: Table, targets: Table | None, client: str | int | None
    ) -> NDArray[np.float64]:
        batch = batch_of(table, targets)
        check_domain(self._model, ONE, batch)
        with torch.no_grad():
            found: NDArray[np.float64] = function(self._theta_of(client), batch).numpy()
        lost = np.isnan(found.reshape(len(found), -1)).any(1)
        if lost.any():
            raise ValueError(
                f"Row {int(lost.argmax())} is so far from the data of the fit that float64 can't represent its "
                f"density; so are {int(lost.sum())} of {len(table)} rows. Check for wrong units, or remove them."
            )
        return found

    def _theta_of(self, client: str | int | None) -> Tree:
        if client is None:
            return self._theta
        if not hasattr(self, "client_weights_"):
            raise ValueError("All clients have the same weights: omit client, or fit with personal_weights=True.")
        names = self.client_names_
        index = names.index(str(client)) if str(client) in names else whole(client)  # a name may be a number
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(names):
            raise ValueError(
                f"There is no client {client!r}; there are {', '.join(names[:20])}, or 0 to {len(names) - 1}."
            )
        return self._theta | {"weight": torch.from_numpy(self.client_weights_[index])}
