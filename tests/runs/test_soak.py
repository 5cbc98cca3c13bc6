"""Long tests: runs that are killed again and again, and memory over thousands of rounds."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from archipel import SGD, FedAvg, classification, fit
from archipel.core.trees import leaves
from archipel.experiments import load
from archipel.models.mlp import MLP

pytestmark = pytest.mark.soak
ROUNDS = 300
SETTINGS = ["digits-fedavg", f"rounds={ROUNDS}", "workers=1", "engine=loop", "evaluate_every=null"]


def command(out):
    return [sys.executable, "-m", "archipel", "run", *SETTINGS, "--out", str(out)]


def test_a_run_that_is_killed_again_and_again_ends_at_the_same_bits(tmp_path):
    began = time.monotonic()
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    seconds = time.monotonic() - began
    rng, kills = random.Random(0), 0
    while True:
        running = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            running.wait(rng.uniform(0.25, 0.6) * seconds)
            break
        except subprocess.TimeoutExpired:
            running.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            running.communicate()
            kills += 1
        assert kills < 200, "the run never ends"
    assert running.returncode == 0, running.stderr.read()
    assert kills >= 2
    one, other = (load(tmp_path / name) for name in ("whole", "killed"))
    assert all(torch.equal(a, b) for a, b in zip(leaves(one.server), leaves(other.server), strict=True))
    rounds = [json.loads(line)["round"] for line in (tmp_path / "killed/metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, ROUNDS + 1))


def resident():
    """Kilobytes of this process in memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_memory_does_not_grow_with_rounds(uneven):
    task = classification(MLP(uneven.inputs.shape, 8, hidden=(16,)), uneven)
    seen = {}

    def note(moment):
        if moment.round in (500, 4000):
            seen[moment.round] = resident()

    began = time.monotonic()
    fit(FedAvg(task, SGD(lr=0.1, epochs=1, batch=8)), uneven, rounds=4000, callbacks=[note])
    assert time.monotonic() - began < 1800
    # A record of a round is under a kilobyte; the allocator may keep a few MB.
    assert seen[4000] - seen[500] < 3500 + 8000
