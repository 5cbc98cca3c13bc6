"""Early stopping, and the best round, by the sites' validation examples."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipel.algorithm import Algorithm
from archipel.core import keys
from archipel.core.checks import positive_int
from archipel.runs.callbacks import Moment
from archipel.runs.metrics.assessment import assess
from archipel.runs.run import Run

BEST = "best"
HIGH = ("accuracy", "balanced_accuracy", "auc", "sensitivity", "specificity", "f1", "r2")
LOW = ("brier", "mae", "rmse")


@dataclass
class EarlyStopping:
    """A callback that ends a run when its validation metric no longer improves, and keeps the best round.

    Every so many rounds each site sends counts of its validation examples (:func:`archipel.runs.metrics.assess`), and
    the metric of all sites together goes into the round's record under ``"validation"``. All decisions follow from the
    history, so that a resumed run decides as one that was never stopped.

    Args:
        patience: validations without improvement after which the run ends.
        every: rounds between validations.
        metric: ``"brier"``, ``"auc"``, ``"r2"`` or another metric of sites; default: the Brier score, or RMSE.
        least: an improvement is larger than this.
        folder: the run's folder; the best round's checkpoint goes to its subfolder ``best``. Default: a temporary
            folder, that lasts as long as this object.

    >>> import torch
    >>> from archipel import SGD, FedAvg, Federation, classification, fit
    >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    >>> arrays = [(part, (part[:, 0] > 0).long()) for part in x.split(30)]
    >>> islands = Federation.from_arrays(arrays, validation=0.2)
    >>> task = classification(torch.nn.Linear(3, 4), islands)
    >>> stopping = EarlyStopping(patience=2)
    >>> run = fit(FedAvg(task, SGD(lr=1e-30, steps=1)), islands, rounds=50, callbacks=[stopping])
    >>> len(run.history), stopping.round
    (3, 1)
    """

    patience: int = 5
    every: int = 1
    metric: str | None = None
    least: float = 0.0
    folder: str | Path | None = None
    round: int | None = None
    _algorithm: Algorithm | None = field(default=None, repr=False)
    _kept: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        positive_int("EarlyStopping", patience=self.patience, every=self.every)
        if self.metric is not None and self.metric not in (*HIGH, *LOW):
            raise ValueError(f"metric must be one of {', '.join((*HIGH, *LOW))}; given {self.metric!r}.")
        if not 0 <= self.least < math.inf:
            raise ValueError(f"least must be 0 or more; given {self.least}.")

    def __call__(self, moment: Moment) -> bool:
        """Validate where it is time, keep the best round, and say whether the run ends."""
        self._algorithm = moment.algorithm
        if moment.round % self.every:
            return False
        metric = self.metric or ("rmse" if moment.federation.classes is None else "brier")
        key = keys.fold(keys.key(moment.round), "validation")
        found = assess(moment.algorithm, moment.server, moment.clients, moment.federation, key, part="validation")
        if found is None:
            raise ValueError(
                "Early stopping needs validation examples and a method that predicts: set data.validation=0.2, or in "
                "Python Federation.from_arrays(…, validation=0.2)."
            )
        pooled = next(row for row in found.rows if row.pooled)
        moment.record["validation"] = {metric: pooled.value(metric)}
        self.round, since = best_round(moment.history, metric, self.least)
        if self.round == moment.round:
            moment.save(self.place)
        return since >= self.patience

    @property
    def place(self) -> Path:
        """The folder of the best round."""
        if self.folder is not None:
            return Path(self.folder) / BEST
        if self._kept is None:
            self._kept = tempfile.TemporaryDirectory()
        return Path(self._kept.name) / BEST

    @property
    def best(self) -> Run:
        """The run as it was after the best round.

        Raises:
            ValueError: nothing was validated yet.
        """
        if self._algorithm is None or not self.place.is_dir():
            raise ValueError("No round was validated yet: give this object to fit(…, callbacks=[…]).")
        return Run.read(self.place, self._algorithm)


def best_round(history: Sequence[dict[str, Any]], metric: str, least: float = 0.0) -> tuple[int | None, int]:
    """Return the best round by validation, and how many validations have passed since.

    Args:
        history: of a run.
        metric: its name; errors and the Brier score are better if they are lower.
        least: a round is better than the best so far by more than this.

    >>> best_round([{"round": r, "validation": {"auc": v}} for r, v in ((5, 0.7), (10, 0.8), (15, 0.8))], "auc")
    (10, 1)
    """
    sign, best, round, since = (-1 if metric in LOW else 1), -math.inf, None, 0
    for record in history:
        value = record.get("validation", {}).get(metric)
        if "validation" not in record:
            continue
        if value is not None and sign * value > best + least:
            best, round, since = sign * value, record["round"], 0
        else:
            since += 1
    return round, since
