"""The base of the federated estimators: settings, and fitting from several starts.

For users: :mod:`archipel.em.estimators`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from archipel.algorithm import Clients
from archipel.algorithms.fedem import FedEM
from archipel.algorithms.parts.mean_field import Rate, Start
from archipel.algorithms.personal_fedem import PersonalFedEM
from archipel.compress.compressor import Compressor, Identity
from archipel.core import checks
from archipel.core.sampling import Bernoulli, Full
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.em.fitting import Convergence, Criterion, follow
from archipel.em.scoring import Scoring
from archipel.em.splitting import split
from archipel.em.validation import check_domain, federation_of, read, read_targets, whole
from archipel.families.family import Family
from archipel.learning.schedules import Decay

FEW = 50
"""A noisy round that is worth fewer examples than this moves by less than a quarter of the way."""


def noisy_rate(compressor: Compressor, family: Family, federation: Federation, batch: int | None, p: float) -> Decay:
    """Return the default γ if compression, minibatches or partial participation make rounds random.

    A round's estimate of h is worth N = p Σ min(b, n_i)/(1 + ω) examples. γ begins at ½ N/(N + 50) and stays there for
    5/γ rounds: the noise of a step is of the order γ/N, and about as many steps are needed as γ is small.
    """
    drawn = federation.sizes if batch is None else federation.sizes.clamp(max=batch)
    worth = p * float(drawn.sum()) / (1 + compressor.omega(family.parameters()))
    rate = 0.5 * worth / (worth + FEW)
    return Decay(rate, delay=5 / rate)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedModel(Scoring, DensityMixin, BaseEstimator, ABC):  # type: ignore[misc] # scikit-learn has no types
    """A latent-variable model that is fitted to the data of clients, which never leave them.

    Args:
        tol: a fit has converged when a round changes the mean log-likelihood by less than this, or when ‖H‖² is below
            it (see ``criterion``).
        max_iter: the most rounds of each start.
        n_init: the number of starts; the fit with the highest likelihood is kept. A mixture whose components end
            similar is fitted once more, from where they are split (:mod:`archipel.em.splitting`).
        criterion: ``"likelihood"`` costs another pass over the data and one number from each client in every round;
            ``"field"`` uses ‖H‖², the server's own estimate of ‖h(Ŝ)‖², and costs nothing.
        random_state: a seed, or a ``numpy.random.RandomState``.
        compressor: compresses what clients send, one of :mod:`archipel.compress`; ``None``: no compression.
        participation: p, the probability that a client takes part in a round.
        batch_size: examples that a client draws in a round; ``None``: all.
        rate: γ, a number or a function of the round; ``None``: 1, or :func:`noisy_rate` if rounds are random.
    """

    tol: float = 1e-3
    max_iter: int = 100
    n_init: int = 1
    criterion: Criterion = "likelihood"
    random_state: Any = None
    compressor: Compressor | None = None
    participation: float = 1.0
    batch_size: int | None = None
    rate: Rate | None = None

    names: ClassVar[Mapping[str, str]] = {}
    """The estimator's names of parameters, mapped to the family's."""
    regresses: ClassVar[bool] = False
    missing: ClassVar[bool] = False

    # What each estimator defines

    @abstractmethod
    def _family(self, federation: Federation) -> Family:
        """Return the family for data with these columns and this centre."""

    @abstractmethod
    def _start(self, family: Any, federation: Federation) -> Start:
        """Return the start: θ_0, or a function that finds it."""

    def _shown(self, name: str, value: NDArray[np.float64]) -> Any:
        """Convert a parameter from the family's shape to the estimator's."""
        return value

    def _count(self, family: Any) -> int:
        """Count the free parameters."""
        return int(family.parameters())

    # Fitting

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to clients.

        Args:
            X: clients' examples, a list ``[X_1, …, X_n]`` or a dict of matrices ``(n_i, d)``; one matrix is one client.
            y: clients' targets, for regressions only.

        Raises:
            ValueError: settings out of range, invalid data, or values that the model has no density for.

        Warns:
            ConvergenceWarning: the best start hadn't converged after ``max_iter`` rounds.
        """
        self._check()
        tables = read(self, X, reset=True, missing=self.missing)
        federation = federation_of(tables, read_targets(y, tables) if self.regresses else None)
        family = self._family(federation)
        for client in federation.clients:
            check_domain(family, client.name, client.train)
        start = self._start(family, federation)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=int(self.n_init)).tolist()
        runs = [run for seed in seeds for run in self._runs(family, start, federation, seed)]
        self._keep(family, federation, runs)
        return self

    def _runs(self, family: Family, start: Start, federation: Federation, seed: int) -> list[Convergence]:
        """Run from the start and, if components end similar, once more from where they are split."""
        first = self._run(family, start, federation, seed)
        groups, theta = first.groups, first.server["theta"]
        if groups is None or len(groups.unique()) == len(groups):
            return [first]
        mixture: Any = family

        def apart(clients: Clients, key: Tensor) -> Tree:
            return split(mixture, theta, groups, clients, key)

        return [first, self._run(family, apart, federation, seed)]

    def _run(self, family: Family, start: Start, federation: Federation, seed: int) -> Convergence:
        noisy = self._noisy
        personal = getattr(self, "personal_weights", False)
        kind: Any = PersonalFedEM if personal else FedEM
        more = {"pseudo_count": self.personal_pseudo_count} if personal else {}
        compressor = Identity() if self.compressor is None else self.compressor
        batch = None if self.batch_size is None else int(self.batch_size)
        rate: Rate = 1.0 if self.rate is None else self.rate
        if noisy and self.rate is None:
            rate = noisy_rate(compressor, family, federation, batch, self.participation)
        algorithm = kind(
            family,
            start,
            compressor=compressor,
            **more,
            rate=rate,
            batch=batch,
            memory="start" if noisy else "off",  # without noise, memories change nothing and cost passes over the V_i
            participation=self.participation if self.participation < 1 else None,
        )
        # Short steps change little in a round; they have converged only if they change less than their share.
        share = min(1.0, 2 * (rate(0) if callable(rate) else rate)) if noisy else 1.0
        run = Convergence(int(self.max_iter), self.tol * share, self.criterion, noisy, noisy or self.rate is not None)
        cohort = Bernoulli(self.participation) if self.participation < 1 else Full()
        follow(algorithm, federation, run, cohort=cohort, seed=seed)
        return run

    def _keep(self, family: Family, federation: Federation, runs: list[Convergence]) -> None:
        best = max(runs, key=lambda run: run.bound)
        self._model, self._theta = family, {name: t.detach().clone() for name, t in best.server["theta"].items()}
        for shown, name in self.names.items():
            setattr(self, f"{shown}_", self._shown(shown, self._theta[name].numpy().copy()))
        self.client_names_ = [client.name for client in federation.clients]
        self.n_parameters_ = self._count(family)
        if best.weights is not None:
            self.client_weights_ = best.weights.numpy().copy()
            self.n_parameters_ += (len(best.weights) - 1) * (best.weights.shape[1] - 1)
        self.converged_, self.n_iter_ = best.converged, len(best.history)
        self.lower_bounds_, self.lower_bound_ = list(best.bounds), best.bound
        self.history_, self.n_projected_ = best.history, int(best.history[-1]["projected"])
        self.uplink_, self.downlink_ = (
            sum(record[way] for run in runs for record in run.history) for way in ("uplink", "downlink")
        )
        if self.n_projected_ and (self._noisy or self.rate is not None):
            warnings.warn(
                f"{self.n_projected_} of {self.n_iter_} steps left the domain of the M-step and were shortened: the "
                "rounds are too noisy for their rate. Draw more examples (batch_size), compress less, let more clients "
                "take part, or lower rate.",
                ConvergenceWarning,
                stacklevel=3,
            )
        if not best.converged:
            warnings.warn(
                f"The best of {len(runs)} starts did not converge in {self.max_iter} rounds. Raise max_iter or tol, "
                "try other starts, or check for degenerate data.",
                ConvergenceWarning,
                stacklevel=3,
            )

    @property
    def _noisy(self) -> bool:
        return self.compressor is not None or self.batch_size is not None or self.participation < 1

    def _check(self) -> None:
        owner = type(self).__name__
        counts = {"max_iter": self.max_iter, "n_init": self.n_init}
        counts |= {} if self.batch_size is None else {"batch_size": self.batch_size}
        for name, value in counts.items():
            checks.positive_int(owner, **{name: whole(value)})
        if self.compressor is not None and not hasattr(self.compressor, "omega"):
            raise TypeError(
                f"{owner}'s compressor must be one of archipel.compress, such as Dithering(levels=4), or None; given "
                f"{checks.kind_of(self.compressor)}."
            )
        checks.at_least_zero(owner, tol=self.tol)
        checks.one_of(owner, "criterion", self.criterion, "likelihood", "field")
        checks.number(owner, participation=self.participation)
        if not 0 < self.participation <= 1:
            raise ValueError(f"{owner}'s participation is a probability in (0, 1]; given {self.participation}.")
