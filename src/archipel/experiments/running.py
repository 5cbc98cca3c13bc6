"""Runs in folders: started, resumed, found complete, and evaluated again."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from archipel.core.lock import locked
from archipel.data.federation import Federation
from archipel.drm.refit import refitted
from archipel.engines.group import launched, rank, ranks, told
from archipel.engines.setting import Within
from archipel.engines.shards import owners
from archipel.experiments.building import federation_from
from archipel.experiments.config import SETTING, RunConfig, algorithm_from
from archipel.experiments.environment import write_environment
from archipel.experiments.loading import CONFIG, checkpoint_of, config_of, load
from archipel.experiments.reading import to_yaml
from archipel.experiments.yaml_text import shortened
from archipel.fit import fit
from archipel.runs.callbacks import Callback
from archipel.runs.evaluate import Evaluation
from archipel.runs.folder import FILES, FOLDERS, RunFolder, check_entries
from archipel.runs.run import Run
from archipel.runs.stopping import BEST
from archipel.runs.trackers import TRACKERS, TensorBoard
from archipel.states.checkpoint import Checkpoint
from archipel.trust.reveals import told as told_of

log = logging.getLogger("archipel")

WITHOUT_EFFECT = {"name", "evaluate_every", "checkpoint_every", "track", "data.data_dir", *SETTING}
"""Keys that change how a run is carried out or shown, and not what it learns.

The place of the data is among them: the federation's fingerprint tells whether the data are the same.
"""


@dataclass(frozen=True)
class Outcome:
    """The result of :func:`train`.

    Args:
        run: its last state.
        found: what the folder held before: ``"nothing"``, ``"part"`` of the run, or ``"all"`` of it.
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
    """Train a run in a folder, or the rounds of it that are missing there.

    Args:
        config: of the run.
        folder: for the configuration, metrics, checkpoints and environment. It is locked while the run lasts.
        federation: the configured one, if the caller has built it; default: it is built here.
        fresh: delete the run that is in the folder first.
        until: stop after this round; default: the last.
        callbacks: called after each round.

    Raises:
        ValueError: the folder holds another run or a run on other data, or another process is writing to it.
    """
    if config.setting.engine == "distributed" and rank():
        return _follow(config, folder, until, callbacks)
    with locked(folder, nested=True):
        if fresh:
            _clear(folder)
        check_entries(folder)
        done = rounds_done(config, folder)
        complete = done >= min(until or config.rounds, config.rounds) or (done > 0 and _stopped(folder))
        if config.setting.engine == "distributed":
            told(complete)
        try:
            federation = federation or federation_from(config)
        except FileNotFoundError:
            if not complete:
                raise
            warnings.warn(f"The data of the run in {folder} are not found, so they are not compared.", stacklevel=2)
            return Outcome(load(folder), "all")
        if done:
            _check_data(checkpoint_of(folder), federation, folder, "Train on them with --fresh, or in another folder.")
        if complete:
            return Outcome(_finished(load(folder), config, federation, folder), "all")
        (folder / CONFIG).write_text(to_yaml(_anywhere(config)))
        write_environment(folder)
        for line in told_of(algorithm_from(config, federation), federation, config.groups):
            log.info("sites send at %s.", line)
        run = _fitted(config, federation, folder, until, callbacks)
        run = _finished(run, config, federation, folder)
        if (best := folder / BEST).is_dir():  # a run that can be evaluated and asked like any other
            (best / CONFIG).write_text((folder / CONFIG).read_text())
            write_environment(best)
    return Outcome(run, "part" if done else "nothing")


def on_ranks(config: RunConfig) -> RunConfig:
    """Return the configuration of a distributed run where torchrun has started this process; else the same one.

    Raises:
        ValueError: an engine that doesn't run within ranks.
    """
    if not launched() or config.setting.engine == "distributed":
        return config
    if config.setting.engine not in get_args(Within):
        raise ValueError(
            f"engine: {config.setting.engine!r} doesn't run inside of torchrun's processes; take one of "
            f"{', '.join(get_args(Within))}."
        )
    return config.model_copy(update={"engine": "distributed", "within": config.setting.engine})


def _follow(config: RunConfig, folder: Path, until: int | None, callbacks: Sequence[Callback]) -> Outcome:
    """Do another rank's part of a run whose folder the first rank has."""
    if told(True):  # the first rank's answer: the run is complete
        raise SystemExit(0)
    return Outcome(_fitted(config, federation_from(config), folder, until, callbacks), "part")


def _fitted(
    config: RunConfig, federation: Federation, folder: Path, until: int | None, callbacks: Sequence[Callback]
) -> Run:
    if config.setting.engine == "distributed" and config.refit == "never":
        federation = federation.keeping((owners(federation.sizes, ranks()) == rank()).tolist())
    return fit(
        algorithm_from(config, federation),
        federation,
        rounds=config.rounds,
        cohort=config.cohort.build(),
        seed=config.seed,
        setting=config.setting,
        evaluate_every=config.evaluate_every,
        callbacks=[*_configured_callbacks(config, folder), *callbacks],
        folder=folder,
        checkpoint_every=config.checkpoint_every,
        until=until,
        groups=config.groups,
    )


def _finished(run: Run, config: RunConfig, federation: Federation, folder: Path) -> Run:
    """Refit a complete run if the configuration asks for it, unless its folder holds the refitted run already."""
    if config.refit == "never" or len(run.history) < config.rounds or run.history[-1].get("refitted"):
        return run
    better = refitted(run, federation)
    better.history[-1]["refitted"] = True
    identity = checkpoint_of(folder).facts["identity"]
    better.save(folder, identity)
    RunFolder(folder, identity).start_metrics(better.history)
    return better


def _stopped(folder: Path) -> bool:
    """Whether the run in a folder was ended early."""
    return bool(checkpoint_of(folder).facts["history"][-1].get("stopped"))


def _configured_callbacks(config: RunConfig, folder: Path) -> list[Callback]:
    """Return what the configuration asks for; stopping first, so that a tracker sees the last evaluation."""
    found: list[Callback] = [] if config.stopping is None else [config.stopping.build(folder)]
    if config.setting.engine == "distributed" and rank():
        return found  # the first rank tracks the run
    if config.track == "tensorboard":
        found.append(TensorBoard(folder))
    elif config.track != "none":
        parameters = flat(config.model_dump(mode="json"))
        found.append(TRACKERS[config.track](folder, name=folder.name, parameters=parameters))
    return found


def rounds_done(config: RunConfig, folder: Path) -> int:
    """Return how many rounds of this run the folder holds.

    Raises:
        ValueError: it holds another run.
    """
    checkpoint = Checkpoint.load(folder)
    if checkpoint is None:
        return 0
    there, here = flat(config_of(folder).model_dump()), flat(config.model_dump())
    different = [key for key in there | here if there.get(key) != here.get(key) and key not in WITHOUT_EFFECT]
    if different:
        lines = [
            f"  {key}: {shortened(str(there.get(key, 'not set')))} there, "
            f"{shortened(str(here.get(key, 'not set')))} now"
            for key in different
        ]
        raise ValueError(
            f"{folder} holds a run with other settings:\n" + "\n".join(lines) + "\nChoose another folder with --out, "
            "or delete that run with --fresh."
        )
    return checkpoint.round


def reevaluate(folder: Path, positive: str | None = None) -> tuple[Run, Evaluation]:
    """Return a run, and the evaluation of its last model on its federation, which is built again.

    Args:
        folder: of the run.
        positive: the positive one of two classes, for metrics of sites; ``None``: the second.

    Raises:
        ValueError: the data are not those it was trained on.
    """
    federation, run = federation_of(folder), load(folder)
    return run, run.evaluate(federation, config_of(folder).setting, positive)


def federation_of(folder: Path) -> Federation:
    """Return a run's federation, built again.

    Raises:
        FileNotFoundError: its data are not found.
        ValueError: the data are not those it was trained on.
    """
    federation = federation_from(config_of(folder))
    advice = "Files that were changed, or another version of NumPy, make other data."
    _check_data(checkpoint_of(folder), federation, folder, advice)
    return federation


def _check_data(checkpoint: Checkpoint, federation: Federation, folder: Path, advice: str) -> None:
    """Refuse a federation that a run was not trained on."""
    there, here = checkpoint.facts["identity"]["federation"], federation.fingerprint
    if there != here:
        raise ValueError(
            f"The configured data are not those that the run in {folder} was trained on: their fingerprint is "
            f"{here[:12]}…, the run's is {there[:12]}…. {advice}"
        )


def _anywhere(config: RunConfig) -> RunConfig:
    """Return the configuration as it can be used from any folder, and in one process."""
    if config.setting.engine == "distributed":
        config = config.model_copy(update={"engine": config.setting.within, "within": "auto"})
    if config.data.data_dir is None:
        return config
    place = str(Path(config.data.data_dir).absolute())
    return config.model_copy(update={"data": config.data.model_copy(update={"data_dir": place})})


def _clear(folder: Path) -> None:
    """Delete what a run left, and nothing else that lies in the folder."""
    for name in (*FILES, *FOLDERS):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by their dotted paths.

    >>> flat({"seed": 0, "data": {"source": "digits"}})
    {'seed': 0, 'data.source': 'digits'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
