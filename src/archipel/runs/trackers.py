"""Trackers as callbacks: TensorBoard, MLflow and Weights & Biases, safe to resume.

Each writes a round's numbers once. A run that was stopped and goes on, also from a checkpoint some rounds before,
continues the same tracker run: rounds that the tracker has are left out, since they have the same numbers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from archipel.engines.group import rank
from archipel.runs.callbacks import Moment

STATE = "tracker.json"


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a round's record by name, those of sections with a slash; lists and texts are left out.

    >>> numbers({"round": 3, "loss": 0.5, "metrics": {"ece": 0.1}, "dropped": {"Nice": "no reply"}})
    {'loss': 0.5, 'metrics/ece': 0.1}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
            found[prefix + name] = float(value)
    return found


@dataclass
class _Kept:
    """What a tracker must know after a resumption: its run's id, and the last round that it has."""

    folder: Path
    kind: str

    def read(self) -> dict[str, Any]:
        path = self.folder / STATE
        found: dict[str, Any] = json.loads(path.read_text()).get(self.kind, {}) if path.is_file() else {}
        return found

    def write(self, **values: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / STATE
        all_kinds = json.loads(path.read_text()) if path.is_file() else {}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(all_kinds | {self.kind: values}) + "\n")
        os.replace(new, path)  # in one step


def _needs(module: str, what: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{what} isn't installed: pip install {install}, or leave the tracker out.") from error


def _ends(moment: Moment) -> bool:
    return moment.round >= moment.rounds or bool(moment.record.get("stopped"))


@dataclass
class TensorBoard:
    """Write each round to TensorBoard's files in the run's subfolder ``tensorboard``.

    Args:
        folder: of the run.
    """

    folder: str | Path
    _writer: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._board = _needs("torch.utils.tensorboard", "TensorBoard", "'archipel[track]'")  # before training begins

    def __call__(self, moment: Moment) -> None:
        """Write a round that isn't there yet."""
        if rank():  # of a distributed run the first rank writes
            return
        kept = _Kept(Path(self.folder), "tensorboard")
        last = int(kept.read().get("round", 0))
        if moment.round <= last:
            return
        if self._writer is None:
            # purge_step hides what a process wrote after this round and before it was killed.
            place = str(Path(self.folder) / "tensorboard")
            self._writer = self._board.SummaryWriter(place, purge_step=last + 1 if last else None)
        for name, value in numbers(moment.record).items():
            self._writer.add_scalar(name, value, moment.round)
        self._writer.flush()
        kept.write(round=moment.round)
        if _ends(moment):
            self._writer.close()
            self._writer = None


@dataclass
class MLflow:
    """Write each round to an MLflow run.

    What the MLflow run has is asked of MLflow itself, so that no round is there twice even after a crash.

    Args:
        folder: of the run; the MLflow run's id is kept in its ``tracker.json``.
        uri: of the tracking server or store; default: ``$MLFLOW_TRACKING_URI``, else the database ``mlflow.db`` beside
            the run's folder.
        experiment: its name in MLflow.
        name: of the MLflow run; default: the folder's.
        parameters: logged once.
    """

    folder: str | Path
    uri: str | None = None
    experiment: str = "archipel"
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    _last: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._mlflow = _needs("mlflow", "MLflow", "'archipel[track]'")  # before training begins
        self._entities = _needs("mlflow.entities", "MLflow", "'archipel[track]'")

    def __call__(self, moment: Moment) -> None:
        """Log a round that isn't there yet."""
        if rank():  # of a distributed run the first rank writes
            return
        folder = Path(self.folder).absolute()
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}"
        client = self._mlflow.MlflowClient(tracking_uri=uri)
        kept = _Kept(folder, "mlflow")
        run = kept.read().get("run") or self._create(client, kept, folder)
        if self._last is None:
            self._last = max((metric.step for metric in client.get_metric_history(run, "round")), default=0)
            client.update_run(run, status="RUNNING")
        if moment.round <= self._last:
            return
        now, values = int(time.time() * 1000), {"round": float(moment.round)} | numbers(moment.record)
        client.log_batch(run, metrics=[self._entities.Metric(name, v, now, moment.round) for name, v in values.items()])
        self._last = moment.round
        if _ends(moment):
            client.set_terminated(run)

    def _create(self, client: Any, kept: _Kept, folder: Path) -> str:
        found = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
        run = str(client.create_run(experiment, run_name=self.name or folder.name).info.run_id)
        kept.write(run=run)
        most = 6000  # MLflow's longest parameter
        given = [self._entities.Param(name, str(value)[:most]) for name, value in self.parameters.items()]
        for start in range(0, len(given), 100):
            client.log_batch(run, params=given[start : start + 100])
        return run


@dataclass
class WandB:
    """Write each round to a run of Weights & Biases, offline unless ``$WANDB_MODE`` says otherwise.

    ``wandb sync`` uploads offline runs; parts of a run that was resumed have the same id.

    Args:
        folder: of the run; files go to its subfolder ``wandb``, and the id into ``tracker.json``.
        project: its name in W&B.
        name: of the run; default: the folder's.
        parameters: the run's configuration.
    """

    folder: str | Path
    project: str = "archipel"
    name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    _run: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._wandb = _needs("wandb", "Weights & Biases", "wandb")  # before training begins

    def __call__(self, moment: Moment) -> None:
        """Log a round that isn't there yet."""
        if rank():  # of a distributed run the first rank writes
            return
        folder = Path(self.folder).absolute()
        kept = _Kept(folder, "wandb")
        state = kept.read()
        if moment.round <= int(state.get("round", 0)):
            return
        identity = state.get("run") or os.urandom(4).hex()
        if self._run is None:
            self._run = self._wandb.init(
                project=self.project, name=self.name or folder.name, id=identity, resume="allow", dir=str(folder),
                mode=os.environ.get("WANDB_MODE", "offline"), config=dict(self.parameters),
            )  # fmt: skip
        self._run.log(numbers(moment.record), step=moment.round)
        kept.write(run=identity, round=moment.round)
        if _ends(moment):
            self._run.finish()
            self._run = None


TRACKERS: dict[str, type[MLflow] | type[WandB]] = {"mlflow": MLflow, "wandb": WandB}
"""Those that take parameters, by the names that configurations give them."""
