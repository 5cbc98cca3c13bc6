"""Runs on several ranks: the same bits as in one process, whatever the number of ranks and whatever happens to them."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_rows import digests

from archipel.core.trees import Sum, flatten
from archipel.engines.setting import Setting
from archipel.engines.shards import SHARDS, ShardedSum, merged, owners, shard_ranges, shards_of

TESTS = Path(__file__).parents[1]
ROWS = TESTS / "engines" / "rank_rows.py"
PATHS = [str(TESTS), str(TESTS / "conformance")]


def torchrun(ranks, *command, restarts=0, **options):
    """Start a command on several ranks of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    return subprocess.Popen(
        [*start, "--max-restarts", str(restarts), *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*PATHS, *filter(None, sys.path)])},
        start_new_session=True,
        **options,
    )


def ended(process, seconds=240):
    """What a launcher that ends well has printed; all of its processes are gone afterwards."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, err[-3000:]
    return out, err


@given(st.data())
def test_any_number_of_ranks_sums_to_the_same_bits(data):
    sizes = torch.tensor(data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=40)))
    present = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    ranks = data.draw(st.integers(1, len(set(shards_of(sizes).tolist()))))
    values = torch.randn(len(sizes), 3, generator=torch.Generator().manual_seed(len(sizes)))
    shards, weights = shards_of(sizes), sizes.tolist()

    def summed(ids, first=0, end=SHARDS):
        total = ShardedSum(shards, first, end)
        for i in ids:
            total.add([i], {"a": values[i : i + 1]}, [weights[i]])
        return total.branches()

    alone = merged(summed(present))
    owner = owners(sizes, ranks)
    sent = []
    for rank, (first, end) in enumerate(shard_ranges(sizes, ranks)):
        for branch in summed([i for i in present if owner[i] == rank], first, end):
            branch.sum = Sum.unpacked(branch.sum.like, branch.sum.packed(), branch.sum.weight)
            sent.append(branch)
    together = merged(sent)
    assert together.weight == alone.weight == sum(weights[i] for i in present)
    assert torch.equal(together.packed(), alone.packed())
    for column, value in enumerate(alone.packed().tolist()):
        exact = math.fsum(weights[i] * float(values[i, column]) for i in present)
        scale = math.fsum(abs(weights[i] * float(values[i, column])) for i in present)
        assert abs(value - exact) <= len(present) * 2**-52 * scale  # the bound of any order of summation


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_every_rank_gets_clients_and_the_shares_are_even(sizes):
    sizes = torch.tensor(sizes)
    most = len(set(shards_of(sizes).tolist()))
    for ranks in range(1, most + 1):
        owner = owners(sizes, ranks)
        assert sorted(set(owner.tolist())) == list(range(ranks))
        assert (owner[1:] >= owner[:-1]).all()  # consecutive clients, so that replies are in client order
    with pytest.raises(ValueError, match=rf"Take {most}, or fewer"):
        owners(sizes, most + 1)


def test_equal_clients_are_shared_evenly():
    assert owners(torch.full((8,), 10), 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.fixture(scope="module")
def looped():
    return dict(digests(Setting(engine="loop")))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_every_method_ends_with_the_loops_bits(ranks, looped):
    found = json.loads(ended(torchrun(ranks, ROWS, "loop", "both"))[0].splitlines()[-1])
    assert {name for name in looped if found.get(name) != looped[name]} == set()
    assert found.keys() == looped.keys()


@pytest.mark.soak
def test_batches_on_ranks_have_the_same_bits_for_any_number_of_ranks():
    found = [json.loads(ended(torchrun(ranks, ROWS, "batched", "all"))[0].splitlines()[-1]) for ranks in (1, 2)]
    assert found[0] == found[1]


def test_an_engine_of_ranks_says_how_to_start_it():
    from archipel import SGD, FedAvg, Federation, classification, fit

    x, y = torch.randn(20, 3).numpy(), (torch.arange(20) % 2).numpy()
    islands = Federation.from_arrays([(x, y), (x, y)])
    method = FedAvg(classification(torch.nn.Linear(3, 4), islands), SGD(lr=0.1, steps=1))
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2 -m archipel run PRESET"):
        fit(method, islands, rounds=1, setting=Setting(engine="distributed"))


SETTINGS = ["data.source=digits", "data.clients=6", "evaluate_every=2", "checkpoint_every=1", "rounds=6"]


def digest_of(folder):
    """What a run's folder holds of its end: states and history, without the seconds."""
    from archipel.states.checkpoint import Checkpoint

    found = Checkpoint.load(folder)
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in found.facts["history"]]
    return (
        found.round,
        {n: t.tolist() for n, t in flatten(found.server).items()},
        list(map(str, found.clients)),
        history,
    )


def command(preset, out, *settings):
    return ["-m", "archipel", "run", preset, *SETTINGS, *settings, "--out", out]


def test_the_command_on_ranks_leaves_the_folder_of_one_process_and_another_number_of_ranks_resumes_it(tmp_path):
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    subprocess.run([sys.executable, *map(str, command("digits-fedspm", alone, "engine=loop"))], check=True)
    torchrunning = command("digits-fedspm", ranks, "engine=loop")
    from archipel.experiments import read_config
    from archipel.experiments.running import train

    train(read_config("digits-fedspm", [*SETTINGS, "engine=loop"]), ranks, until=2)
    out, err = ended(torchrun(2, *torchrunning))
    assert out.count("system accuracy") == 1  # one report
    assert err.count("round 6 of 6") == 1  # one log
    assert digest_of(ranks) == digest_of(alone)
    assert "is complete" in ended(torchrun(3, *torchrunning))[1]
    subprocess.run([sys.executable, "-m", "archipel", "evaluate", ranks], check=True)


def test_a_killed_rank_is_started_again_and_the_run_ends_with_the_same_bits(tmp_path):
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    settings = ["engine=loop", "rounds=16"]
    process = torchrun(2, *command("digits-fedspm", ranks, *settings), restarts=2)
    wait_for(ranks / "checkpoint", process)
    victim = max(children(process.pid))
    os.kill(victim, signal.SIGKILL)
    ended(process)
    subprocess.run([sys.executable, *map(str, command("digits-fedspm", alone, *settings))], check=True)
    assert digest_of(ranks) == digest_of(alone)


def test_sigterm_ends_all_ranks_after_a_round_with_a_checkpoint(tmp_path):
    process = torchrun(2, *command("digits-fedspm", tmp_path / "run", "engine=loop", "rounds=4000"))
    wait_for(tmp_path / "run" / "checkpoint", process)
    ranks = children(process.pid)
    for rank in ranks:
        os.kill(rank, signal.SIGTERM)
    process.communicate(timeout=120)
    done, *_, history = digest_of(tmp_path / "run")
    assert 0 < done == len(history) < 4000
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def wait_for(path, process, seconds=120):
    """Wait until a file is there; the process must still run."""
    for _ in range(seconds * 10):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear in {seconds} seconds")


def children(pid):
    """The processes that a process has started."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
