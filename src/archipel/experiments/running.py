"""Runs in folders: started, gone on with, found complete, and evaluated again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from archipel.data.federation import Federation
from archipel.experiments.building import federation_from
from archipel.experiments.config import SETTING, RunConfig, algorithm_from
from archipel.experiments.environment import write_environment
from archipel.experiments.loading import CONFIG, checkpoint_of, config_of, load
from archipel.experiments.reading import to_yaml
from archipel.fit import fit
from archipel.runs.callbacks import Callback
from archipel.runs.evaluate import Evaluation
from archipel.runs.run import Run
from archipel.states.checkpoint import Checkpoint

# Settings that change how a run is carried out or shown, and nothing in what it learns. Where the data lie belongs to
# them: whether they are the same is decided by the federation's fingerprint.
WITHOUT_EFFECT = {"name", "evaluate_every", "checkpoint_every", "data.data_dir", *SETTING}
OURS = (CONFIG, "metrics.jsonl", "environment.json", "checkpoint", "checkpoint.new", "checkpoint.old", "figures")


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        run: its last state.
        found: what was in the folder: ``"nothing"``, ``"part"`` of the run, or ``"all"`` of it.
    """

    run: Run
    found: Literal["nothing", "part", "all"]


def train(
    config: RunConfig,
    folder: Path,
    *,
    federation: Federation | None = None,
    fresh: bool = False,
    until: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Makes a run in a folder, or as much of it as is missing there.

    Args:
        config: of the run.
        folder: where configuration, metrics, checkpoints and environment go.
        federation: the configured one, where it has been made before; default: it is made where it is needed.
        fresh: start anew, whatever is there.
        until: stop after this round; default: the last.
        callbacks: called after each round.

    Raises:
        ValueError: the folder holds another run.
    """
    if fresh:
        _clear(folder)
    done = rounds_done(config, folder)
    if done >= min(until or config.rounds, config.rounds):
        return Outcome(load(folder), "all")
    federation = federation or federation_from(config)
    algorithm = algorithm_from(config, federation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(to_yaml(config))
    write_environment(folder)
    run = fit(
        algorithm,
        federation,
        rounds=config.rounds,
        cohort=config.cohort.build(),
        seed=config.seed,
        setting=config.setting,
        evaluate_every=config.evaluate_every,
        callbacks=callbacks,
        folder=folder,
        checkpoint_every=config.checkpoint_every,
        until=until,
        groups=config.groups,
    )
    return Outcome(run, "part" if done else "nothing")


def rounds_done(config: RunConfig, folder: Path) -> int:
    """How much of this run is in the folder.

    Raises:
        ValueError: there is another run.
    """
    checkpoint = Checkpoint.load(folder)
    if checkpoint is None:
        return 0
    there, here = flat(config_of(folder).model_dump()), flat(config.model_dump())
    different = [key for key in there | here if there.get(key) != here.get(key) and key not in WITHOUT_EFFECT]
    if different:
        lines = [f"  {key}: {there.get(key, 'not set')} there, {here.get(key, 'not set')} now" for key in different]
        raise ValueError(
            f"{folder} holds a run with other settings:\n" + "\n".join(lines) + "\nGive another folder with --out, "
            "or --fresh to start anew in this one."
        )
    return checkpoint.round


def reevaluate(folder: Path) -> tuple[Run, Evaluation]:
    """A run, and its last model evaluated again on its federation, which is made anew.

    Raises:
        ValueError: the data aren't those it was trained on.
    """
    config, checkpoint = config_of(folder), checkpoint_of(folder)
    federation = federation_from(config)
    there, here = checkpoint.facts["identity"]["federation"], federation.fingerprint
    if there != here:
        raise ValueError(
            f"The data that {folder / CONFIG} describes aren't those of the run: their fingerprint is {here[:12]}…, "
            f"the run's is {there[:12]}…. Files that were changed, or another version of NumPy, make other data."
        )
    run = load(folder)
    return run, run.evaluate(federation, config.setting)


def _clear(folder: Path) -> None:
    """Removes what a run left; nothing else that may lie in the folder."""
    for name in OURS:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted paths.

    >>> flat({"seed": 0, "data": {"source": "digits"}})
    {'seed': 0, 'data.source': 'digits'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
