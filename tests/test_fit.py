"""fit: same seed same bits, exact resumption, interruptions, and nothing that grows."""

import copy
import json
import pickle
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from archipel import (
    SGD,
    Compressing,
    Ditto,
    FedAvg,
    Federation,
    FedSPM,
    Network,
    Run,
    Sample,
    Setting,
    classification,
    fit,
)
from archipel.compress import Identity
from archipel.core.trees import flatten
from archipel.runs.identity import describe
from archipel.states.checkpoint import Checkpoint

HALF = Sample(fraction=0.5)


def fedavg(federation):
    # Clipping sums over all parameters: its rounding tells if a tree came back in another order.
    local = SGD(lr=0.2, epochs=1, batch=4, momentum=0.9, keep_momentum=True, clip=0.5, schedule="cosine")
    return FedAvg(classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), federation), local)


def fedspm(federation, **settings):
    block = SGD(lr=0.2, steps=3, batch=4, momentum=0.9, keep_momentum=True, clip=0.5, schedule="cosine")
    task, router = classification(nn.Linear(3, 4), federation), Network(nn.Linear(3, 4), federation.inputs)
    return FedSPM(task, router, components=2, local=block, routing=block, **settings)


ALGORITHMS = {
    "fedavg": fedavg,
    "fedspm": fedspm,
    "incremental": lambda federation: fedspm(federation, expectation="incremental", encoders="own"),
}


def plain(history):
    """A history without what a clock wrote."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def assert_same(one, other):
    assert len(one.clients) == len(other.clients)
    for left, right in zip([one.server, *one.clients], [other.server, *other.clients], strict=True):
        left, right = flatten(left), flatten(right)
        assert list(left) == list(right)
        for name in left:
            assert torch.equal(left[name], right[name]), name


def differ(one, other):
    left, right = flatten(one.server), flatten(other.server)
    return any(not torch.equal(left[name], right[name]) for name in left)


def test_the_seed_decides_every_bit(uneven):
    algorithm = fedavg(uneven)
    one, same, other = (fit(algorithm, uneven, rounds=3, cohort=HALF, seed=seed) for seed in (5, 5, 6))
    assert_same(one, same)
    assert plain(one.history) == plain(same.history)
    assert one.table == same.table
    assert differ(one, other)


def test_watching_changes_nothing(uneven):
    algorithm = fedspm(uneven)
    quiet = fit(algorithm, uneven, rounds=4, cohort=HALF)
    seen = []

    def watch(moment):
        torch.manual_seed(0)
        torch.rand(5)
        seen.append(moment.round)
        moment.clients.evaluate(lambda client, message, data, key: (client, data.test.count), {}, torch.tensor(0))
        assert moment.algorithm is algorithm
        assert moment.federation is uneven

    watched = fit(algorithm, uneven, rounds=4, cohort=HALF, evaluate_every=1, callbacks=[watch])
    assert_same(quiet, watched)
    assert seen == [1, 2, 3, 4]
    assert [r["uplink"] for r in quiet.history] == [r["uplink"] for r in watched.history]
    assert quiet.metrics == watched.metrics


def test_the_last_round_is_the_one_reported(uneven):
    run = fit(fedavg(uneven), uneven, rounds=5, evaluate_every=2)
    assert [record["round"] for record in run.history if "metrics" in record] == [2, 4, 5]
    assert run.metrics == run.history[-1]["metrics"]
    until = fit(fedavg(uneven), uneven, rounds=5, until=3)
    assert len(until.history) == 3
    assert until.metrics == until.history[-1]["metrics"]


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_five_rounds_and_five_more_are_ten(uneven, tmp_path, name, engine):
    algorithm = ALGORITHMS[name](uneven)
    settings = {"rounds": 10, "cohort": HALF, "setting": Setting(engine=engine), "evaluate_every": 5}
    straight = fit(algorithm, uneven, **settings)
    first = fit(algorithm, uneven, folder=tmp_path, until=5, **settings)
    assert len(first.history) == 5
    resumed = fit(algorithm, uneven, folder=tmp_path, **settings)
    assert_same(resumed, straight)
    assert plain(resumed.history) == plain(straight.history)
    assert resumed.table == straight.table
    # A third call finds all done, and gives the same once more.
    assert_same(fit(algorithm, uneven, folder=tmp_path, **settings), straight)


def test_rounds_after_the_last_checkpoint_are_made_and_written_again(uneven, tmp_path):
    algorithm = fedavg(uneven)

    def crash(moment):
        if moment.round == 4:
            raise OSError("power cut")

    with pytest.raises(OSError, match="power cut"):
        fit(algorithm, uneven, rounds=6, folder=tmp_path, checkpoint_every=2, callbacks=[crash])
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert Checkpoint.load(tmp_path).round == 2
    resumed = fit(algorithm, uneven, rounds=6, folder=tmp_path, checkpoint_every=2)
    assert_same(resumed, fit(algorithm, uneven, rounds=6))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == resumed.history
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["fedavg", "incremental"])
def test_states_on_disk_are_those_in_memory(uneven, tmp_path, name):
    algorithm = ALGORITHMS[name](uneven)
    settings = {"rounds": 4, "cohort": HALF}
    here = fit(algorithm, uneven, **settings, setting=Setting(states="memory"))
    there = fit(algorithm, uneven, **settings, setting=Setting(states="disk"), folder=tmp_path, until=2)
    assert where(there) == {"FileColumn"}
    assert (
        json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())["facts"]["identity"]["engine"]["states"]
        == "on disk"
    )
    # Where they are has no effect on the numbers: it may change on the way, by the checkpoint and back.
    moved = fit(algorithm, uneven, **settings, setting=Setting(states="memory"), folder=tmp_path, until=3)
    assert where(moved) == {"MemoryColumn"}
    ended = fit(algorithm, uneven, **settings, setting=Setting(states="disk"), folder=tmp_path)
    assert_same(ended, here)
    assert_same(fit(algorithm, uneven, **settings, setting=Setting(states="disk")), here)


def where(run):
    return {type(column).__name__ for column in run.clients.columns.values()}


def test_states_go_to_disk_by_themselves_where_memory_is_short(uneven, monkeypatch, caplog):
    size = fit(fedavg(uneven), uneven, rounds=1).clients.bytes * 4
    for free, place in ((2 * size, "MemoryColumn"), (2 * size - 1, "FileColumn"), (None, "MemoryColumn")):
        monkeypatch.setattr("archipel.states.placement.available_memory", lambda free=free: free)
        caplog.clear()
        with caplog.at_level("INFO", "archipel"):
            assert where(fit(fedavg(uneven), uneven, rounds=1)) == {place}
        told = [record.getMessage() for record in caplog.records if "client states" in record.getMessage()]
        assert len(told) == (place == "FileColumn")
        assert all("GB on disk, in " in line and "of memory are available" in line for line in told)


def test_a_loaded_run_reads_states_when_it_is_asked(uneven, tmp_path):
    algorithm = fedspm(uneven)
    trained = fit(algorithm, uneven, rounds=2, folder=tmp_path)
    early = Run.read(tmp_path, algorithm)
    assert where(early) == {"FileColumn"}
    assert_same(early, trained)
    # It stays what it was when a later checkpoint takes the place of its own, and can take its place again.
    other = fit(algorithm, uneven, rounds=2, folder=tmp_path, seed=1, resume=False)
    assert differ(other, trained)
    assert_same(early, trained)
    early.save(tmp_path)
    assert_same(Run.read(tmp_path, algorithm), trained)


def test_a_run_given_as_a_list_of_states_is_saved(uneven, tmp_path):
    algorithm = fedspm(uneven)
    trained = fit(algorithm, uneven, rounds=1)
    replace(trained, clients=list(trained.clients)).save(tmp_path)
    assert_same(Run.read(tmp_path, algorithm), trained)


def test_a_run_on_disk_can_be_copied_and_pickled(uneven):
    trained = fit(fedavg(uneven), uneven, rounds=1, setting=Setting(states="disk"))
    for again in (copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
        assert where(again) == {"MemoryColumn"}
        assert_same(again, trained)


def test_another_run_in_the_folder_is_refused_by_what_differs(uneven, tmp_path):
    algorithm = fedavg(uneven)
    fit(algorithm, uneven, rounds=2, folder=tmp_path)
    other = replace(algorithm, local=replace(algorithm.local, lr=0.1))
    with pytest.raises(ValueError, match=r"a run with another algorithm\. Choose another folder.*resume=False"):
        fit(other, uneven, rounds=2, folder=tmp_path)
    with pytest.raises(ValueError, match="another rounds and seed and cohort"):
        fit(algorithm, uneven, rounds=3, seed=1, cohort=HALF, folder=tmp_path)
    renewed = fit(other, uneven, rounds=2, folder=tmp_path, resume=False)
    assert_same(Run.read(tmp_path, other), renewed)
    # engine, workers and evaluation may change on the way
    assert (
        len(fit(other, uneven, rounds=2, folder=tmp_path, setting=Setting(engine="loop"), evaluate_every=1).history)
        == 2
    )


@pytest.mark.parametrize("moment", ["in a callback", "in training"])
def test_ctrl_c_ends_the_round_with_a_checkpoint_to_go_on_from(uneven, tmp_path, moment):
    algorithm = fedavg(uneven)
    before = signal.getsignal(signal.SIGINT)

    def interrupt(now):
        if moment == "in a callback" and now.round == 3:
            signal.raise_signal(signal.SIGINT)

    def answers(round, client):
        if moment == "in training" and (round, client) == (2, 0):
            signal.raise_signal(signal.SIGINT)
        return True

    with pytest.raises(
        KeyboardInterrupt, match=r"Stopped after round 3 of 6; the checkpoint is in .*; the same call resumes it"
    ):
        fit(algorithm, uneven, rounds=6, folder=tmp_path, callbacks=[interrupt], answers=answers)
    assert signal.getsignal(signal.SIGINT) is before
    assert Checkpoint.load(tmp_path).round == 3
    resumed = fit(algorithm, uneven, rounds=6, folder=tmp_path)
    assert_same(resumed, fit(algorithm, uneven, rounds=6))


def test_the_second_ctrl_c_stops_at_once(uneven, tmp_path):
    def twice(moment):
        if moment.round == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(fedavg(uneven), uneven, rounds=6, folder=tmp_path, checkpoint_every=1, callbacks=[twice])
    assert Checkpoint.load(tmp_path).round == 1


def test_ctrl_c_in_the_last_round_finishes_the_run(uneven):
    run = fit(
        fedavg(uneven),
        uneven,
        rounds=2,
        callbacks=[lambda moment: signal.raise_signal(signal.SIGINT) if moment.round == 2 else None],
    )
    assert len(run.history) == 2
    assert run.metrics


def test_each_round_is_a_line(uneven, tmp_path):
    run = fit(fedavg(uneven), uneven, rounds=4, cohort=HALF, evaluate_every=2, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.history
    for number, line in enumerate(lines, start=1):
        assert line["round"] == number
        assert line["cohort"] == 2
        assert line["seconds"] >= 0
        assert line["loss"] > 0


# A model of 400 kB: one kept by mistake in every round would add 36 MB, a tenth of what torch takes.
MEMORY = """
import resource, sys
import torch
from archipel import SGD, FedAvg, Federation, Setting, classification, fit

def resident(moment):
    if moment.round in (10, 100):
        print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())

x = torch.randn(12, 400, generator=torch.Generator().manual_seed(0))
federation = Federation.from_arrays([(x, torch.arange(12) % 2)] * 3)
task = classification(torch.nn.Linear(400, 250), federation)
local = SGD(lr=0.01, steps=1, batch=4, momentum=0.5, keep_momentum=True)
fit(FedAvg(task, local), federation, rounds=100, setting=Setting(engine=sys.argv[1]), callbacks=[resident],
    evaluate_every=10)
"""


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_memory_does_not_grow_with_rounds(engine):
    done = subprocess.run([sys.executable, "-c", MEMORY, engine], capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late < 1.05 * early


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "cluster"}, "engine must be one of 'auto', 'loop', .*; given 'cluster'"),
        ({"states": "tape"}, "states must be one of 'auto', 'memory', 'disk'; given 'tape'"),
        ({"workers": 0}, "workers must be a whole number of at least 1; given 0"),
        ({"device": "gpu"}, "device must name a device, .*; given 'gpu'"),
        ({"device": 0.5}, "device must name a device, .*; given 0.5"),
        ({"precision": ["float32"]}, r"precision must be one of 'float32', 'bfloat16'; given \['float32'\]"),
    ],
)
def test_a_setting_says_what_is_allowed(fields, message):
    with pytest.raises(ValueError, match=message):
        Setting(**fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1; given 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"evaluate_every": 0}, "evaluate_every must be a whole number of at least 1; given 0"),
        ({"checkpoint_every": -1}, "checkpoint_every must be"),
        ({"until": 0}, "until must be a whole number of at least 1; given 0"),
        ({"seed": "1"}, "seed must be a whole number of 64 bits; given '1'"),
        ({"seed": 2**70}, "seed must be a whole number of 64 bits"),
        ({"cohort": Sample(count=9)}, "count is 9, but only 4 clients are enrolled"),
    ],
)
def test_settings_out_of_range_are_refused(uneven, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(fedavg(uneven), uneven, **({"rounds": 1} | settings))


def test_what_is_no_algorithm_federation_task_or_cohort_is_refused(uneven):
    algorithm = fedavg(uneven)
    for arguments, message in [
        ((FedAvg, uneven), "given the class FedAvg instead of an Algorithm"),
        ((algorithm, [1, 2]), "given a list instead of a Federation"),
    ]:
        with pytest.raises(TypeError, match=message):
            fit(*arguments, rounds=1)
    with pytest.raises(TypeError, match=r"cohort must be Full\(\), Sample\(…\) .* given 0\.5"):
        fit(algorithm, uneven, rounds=1, cohort=0.5)


def test_a_configuration_is_described_in_jsons_types(uneven):
    found = describe(fedavg(uneven))
    assert json.loads(json.dumps(found)) == found
    assert found["type"] == "FedAvg"
    assert found["local"]["lr"] == 0.2
    # Networks that differ in an activation alone are different ones: a run must not go on with the other.
    module = "Sequential( (0): Linear(in_features=3, out_features=5, bias=True) (1): Tanh() ), 20 parameters"
    assert found["task"]["encoder"]["module"] == module


def test_parts_of_the_wrong_kind_are_told_by_their_owner(uneven):
    task, solver = classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, steps=1)
    for make, message in (
        (lambda: FedAvg(task, 0.1), r"FedAvg's local must be a solver, SGD\(.*given a float"),
        (lambda: Compressing(FedAvg(task, None), Identity()), "FedAvg's local must be a solver.*given a NoneType"),
        (lambda: FedAvg("lenet", solver), r"FedAvg's task must be a task, made by classification\(.*given a str"),
        (lambda: FedAvg(nn.Linear(3, 2), solver), r"task must be a task, .* Whole\(Network\(module, .*given a Linear"),
        (lambda: Ditto(solver, solver), r"Ditto's inner must be an algorithm, FedAvg\(.*given a SGD"),
    ):
        with pytest.raises(TypeError, match=message):
            make()


def test_a_task_of_another_federation_is_told_what_differs(uneven):
    x = torch.zeros(10, 5)
    wide = Federation.from_arrays([(x, torch.arange(10) % 3)])
    task, solver = classification(nn.Linear(5, 4), wide), SGD(lr=0.1, steps=1)
    with pytest.raises(
        ValueError, match=r"FedAvg's Linear was made for examples of shape \(5,\); those of .* have \(3,\)"
    ):
        fit(FedAvg(task, solver), uneven, rounds=1)
    fewer = Federation.from_arrays([(x[:, :3], torch.arange(10) % 2)])
    with pytest.raises(ValueError, match=r"FedAvg's task has 2 outputs; .* has 3 classes"):
        fit(FedAvg(classification(nn.Linear(3, 4), fewer), solver), uneven, rounds=1)
