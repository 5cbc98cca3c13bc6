"""Trained runs read from their folders."""

from __future__ import annotations

from pathlib import Path

from archipel.algorithm import Algorithm
from archipel.core.trees import flatten
from archipel.experiments.config import RunConfig, algorithm_from
from archipel.experiments.reading import validate
from archipel.experiments.yaml_text import read_yaml
from archipel.learning.contents import find_all
from archipel.learning.networks import Network
from archipel.runs.facts import Facts
from archipel.runs.run import Run
from archipel.states.checkpoint import Checkpoint

CONFIG = "config.yaml"


def load(folder: str | Path, algorithm: Algorithm | None = None) -> Run:
    """Read a trained run, of the command or of :func:`archipel.fit`, to route and predict. Its data are not needed.

    Args:
        folder: of the run.
        algorithm: the object that the run was trained with; runs of ``fit`` need it. ``None``: built from the file
            ``config.yaml`` that the command writes.

    Returns:
        The run as ``fit`` returned it.

    Raises:
        FileNotFoundError: there is no checkpoint; or there is no configuration, and no algorithm was given.
        ValueError: the configuration is malformed, or the algorithm or its network is another one.
    """
    place = Path(folder)
    if algorithm is None:
        config = config_of(place)
        algorithm = algorithm_from(config, Facts.from_json(checkpoint_of(place).facts["serving"]))
    run = Run.read(place, algorithm)
    _check_networks(run, place)
    return run


def config_of(folder: Path) -> RunConfig:
    """Return the configuration of a run of the command."""
    if not (folder / CONFIG).is_file():
        checkpoint_of(folder)  # raises the better error where there is no run at all
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}: the run was trained from Python, so its model is not known. Load it in Python "
            "with the algorithm that you trained: archipel.load(folder, algorithm=…)."
        )
    return validate(read_yaml(folder / CONFIG), str(folder / CONFIG))


def checkpoint_of(folder: Path) -> Checkpoint:
    """Return the latest checkpoint of a run."""
    checkpoint = Checkpoint.load(folder) if folder.is_dir() else None
    if checkpoint is None:
        what = "it has no checkpoint" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(f"There is no trained run in {folder}: {what}. `archipel run PRESET` trains one.")
    return checkpoint


def _check_networks(run: Run, place: Path) -> None:
    """Refuse networks whose parameters are not in the states: another module, or another version of it."""
    states = [run.server, *run.clients[:1]]
    saved = [(path, tensor.shape) for state in states for path, tensor in flatten(state).items()]
    for network in find_all(run.algorithm, Network):
        for name, parameter in network.module.named_parameters():
            if not parameter.requires_grad:  # a constant of the network, in no state
                continue
            below = "/" + name.replace(".", "/")
            shapes = [shape for path, shape in saved if f"/{path}".endswith(below)]
            if not any(shape[-parameter.dim() or len(shape) :] == parameter.shape for shape in shapes):
                found = f"of shape {', '.join(str(tuple(shape)) for shape in shapes)}" if shapes else "missing"
                raise ValueError(
                    f"{type(network.module).__name__} isn't the network that {place} was trained with: its parameter "
                    f"{name} has shape {tuple(parameter.shape)}, and in the checkpoint it is {found}. Give the module "
                    "that was trained, or train again with this one."
                )
