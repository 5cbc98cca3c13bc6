"""Trained federations read back from their folders."""

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
    """A trained federation, ready to route and predict; its data aren't needed.

    Args:
        folder: of a run.
        algorithm: the object it was trained with, for runs made in Python with a model of your own. ``None``: rebuilt
            from the folder's ``config.yaml``, which runs of the command have.

    Returns:
        The run as :func:`archipel.fit` returned it.

    Raises:
        FileNotFoundError: there is no checkpoint, or no configuration and no algorithm was given.
        ValueError: the configuration can't be read, or another algorithm or network is given.
    """
    place = Path(folder)
    if algorithm is None:
        config = config_of(place)
        algorithm = algorithm_from(config, Facts.from_json(checkpoint_of(place).facts["serving"]))
    run = Run.read(place, algorithm)
    _check_networks(run, place)
    return run


def config_of(folder: Path) -> RunConfig:
    """The resolved configuration of a run of the command."""
    if not (folder / CONFIG).is_file():
        checkpoint_of(folder)  # says so where there is no run at all
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}, so it was trained from Python, and the command can't know the model. "
            "In Python give the algorithm that you trained: archipel.load(folder, algorithm=…)."
        )
    return validate(read_yaml(folder / CONFIG), str(folder / CONFIG))


def checkpoint_of(folder: Path) -> Checkpoint:
    """A run's latest checkpoint."""
    checkpoint = Checkpoint.load(folder) if folder.is_dir() else None
    if checkpoint is None:
        what = "it has no checkpoint" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(f"There is no trained run in {folder}: {what}. `archipel run PRESET` trains one.")
    return checkpoint


def _check_networks(run: Run, place: Path) -> None:
    """Refuses networks whose parameters aren't in the states: another module, or another version of it."""
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
