"""Trackers: each round is there once, in one tracker run, whatever was stopped and resumed.

TensorBoard's and MLflow's records are read back by the packages themselves. W&B isn't among the project's packages: a
module that records calls stands in for it.
"""

import importlib.util
import json
import shutil
import sys
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from archipel import SGD, FedAvg, Federation, MLflow, TensorBoard, WandB, classification, fit
from archipel.cli.main import app
from archipel.runs.trackers import numbers


@pytest.fixture(scope="module")
def federation():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return Federation.from_arrays([(part, (part[:, 0] > 0).long()) for part in x.split(20)])


def broken_off(federation, folder, make, rounds=7, crash=5):
    """A run that crashes after a round between checkpoints, and is resumed from the checkpoint before it."""

    def crashes(moment):
        if moment.round == crash:
            raise RuntimeError("out of power")

    method = FedAvg(classification(torch.nn.Linear(3, 4), federation), SGD(lr=0.1, steps=1))
    names = {"rounds": rounds, "folder": folder, "checkpoint_every": 2, "evaluate_every": 1}
    with pytest.raises(RuntimeError, match="out of power"):
        fit(method, federation, callbacks=[make(), crashes], **names)
    # The crash left a checkpoint, and a power cut would leave the one before it.
    shutil.rmtree(folder / "checkpoint")
    (folder / "checkpoint.old").rename(folder / "checkpoint")
    run = fit(method, federation, callbacks=[make()], **names)
    fit(method, federation, callbacks=[make()], **names)  # complete: nothing more
    return run


def expected(run):
    return {name: [(r["round"], numbers(r)[name]) for r in run.history] for name in ("loss", "metrics/ece", "uplink")}


def test_tensorboard_has_each_round_once(federation, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = broken_off(federation, tmp_path, lambda: TensorBoard(tmp_path))
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    for name, points in expected(run).items():
        assert [event.step for event in found.Scalars(name)] == [step for step, _ in points]
        values = [event.value for event in found.Scalars(name)]
        assert values == pytest.approx([value for _, value in points], rel=1e-6)  # TensorBoard keeps float32


def test_mlflow_has_each_round_once_in_one_run(federation, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'm.db'}"
    run = broken_off(federation, tmp_path / "run", lambda: MLflow(tmp_path / "run", uri, parameters={"lr": 0.1}))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("archipel")
    (there,) = client.search_runs([experiment.experiment_id])
    assert there.info.status == "FINISHED"
    assert there.data.params == {"lr": "0.1"}
    for name, points in expected(run).items():
        history = client.get_metric_history(there.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == points


def test_wandb_has_each_round_once_in_one_run(federation, tmp_path, monkeypatch):
    if importlib.util.find_spec("wandb") is not None:
        pytest.fail("wandb is installed now: let this test read its offline files, and drop the module that stands in.")
    calls, fake = [], ModuleType("wandb")

    class FakeRun:
        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finish")

    starts = []

    def init(**names):
        starts.append(names)
        return FakeRun()

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = broken_off(federation, tmp_path, lambda: WandB(tmp_path))
    assert calls.pop() == "finish"
    assert [step for step, _ in calls] == [record["round"] for record in run.history]
    for (_, values), record in zip(calls, run.history, strict=True):  # rounds that were repeated took other seconds
        assert values | {"seconds": 0} == numbers(record) | {"seconds": 0}
    assert {names["id"] for names in starts} == {starts[0]["id"]}
    assert all((names["mode"], names["resume"]) == ("offline", "allow") for names in starts)


def test_a_missing_tracker_is_a_sentence(tmp_path, monkeypatch):
    """And it comes before any round is trained."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        WandB(tmp_path)


def test_the_command_tracks(tmp_path, data_dir):
    from mlflow import MlflowClient

    words = [
        "run",
        "heart-fedavg",
        "rounds=2",
        f"data.data_dir={data_dir}",
        "track=mlflow",
        "--out",
        str(tmp_path / "a"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    state = json.loads((tmp_path / "a" / "tracker.json").read_text())
    there = client.get_run(state["mlflow"]["run"])
    assert there.data.params["algorithm.name"] == "fedavg"
    assert there.data.metrics["round"] == 2
