"""What a run tells while it lasts: events, status and tail, and the command's exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest
import torch

from archipel import SGD, DivergenceError, FedAvg, Sample, classification, fit
from archipel.runs.events import EVENTS, read_events, status


def fedavg(federation, lr=0.1):
    return FedAvg(classification(torch.nn.Linear(3, 4), federation), SGD(lr=lr, steps=2))


def command(*words, code=0):
    done = subprocess.run([sys.executable, "-m", "archipel", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_each_round_is_an_event_that_names_who_took_part(uneven, tmp_path):
    run = fit(fedavg(uneven), uneven, rounds=4, cohort=Sample(count=2), folder=tmp_path, checkpoint_every=2,
              answers=lambda round, client: (round, client) != (1, 0))  # fmt: skip
    events, end = read_events(tmp_path)
    assert end == (tmp_path / EVENTS).stat().st_size
    assert [event["event"] for event in events] == [
        "started", "round", "round", "checkpoint", "round", "round", "checkpoint", "ended",
    ]  # fmt: skip
    rounds = [event for event in events if event["event"] == "round"]
    for event, record in zip(rounds, run.history, strict=True):
        assert {name: event[name] for name in record} == json.loads(json.dumps(record))
        assert len(event["who"]) == 2
        assert set(event["who"]) <= {client.name for client in uneven.clients}
    times = [datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)
    assert all(moment.utcoffset().total_seconds() == 0 for moment in times)
    found = status(tmp_path)
    assert (found.state, found.round, found.rounds, found.checkpoint) == ("complete", 4, 4, 4)
    assert found.metrics == run.metrics


def test_what_ended_a_run_is_known(uneven, tmp_path):
    with pytest.raises(DivergenceError):
        fit(fedavg(uneven, lr=1e30), uneven, rounds=9, folder=tmp_path / "diverged")
    found = status(tmp_path / "diverged")
    assert found.state == "failed"
    assert found.why.startswith("DivergenceError: After round")
    fit(fedavg(uneven), uneven, rounds=9, folder=tmp_path / "part", until=3)
    assert (status(tmp_path / "part").state, status(tmp_path / "part").round) == ("stopped", 3)
    fit(fedavg(uneven), uneven, rounds=9, folder=tmp_path / "part", until=5)
    starts = [event["round"] for event in read_events(tmp_path / "part")[0] if event["event"] == "started"]
    assert starts == [0, 3]  # appended, not written anew
    # A run that is killed says nothing more; half a line of it is left out.
    lines = (tmp_path / "part" / EVENTS).read_text().splitlines()
    (tmp_path / "part" / EVENTS).write_text("\n".join(lines[:4]) + '\n{"event": "ro')
    assert status(tmp_path / "part").state == "killed"
    with pytest.raises(FileNotFoundError, match=r"has no events\.jsonl: no run was trained there"):
        status(tmp_path)


def test_status_and_tail_of_a_run_of_the_command_and_its_exit_codes(tmp_path):
    run, words = tmp_path / "run", ["run", "digits-fedavg", "data.clients=3", "engine=loop", "checkpoint_every=1"]
    start = [sys.executable, "-m", "archipel", *words, "rounds=100000", "--out", str(run)]
    process = subprocess.Popen(start, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            if (run / "checkpoint").exists():
                break
            time.sleep(0.1)
        assert json.loads(command("status", run, "--json"))["state"] == "running"
        told = command("tail", run, "-n", "1", "--follow", "--seconds", "5", "--json").splitlines()
        assert {json.loads(line)["event"] for line in told} <= {"started", "round", "checkpoint"}
        assert len(told) > 1
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert "interrupted, round" in command("status", run)
    assert "interrupted: why Stopped after round" in command("tail", run, "-n", "1")
    assert command("tail", run, "-n", "0") == ""
    command("status", tmp_path / "nowhere", code=2)
    command("run", "digits-fedavg", "rounds=0", code=2)
    command(*words, "rounds=3", "algorithm.local.lr=1e30", "--out", tmp_path / "far", code=1)
    assert "failed" in command("status", tmp_path / "far")
