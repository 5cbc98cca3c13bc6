"""Federated mixtures and factor models with scikit-learn's interface.

They take clients, ``fit([X_1, …, X_n])``, and otherwise follow scikit-learn's conventions: settings are attributes,
learned attributes end with an underscore, ``get_params`` and ``clone`` work. A fit is a run of :class:`archipel.FedEM`,
or of :class:`archipel.PersonalFedEM` with personal weights, by :func:`archipel.fit`. Clients send means of statistics,
what the start asks for (:class:`archipel.em.KMeansPlusPlus`), and, before the first round, each column's sum and sum of
squares, from which the centre is computed. At the end of a start each client of a mixture sends 2 K² sums, from which
similar components are found (:func:`archipel.em.splitting.similar`). The traffic doesn't count these sums.

All estimators have these attributes, besides their parameters:

- ``converged_``, ``n_iter_`` (rounds), ``lower_bound_`` (the mean log-likelihood of the clients' examples at the
  parameters found) and ``lower_bounds_`` (after each round; only the last with ``criterion="field"``);
- ``n_parameters_``, ``n_projected_`` (how many steps left the domain of the M-step and were shortened), ``history_``
  (the rounds' records), ``uplink_`` and ``downlink_`` (bytes, over all starts), ``client_names_``;
- ``client_weights_``, ``(n_clients, K)``, with personal weights. (Simulated clients share a process; in a real
  federation nobody holds this table.)
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from archipel.data.federation import Federation
from archipel.em.factor_estimator import FederatedFactorModel
from archipel.em.fitting import Convergence
from archipel.em.mixture_estimators import Assigns, FederatedMixture, responsibilities
from archipel.em.validation import plain, whole
from archipel.families.discrete import BernoulliMixture, CategoricalMixture, PoissonMixture
from archipel.families.gaussian import GaussianMixture, Kind
from archipel.families.identifiability import latent_class_dimension
from archipel.families.regression import RegressionMixture
from archipel.families.shrinkage import InverseWishart, Ridge

__all__ = [
    "FederatedBernoulliMixture",
    "FederatedFactorModel",
    "FederatedGaussianMixture",
    "FederatedLatentClass",
    "FederatedPoissonMixture",
    "FederatedRegressionMixture",
]

ROUNDING = 0.01
"""A fit warns if rounding may be more than this share of a variance."""
MANY = 10_000
"""A column with more answers than this is taken for codes or measurements."""


@dataclass(eq=False, repr=False)
class FederatedGaussianMixture(Assigns, FederatedMixture):
    """A Gaussian mixture over clients.

    Attributes are scikit-learn's: ``weights_`` (K,), ``means_`` (K, d), ``covariances_`` (K, d, d), (d, d) if tied,
    (K, d) if diagonal, (K,) if spherical. From the same start, at convergence, they equal those of
    :class:`sklearn.mixture.GaussianMixture` on the pooled data.

    Args:
        n_components: K.
        covariance_type: ``"full"``, ``"tied"``, ``"diag"`` or ``"spherical"``.
        reg_covar: added to the diagonal of covariances, above 0; the data's units squared.
        prior: an :class:`archipel.families.InverseWishart` instead of reg_covar; with it the penalised likelihood never
            falls.

    Warns:
        RuntimeWarning: components so narrow, compared with their distances, that their variances are rounding errors.

    Other settings: :class:`FederatedMixture`, :class:`archipel.em.estimator.FederatedModel`.

    >>> rng = np.random.default_rng(0)
    >>> hospitals = [rng.normal(-5, 1, size=(30, 2)), rng.normal([[-5, -5]] * 10 + [[5, 5]] * 50)]
    >>> model = FederatedGaussianMixture(2, random_state=0).fit(hospitals)
    >>> model.converged_, sorted(model.weights_.round(3).tolist())
    (True, [0.444, 0.556])
    """

    n_components: int = 1
    _: KW_ONLY
    covariance_type: Kind = "full"
    reg_covar: float = 1e-6
    prior: InverseWishart | None = None
    names: ClassVar = {"weights": "weight", "means": "mean", "covariances": "covariance"}

    def _family(self, federation: Federation) -> GaussianMixture:
        d, centre = self.n_features_in_, federation.inputs.mean
        shrinkage = Ridge(self.reg_covar) if self.prior is None else self.prior
        return GaussianMixture(int(self.n_components), d, self.covariance_type, shrinkage, centre)

    def _keep(self, family: Any, federation: Federation, runs: list[Convergence]) -> None:
        super()._keep(family, federation, runs)
        # Variances are differences of second moments about the centre, of which each has its rounding error.
        gaps = (self._theta["mean"] - torch.tensor(federation.inputs.mean, dtype=torch.float64)).square()
        covariance = self._theta["covariance"]
        matrices = self.covariance_type in ("full", "tied")
        variances = torch.diagonal(covariance, dim1=-2, dim2=-1) if matrices else covariance
        errors = torch.finfo(torch.float64).eps * gaps / variances
        if bool((errors > ROUNDING).any()):
            k, j = divmod(int(errors.argmax()), self.n_features_in_)
            warnings.warn(
                f"Component {k} is so far from the others in column {j}, or so narrow, that its variance there is "
                "mostly rounding: covariances, likelihoods and responsibilities can't be trusted. Standardise columns, "
                "subtract the clients' offsets, or fit such groups separately.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _shown(self, name: str, value: NDArray[np.float64]) -> Any:
        if name == "covariances" and self.covariance_type in ("tied", "spherical"):
            return value[0] if self.covariance_type == "tied" else value[:, 0]
        return value

    def _hidden(self, name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        if name == "covariances" and self.covariance_type in ("tied", "spherical"):
            return value[None] if self.covariance_type == "tied" else value[:, None]
        return value


@dataclass(eq=False, repr=False)
class FederatedBernoulliMixture(Assigns, FederatedMixture):
    """A mixture of independent yes-or-no columns over clients; ``weights_`` (K,), ``probabilities_`` (K, d).

    Args:
        n_components: K.
        pseudo_count: pseudo-examples with either answer in every component, as a share of all examples.
    """

    n_components: int = 1
    _: KW_ONLY
    pseudo_count: float = 1e-6
    names: ClassVar = {"weights": "weight", "probabilities": "probability"}

    def _family(self, federation: Federation) -> BernoulliMixture:
        return BernoulliMixture(int(self.n_components), self.n_features_in_, self.pseudo_count)


@dataclass(eq=False, repr=False)
class FederatedLatentClass(Assigns, FederatedMixture):
    """Latent class analysis over clients: a mixture of independent columns with unordered answers 0, 1, ….

    ``weights_`` (K,), ``probabilities_`` (K, Σ levels), the columns' answers side by side, ``levels_``.

    Args:
        n_components: K.
        levels: how many answers each column has, a tuple; ``None``: one more than the highest answer of all clients,
            and at least two. Then ``n_parameters_`` counts only answers that some client has; each client tells which.
        pseudo_count: pseudo-examples with each answer in every class, as a share of all examples.
    """

    n_components: int = 1
    _: KW_ONLY
    levels: tuple[int, ...] | None = None
    pseudo_count: float = 1e-6
    names: ClassVar = {"weights": "weight", "probabilities": "probability"}

    def _family(self, federation: Federation) -> CategoricalMixture:
        told = [client.train["x"] for client in federation.clients]
        highest = torch.stack([x.amax(0) for x in told]).amax(0)
        if self.levels is None and float(highest.max()) >= MANY:
            raise ValueError(
                f"Column {int(highest.argmax())} goes up to {float(highest.max()):g}. Answers are numbered 0, 1, …; "
                f"more than {MANY:,} look like codes or measurements. Number the answers from 0, or give levels."
            )
        found = tuple(max(2, int(value) + 1) for value in highest.tolist())
        given = isinstance(self.levels, tuple | list | np.ndarray)
        # Anything but a list of numbers is passed to the family, which refuses it.
        self.levels_ = found if self.levels is None else tuple(map(whole, self.levels)) if given else self.levels
        if given and len(self.levels_) != self.n_features_in_:
            raise ValueError(
                f"levels has {len(self.levels_)} numbers for {self.n_features_in_} columns; give one for each column."
            )
        family = CategoricalMixture(int(self.n_components), self.levels_, self.pseudo_count)
        answers = [torch.cat([x[:, j].unique() for x in told]).unique() for j in range(self.n_features_in_)]
        self._answers = tuple(map(len, answers)) if self.levels is None else family.levels
        return family

    def _count(self, family: CategoricalMixture) -> int:
        return latent_class_dimension(family.components, self._answers)


@dataclass(eq=False, repr=False)
class FederatedPoissonMixture(Assigns, FederatedMixture):
    """A mixture of independent counts over clients; ``weights_`` (K,), ``rates_`` (K, d).

    Args:
        n_components: K.
        pseudo_count: the pseudo-count of every component and column,
        pseudo_exposure: the pseudo-examples that it was counted on, as a share of all examples.
    """

    n_components: int = 1
    _: KW_ONLY
    pseudo_count: float = 1e-6
    pseudo_exposure: float = 1e-6
    names: ClassVar = {"weights": "weight", "rates": "rate"}

    def _family(self, federation: Federation) -> PoissonMixture:
        pseudo = self.pseudo_count, self.pseudo_exposure
        return PoissonMixture(int(self.n_components), self.n_features_in_, *pseudo)


@dataclass(eq=False, repr=False)
class FederatedRegressionMixture(FederatedMixture):
    """A mixture of linear regressions over clients, ``fit([X_1, …], [y_1, …])``.

    ``weights_`` (K,), ``intercepts_`` (K,), ``coefs_`` (K, d), ``noise_variances_`` (K,). Likelihoods are those of y
    given x. Starts are random, so several are run.

    Args:
        n_components: K.
        alpha: the ridge penalty on coefficients, per example.
        n_init: the number of starts, here 5 by default.
    """

    n_components: int = 1
    _: KW_ONLY
    alpha: float = 1e-6
    n_init: int = 5
    init: Any = "random"
    names: ClassVar = {
        "weights": "weight",
        "intercepts": "intercept",
        "coefs": "slope",
        "noise_variances": "noise",
    }
    regresses: ClassVar = True

    def _family(self, federation: Federation) -> RegressionMixture:
        y = [client.train["y"] for client in federation.clients]
        mean = sum(float(values.sum()) for values in y) / int(federation.sizes.sum())
        centre = (*federation.inputs.mean, mean)
        return RegressionMixture(int(self.n_components), self.n_features_in_, self.alpha, centre=centre)

    def predict(self, X: Any, *, client: str | int | None = None) -> NDArray[np.float64]:
        """Predict E[y | x] = Σ_k π_k (b_k + β_kᵀx), ``(n,)``, like scikit-learn's regressors."""
        check_is_fitted(self)
        x = validate_data(self, plain(X, "X"), reset=False, dtype=np.float64)
        weights = self._theta_of(client)["weight"].numpy()
        found: NDArray[np.float64] = (self.intercepts_ + x @ self.coefs_.T) @ weights
        return found

    def predict_component(self, X: Any, y: Any, *, client: str | int | None = None) -> NDArray[np.int64]:
        """Return the most probable component of each (x, y), ``(n,)``."""
        found: NDArray[np.int64] = self.responsibilities(X, y, client=client).argmax(1)
        return found

    def responsibilities(self, X: Any, y: Any, *, client: str | int | None = None) -> NDArray[np.float64]:
        """Return the probability of each component given (x, y), ``(n, K)``."""
        return self._rows(responsibilities(self), X, y, client)
