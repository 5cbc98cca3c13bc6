"""Federated EM from a start to convergence, for the estimators: the rounds of an algorithm, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from archipel.algorithm import DivergenceError, NoReplyError
from archipel.algorithms.fedem import FedEM
from archipel.algorithms.personal_fedem import PersonalFedEM
from archipel.core import keys
from archipel.core.sampling import Cohort
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.em.splitting import similar
from archipel.engines.loop import Loop
from archipel.engines.setting import Engine, Setting
from archipel.families.mixture import Mixture
from archipel.fit import fit
from archipel.runs.callbacks import Moment

Criterion = Literal["likelihood", "field"]
WINDOW = 5
"""Means over this many rounds are compared if the likelihood is noisy."""
FLUCTUATION = 10
"""Of two means of ``WINDOW`` values with this scatter, in tolerances, one pair in six is equal by chance."""
LARGE = 1000
"""Clients with more examples than this, on average, run one by one: batching them gains nothing."""


@dataclass
class Convergence:
    """A callback that records a run, and ends it by raising :class:`Converged` once it has converged.

    Args:
        max_iter: the most rounds.
        tol: the tolerance on the mean log-likelihood's change in a round, or on ‖H‖².
        criterion: which of the two.
        noisy: whether rounds are random, so that one change says little.
        whole_steps: whether a fit beside steps that were shortened hasn't converged. An iteration of EM itself is
            shortened, too, where a component has become empty.
    """

    max_iter: int
    tol: float
    criterion: Criterion
    noisy: bool
    whole_steps: bool = True
    history: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    converged: bool = False
    server: Tree = None
    bound: float = -math.inf
    """The likelihood of ``server``: of noisy rounds the best one, since the last may be an excursion."""
    weights: Tensor | None = None
    groups: Tensor | None = None
    """Of a mixture: the group of each component, :func:`archipel.em.splitting.similar`."""

    def __call__(self, moment: Moment) -> None:
        self.history.append(moment.record)
        last = moment.round == self.max_iter
        if self.criterion == "likelihood":
            self.bounds.append(log_likelihood(moment))
            self.converged = settled(self.bounds, self.tol, WINDOW if self.noisy else 1)
            if self.noisy:  # two equal means in a row may be chance
                self.converged &= settled(self.bounds[:-WINDOW], self.tol, WINDOW)
        else:
            self.converged = moment.record["field"] <= self.tol
        window = 2 * WINDOW if self.noisy else 1
        earlier = self.history[-1 - window]["projected"] if len(self.history) > window else 0
        if (
            self.whole_steps and moment.record["projected"] > earlier
        ):  # a step that was cut short says nothing about a root
            self.converged = False
        personal = isinstance(moment.algorithm, PersonalFedEM)  # whose clients keep the last round's weights
        if self.noisy and not personal and self.bounds and self.bounds[-1] > self.bound:
            self.server, self.bound = moment.server, self.bounds[-1]
        if not (self.converged or last):
            return
        if self.criterion == "field":
            self.bounds.append(log_likelihood(moment))
        if not self.noisy or personal or self.criterion == "field":
            self.server, self.bound = moment.server, self.bounds[-1]
        family = moment.algorithm.family  # type: ignore[attr-defined]
        if isinstance(family, Mixture):
            self.groups = similar(family, self.server["theta"], moment.clients)
        if personal:
            replies = moment.clients.everyone.evaluate(moment.algorithm.weights, {}, keys.key(0))  # type: ignore[attr-defined]
            self.weights = replies.value
        if self.converged:
            raise Converged


class Converged(Exception):  # noqa: N818 not an error
    """Ends :func:`archipel.fit` from within a callback."""


def log_likelihood(moment: Moment) -> float:
    """Return the mean log-likelihood of all clients' examples: a number from each, which the traffic doesn't count."""
    algorithm: Any = moment.algorithm
    penalty = float(algorithm.family.penalty(moment.server["theta"]))
    objective: float = algorithm.objective(moment.server, moment.clients)
    return penalty - objective


def settled(values: Sequence[float], tol: float, window: int) -> bool:
    """Tell whether the means of the last ``window`` values and of the ``window`` before differ by less than ``tol``.

    Values that scatter about their means by 10 ``tol`` haven't settled, however near the two means are by chance.

    >>> settled([1.0, 2.0, 2.0], 0.1, window=1), settled([1.0, 1.05, 1.0, 1.05], 0.1, window=2)
    (True, True)
    >>> settled([0.0, 2.0, -0.5, 2.55], 0.1, window=2)
    False
    """
    if len(values) < 2 * window:
        return False
    recent = [values[len(values) - k * window :][:window] for k in (1, 2)]
    means = [math.fsum(part) / window for part in recent]
    scatter = [
        math.sqrt(math.fsum((value - mean) ** 2 for value in part) / window)
        for part, mean in zip(recent, means, strict=True)
    ]
    return abs(means[0] - means[1]) < tol and max(scatter) < FLUCTUATION * tol


def follow(
    algorithm: FedEM | PersonalFedEM, federation: Federation, run: Convergence, *, cohort: Cohort, seed: int
) -> None:
    """Run an algorithm until ``run`` sees it converge, or for all its rounds.

    Raises:
        ValueError: parameters that aren't finite.
    """
    few = len(federation) == 1 or int(federation.sizes.sum()) > LARGE * len(federation)
    engine: Engine = Loop if few else "auto"
    try:
        fit(
            algorithm,
            federation,
            rounds=run.max_iter,
            cohort=cohort,
            seed=seed,
            setting=Setting(engine=engine),
            callbacks=[run],
        )
    except Converged:
        pass
    except (DivergenceError, NoReplyError) as error:
        raise ValueError(
            "EM reached numbers that aren't finite: a covariance is singular in float64. Give columns comparable "
            "scales, raise the penalty (reg_covar), or ask for fewer components."
        ) from error
