"""The federated factor model with scikit-learn's interface: probabilistic PCA, factor analysis, missing values."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from archipel.algorithm import Clients
from archipel.algorithms.parts.mean_field import Start
from archipel.core import checks
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.em.estimator import FederatedModel
from archipel.em.validation import whole
from archipel.families.factor import FactorModel


@dataclass(eq=False, repr=False)
class FederatedFactorModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FederatedModel):  # type: ignore[misc]
    """Probabilistic PCA or factor analysis over clients. NaN is a missing value, which ``impute`` fills.

    ``mean_`` (d,); ``components_`` (q, d), loadings in the layout of :class:`sklearn.decomposition.FactorAnalysis`,
    determined up to a rotation; ``noise_variance_``, a number or (d,). With isotropic noise, columns should be of
    comparable scale. EM is slow for factor models, hence the small tolerance and the many rounds.

    Args:
        n_components: q, the number of factors.
        noise: ``"isotropic"``, probabilistic PCA, or ``"diagonal"``, factor analysis.
        ridge: λ, pulls loadings to zero; per example.
        tol: as for other estimators, here 1e-5 by default.
        max_iter: as for other estimators, here 1,000 by default.

    >>> z = np.linspace(-1, 1, 40)
    >>> x = np.column_stack([z, 2 * z, -z]) + 0.01 * np.random.default_rng(0).normal(size=(40, 3))
    >>> x[3, 1] = np.nan
    >>> model = FederatedFactorModel(1, random_state=0).fit([x[:10], x[10:]])
    >>> round(model.impute(x)[3, 1], 1), round(2 * z[3], 1)
    (np.float64(-1.7), np.float64(-1.7))
    """

    n_components: int = 1
    _: KW_ONLY
    noise: Literal["isotropic", "diagonal"] = "isotropic"
    ridge: float = 1e-6
    tol: float = 1e-5
    max_iter: int = 1000
    names: ClassVar = {"mean": "mean", "components": "loading", "noise_variance": "noise"}
    missing: ClassVar = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _check(self) -> None:
        super()._check()
        checks.positive_int(type(self).__name__, n_components=whole(self.n_components))

    def _family(self, federation: Federation) -> FactorModel:
        seen = torch.stack([(~torch.isnan(client.train["x"])).any(0) for client in federation.clients]).any(0)
        if not bool(seen.all()):
            column = int((~seen).nonzero()[0, 0])
            called = getattr(self, "feature_names_in_", range(self.n_features_in_))[column]
            raise ValueError(
                f"Column {called!r} has no value at any client: nothing can be learned about it. Remove it."
            )
        d, centre = self.n_features_in_, federation.inputs.mean
        return FactorModel(d, int(self.n_components), self.noise, self.ridge, centre=centre)

    def _start(self, family: FactorModel, federation: Federation) -> Start:
        scale = float(np.sqrt(np.mean(np.square(federation.inputs.std))))

        def start(clients: Clients, key: torch.Tensor) -> Tree:
            return family.initial(key, scale)

        return start

    def _shown(self, name: str, value: NDArray[np.float64]) -> Any:
        if name == "components":
            return value.T
        return value[0] if name == "noise_variance" and self.noise == "isotropic" else value

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return E[z | observed values] of each example, ``(n, q)``."""
        return self._rows(self._family_of_rows("posterior"), X, None, None)

    def impute(self, X: Any) -> NDArray[np.float64]:
        """Return X with NaN replaced by E[x_j | observed values], ``(n, d)``."""
        return self._rows(self._family_of_rows("impute"), X, None, None)
