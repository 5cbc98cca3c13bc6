"""Runs on several ranks: the same bits as in one process, whatever the number of ranks and whatever happens to them."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archipel.core.trees import Sum
from archipel.engines.setting import Setting
from archipel.engines.shards import SHARDS, ShardedSum, merged, owners, shard_ranges, shards_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rank_rows import digests  # noqa: E402


def torchrun(ranks, *command, restarts=0, **options):
    """Start a command on several ranks of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    return subprocess.Popen(
        [*start, "--max-restarts", str(restarts), *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        **options,
    )


def ended(process, seconds=240):
    """The output of a launcher that ends well; all of its processes are gone afterwards."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, err[-3000:]
    return out


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


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_method_ends_with_the_loops_bits(ranks, looped):
    found = json.loads(ended(torchrun(ranks, HERE / "rank_rows.py", "loop")).splitlines()[-1])
    assert {name for name in looped if found.get(name) != looped[name]} == set()
    assert found.keys() == looped.keys()


def test_batches_on_ranks_have_the_same_bits_for_any_number_of_ranks():
    found = [json.loads(ended(torchrun(ranks, HERE / "rank_rows.py", "batched")).splitlines()[-1]) for ranks in (1, 2)]
    assert found[0] == found[1]


def test_an_engine_of_ranks_says_how_to_start_it():
    from archipel import SGD, FedAvg, Federation, classification, fit

    x, y = torch.randn(20, 3).numpy(), (torch.arange(20) % 2).numpy()
    islands = Federation.from_arrays([(x, y), (x, y)])
    method = FedAvg(classification(torch.nn.Linear(3, 4), islands), SGD(lr=0.1, steps=1))
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2 -m archipel run PRESET"):
        fit(method, islands, rounds=1, setting=Setting(engine="distributed"))
