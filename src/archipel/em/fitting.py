"""Federated EM from a start to convergence, as estimators need it: rounds of an algorithm, and when to stop them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from archipel.algorithm import DivergenceError, NoReplyError
from archipel.algorithms.fedem import FedEM
from archipel.algorithms.parts import mean_field
from archipel.algorithms.personal_fedem import PersonalFedEM
from archipel.core import keys
from archipel.core.sampling import Cohort
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.engines.auto import Engine
from archipel.engines.loop import Loop
from archipel.fit import Moment, fit

Criterion = Literal["likelihood", "field"]
WINDOW = 5
"""Of a noisy likelihood, means over this many rounds are compared."""
LARGE = 1000
"""Clients with more examples than this, on average, are dealt with one by one: batching them gains nothing."""


@dataclass
class Convergence:
    """A callback that follows a run, and ends it by raising :class:`Converged` when it has converged.

    Args:
        max_iter: rounds at most.
        tol: of the mean log-likelihood's change from one round to the next, or of ‖H‖².
        criterion: which of the two.
        noisy: rounds are random, so that one change says little.
    """

    max_iter: int
    tol: float
    criterion: Criterion
    noisy: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    converged: bool = False
    server: Tree = None
    weights: Tensor | None = None

    def __call__(self, moment: Moment) -> None:
        self.history.append(moment.record)
        last = moment.round == self.max_iter
        if self.criterion == "likelihood":
            self.bounds.append(log_likelihood(moment))
            self.converged = settled(self.bounds, self.tol, WINDOW if self.noisy else 1)
        else:
            self.converged = moment.record["field"] <= self.tol
        if not (self.converged or last):
            return
        self.server = moment.server
        if self.criterion == "field":
            self.bounds.append(log_likelihood(moment))
        if isinstance(moment.algorithm, PersonalFedEM):
            replies = moment.clients.everyone.evaluate(moment.algorithm.weights, {}, keys.key(0))
            self.weights = replies.value
        if self.converged:
            raise Converged


class Converged(Exception):  # noqa: N818 nothing is wrong
    """What ends :func:`archipel.fit` from within a callback."""


def log_likelihood(moment: Moment) -> float:
    """The mean log-likelihood of all clients' examples: a number from each, which isn't in the traffic."""
    algorithm: Any = moment.algorithm
    penalty = float(algorithm.family.penalty(moment.server["theta"]))
    return penalty - mean_field.objective(algorithm, moment.server, moment.clients)


def settled(values: Sequence[float], tol: float, window: int) -> bool:
    """Whether the means of the last ``window`` values and of those before them differ by less than ``tol``.

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
    """Runs an algorithm until ``run`` has seen it converge, or for all its rounds.

    Raises:
        ValueError: parameters left the finite numbers.
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
            engine=engine,
            callbacks=[run],
        )
    except Converged:
        pass
    except (DivergenceError, NoReplyError) as error:
        raise ValueError(
            "EM left the finite numbers: a component has a covariance that can't be told from a singular one. Give "
            "columns comparable scales, raise the penalty (reg_covar), or take fewer components."
        ) from error
