"""A run's folder: one process at a time, signals, and files that are links."""

import json
import logging
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from archipel import SGD, Algorithm, FedAvg, classification, fit
from archipel.core.interruption import SIGNALS, interruption
from archipel.core.lock import locked
from archipel.states.checkpoint import Checkpoint

HOLD = """
import sys, time
from pathlib import Path
from archipel.core.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def fedavg(federation):
    return FedAvg(classification(nn.Linear(3, 4), federation), SGD(lr=0.1, steps=2, batch=4))


def test_a_folder_that_another_process_writes_to_is_refused_until_it_ends(uneven, tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            ValueError, match=r"Another process is writing to .*; wait until it ends, or choose another"
        ):
            fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
        assert not (tmp_path / "checkpoint").exists()
        assert not (tmp_path / "metrics.jsonl").exists()
    finally:
        other.kill()  # whatever kills it, the lock is free
        other.communicate()
    assert len(fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path).history) == 1


def test_whoever_holds_the_folder_may_train_in_it(uneven, tmp_path):
    with locked(tmp_path):
        fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)
        with pytest.raises(ValueError, match="Another process is writing"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_round_with_a_checkpoint(uneven, tmp_path, number):
    before = signal.getsignal(number)

    def send(moment):
        if moment.round == 2:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt, match="Stopped after round 2 of 5; the checkpoint is in"):
        fit(fedavg(uneven), uneven, rounds=5, folder=tmp_path, callbacks=[send])
    assert Checkpoint.load(tmp_path).round == 2
    assert signal.getsignal(number) is before
    again, straight = fit(fedavg(uneven), uneven, rounds=5, folder=tmp_path), fit(fedavg(uneven), uneven, rounds=5)
    key = "weight"
    assert torch.equal(again.server["model"]["head"][key], straight.server["model"]["head"][key])


def test_a_handler_sets_a_flag_and_nothing_else(caplog):
    with caplog.at_level(logging.DEBUG), interruption() as asked:
        assert not asked.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert asked.is_set()
        assert not caplog.messages
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_metrics_are_not_written_through_a_link(uneven, tmp_path):
    target, folder = tmp_path / "precious", tmp_path / "run"
    target.write_text("mine")
    folder.mkdir()
    os.symlink(target, folder / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is a symbolic link, and a run does not write through it"):
        fit(fedavg(uneven), uneven, rounds=1, folder=folder)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.old", "checkpoint.new", "diverged", "figures"])
@pytest.mark.parametrize("kind", ["file", "link", "link to nowhere"])
def test_what_is_no_folder_in_a_folders_place_is_named(uneven, tmp_path, name, kind):
    place = tmp_path / "run" / name
    place.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"))
    said = "is a file; a run has a folder of that name" if kind == "file" else "is a symbolic link"
    with pytest.raises(ValueError, match=rf"{name} {said}"):
        fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", name]


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_a_folder_in_a_files_place_is_named(uneven, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=rf"{name} is (a folder; a run has a file of that name|not a plain file)"):
        fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path)


def test_a_run_goes_to_a_folder_not_a_file(uneven, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ValueError, match=r"taken is not a folder"):
        fit(fedavg(uneven), uneven, rounds=1, folder=tmp_path / "taken")


def test_each_metric_is_a_line_of_one_run(uneven, tmp_path):
    fit(fedavg(uneven), uneven, rounds=3, folder=tmp_path)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3]


def test_an_algorithm_need_not_be_a_dataclass(uneven):
    class Plain(Algorithm):
        def init_server(self, clients, key):
            return {"sum": torch.zeros(1)}

        def round(self, server, clients, key):
            return {"sum": server["sum"] + 1}, {}

    assert fit(Plain(), uneven, rounds=2).server["sum"].tolist() == [2.0]
