"""A run's metrics with intervals beside training alone, kept in the run's folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from archipel.experiments.config import RunConfig
from archipel.experiments.loading import config_of
from archipel.experiments.methods import MethodSection, SolverSection
from archipel.experiments.reading import validate
from archipel.experiments.running import reevaluate, train
from archipel.runs.evaluate import Evaluation
from archipel.runs.run import Run

KEPT = "evaluation.json"
LOCAL = "local"


def assessed(folder: Path, *, positive: str | None = None, local: bool = False) -> tuple[Run, Evaluation]:
    """Evaluate a run, put training alone beside it, and keep the result in ``evaluation.json`` of its folder.

    Args:
        folder: of a run of the command.
        positive: the positive one of two classes; ``None``: the second.
        local: train each site alone for the row Local, once, in the run's subfolder ``local``; with the run's network,
            data, rounds and local solver. If that is there already it is shown in any case.

    Returns:
        The run and its evaluation.

    Raises:
        ValueError: the data are not those that the run was trained on, or there is no such class.
        FileNotFoundError: there is no run.
    """
    run, evaluation = reevaluate(folder, positive)
    alone = folder / LOCAL
    config = config_of(folder)
    if evaluation.sites is not None and config.algorithm.name != "local" and (local or (alone / "checkpoint").exists()):
        train(local_config(config), alone)
        _, other = reevaluate(alone, positive)
        if other.sites is not None:
            evaluation = replace(evaluation, sites=evaluation.sites.beside(other.sites))
    sites = None if evaluation.sites is None else evaluation.sites.to_json()
    record = {"round": len(run.history), "metrics": evaluation.metrics, "clients": evaluation.clients, "sites": sites}
    (folder / KEPT).write_text(json.dumps(record, indent=1) + "\n")
    return run, evaluation


def local_config(config: RunConfig) -> RunConfig:
    """Return the configuration of training alone that is comparable to a run: same network, data, rounds and solver.

    >>> from archipel.experiments.reading import read_config
    >>> local_config(read_config("heart-fedspm")).algorithm.local.epochs
    2
    """
    settings = config.model_dump()
    solver = solver_of(config.algorithm)
    settings["algorithm"] = {"name": LOCAL} | ({} if solver is None else {"local": solver})
    settings |= {"refit": "never", "evaluate_every": None, "groups": None, "stopping": None, "track": "none"}
    return validate(settings, "training alone")


def solver_of(method: MethodSection) -> dict[str, Any] | None:
    """Return the settings of the solver that trains a method's local models: its own, or its inner method's."""
    values = [getattr(method, name) for name in type(method).model_fields]
    for value in values:
        if isinstance(value, SolverSection):
            return value.model_dump()
    for value in values:
        if isinstance(value, MethodSection) and (found := solver_of(value)) is not None:
            return found
    return None
