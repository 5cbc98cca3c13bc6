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
        if not (self.converged or last):
            return
        self.server = moment.server
        if self.criterion == "field":
            self.bounds.append(log_likelihood(moment))
        family = moment.algorithm.family  # type: ignore[attr-defined]
        if isinstance(family, Mixture):
            self.groups = similar(family, self.server["theta"], moment.clients)
        if isinstance(moment.algorithm, PersonalFedEM):
            replies = moment.clients.everyone.evaluate(moment.algorithm.weights, {}, keys.key(0))
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

    >>> settled([1.0, 2.0, 2.0], 0.1, window=1), settled([0.0, 2.0, 1.0, 1.05], 0.1, window=2)
    (True, True)
    """
    if len(values) < 2 * window:
        return False
    now, before = (math.fsum(values[len(values) - k * window :][:window]) / window for k in (1, 2))
    return abs(now - before) < tol


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
