"""Worker processes: the bits of one process, whoever works, ends, hangs or is interrupted."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from test_engines import Branching, Ledgers, every_state, perceptron, same_bits
from torch import nn

from archipel import SGD, Algorithm, Compressing, FedAvg, PerExample, Sample, fit
from archipel.compress import Dithering, TopK
from archipel.core import keys
from archipel.core.trees import Compressed
from archipel.engines import Batched, Loop, Processes
from archipel.engines.pool.memory import Memory
from archipel.engines.setting import Setting
from archipel.states.storage import on_disk
from archipel.states.table import States

LOCAL = SGD(lr=0.1, epochs=1, batch=4, momentum=0.9, keep_momentum=True)
PARENT = os.getpid()
KERNELS = {"loop": Loop, "batched": partial(Batched, chunk=2)}


@dataclass(frozen=True)
class Perilous(Algorithm):
    """Counts rounds; at one client something happens, once for each mark that isn't there yet."""

    folder: Path
    what: str = "kill"
    times: int = 1
    where: int = 2
    extra: object = None

    def init_server(self, clients, key):
        return {"sum": torch.zeros(2)}

    def init_client(self, message, data, key):
        return {"index": message["index"], "count": torch.tensor(0.0)}

    def round(self, server, clients, key):
        return {"sum": server["sum"] + clients.sum(self.step, {}, key)}, {}

    def step(self, client, message, data, key):
        # Inside a batch clients can't be told apart: whoever runs the step is in danger.
        batched = torch._C._functorch.is_batchedtensor(client["index"])
        if os.getpid() != PARENT and (batched or int(client["index"]) == self.where) and self.marked():
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "leave":
                os._exit(3)
            time.sleep(60)
        return client | {"count": client["count"] + 1}, torch.stack([keys.uniform(key), client["count"]])

    def marked(self):
        for number in range(self.times):
            with suppress(FileExistsError):
                (self.folder / str(number)).touch(exist_ok=False)  # by one worker alone
                return True
        return False


@dataclass(frozen=True)
class Failing(Algorithm):
    """Fails in ways of its own."""

    def init_server(self, clients, key):
        return {}

    def round(self, server, clients, key):
        return server, {}

    def odd(self, client, message, data, key):
        class OddError(Exception):
            pass

        raise OddError("nobody else knows this type")

    def slow(self, client, message, data, key):
        value = message["x"] + 1
        time.sleep(0.05)
        return client, value


def workers_alive():
    return [child for child in multiprocessing.active_children() if child.name.startswith("archipel")]


# The same bits


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_number_of_workers_has_the_bits_of_its_kernel(uneven, kernel):
    run = partial(fit, Ledgers(), uneven, rounds=3, cohort=Sample(count=3))
    expected = run(setting=Setting(engine=KERNELS[kernel]))
    for workers in (1, 2, 3):
        found = run(setting=Setting(engine=partial(Processes, kernel=kernel, chunk=2), workers=workers))
        same_bits(every_state(found), every_state(expected))
        assert [r["uplink"] for r in found.history] == [r["uplink"] for r in expected.history]
    assert not workers_alive()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("compressor", [Dithering(levels=4), TopK(fraction=0.3)])
def test_what_is_compressed_arrives_as_without_processes(uneven, kernel, compressor):
    run = partial(fit, Compressing(FedAvg(perceptron(uneven), LOCAL), compressor), uneven, rounds=2)
    found = run(setting=Setting(engine=partial(Processes, kernel=kernel, chunk=2), workers=2))
    expected = run(setting=Setting(engine=KERNELS[kernel]))
    same_bits(every_state(found), every_state(expected))
    assert [r["uplink"] for r in found.history] == [r["uplink"] for r in expected.history]


def test_dropout_is_as_in_the_loop(uneven, caplog):
    run = partial(fit, FedAvg(perceptron(uneven, nn.Dropout(0.5)), LOCAL), uneven, rounds=2)
    expected = run(setting=Setting(engine=Loop))
    for workers in (1, 3):
        same_bits(every_state(run(setting=Setting(engine=Processes, workers=workers))), every_state(expected))
    batched = run(setting=Setting(engine=partial(Processes, kernel="batched"), workers=2))
    same_bits(every_state(batched), every_state(expected))
    assert sum("can't be batched" in message for message in caplog.messages) == 1


def test_a_model_that_cannot_be_batched_is_looped_by_all_workers(uneven):
    algorithm = FedAvg(perceptron(uneven, Branching()), LOCAL)
    carriers = []

    def engine(*given):
        carriers.append(Processes(*given, kernel="batched"))
        return carriers[0]

    same_bits(
        every_state(fit(algorithm, uneven, rounds=2, setting=Setting(engine=engine, workers=2))),
        every_state(fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))),
    )
    assert carriers[0].describe() == {"engine": "processes", "kernel": "loop", "workers": 2}


def test_states_on_disk_stay_with_the_parent(uneven, tmp_path):
    def engine(algorithm, federation, setting, _):
        return Processes(algorithm, federation, setting, states=States(federation.sizes, on_disk(tmp_path)))

    found = fit(Ledgers(), uneven, rounds=2, setting=Setting(engine=engine, workers=2))
    expected = fit(Ledgers(), uneven, rounds=2, setting=Setting(engine=Loop))
    same_bits(every_state(found), every_state(expected))


def test_clients_come_in_groups_where_there_are_many(uneven):
    # 4 clients and 1 worker: 4 // (4 · 1) = 1 at a time; of 3,000 the bound is 8.
    carrier = Processes(Ledgers(), uneven)
    assert carrier._groups(range(4), {}) == [[0], [1], [2], [3]]
    groups = carrier._groups(range(3000), {})
    assert {len(group) for group in groups} == {8}
    assert [client for group in groups for client in group] == list(range(3000))
    assert {len(g) for g in carrier._groups(range(3000), {"model": torch.zeros(2**22)})} == {1}


def test_batches_are_cut_from_the_cohort_whatever_the_number_of_workers(uneven):
    algorithm = Ledgers()
    for workers in (1, 3):
        carrier = Processes(algorithm, uneven, Setting(workers=workers), kernel="batched")
        # ⌈100/16⌉ = 7 is below 50; 110 in at most 50 each make 3 of 37; ⌈1000/16⌉ = 63; 256 is Batched's own bound.
        for count, size in ((10, 10), (100, 50), (110, 37), (1000, 63), (8000, 250)):
            batches = carrier._batches(algorithm.look, {}, range(count))
            assert [client for batch in batches for client in batch] == list(range(count))
            assert {len(batch) for batch in batches[:-1]} <= {size}
            assert len(batches[0]) == size
        assert carrier._batches(algorithm.look, {}, []) == []
    given = Processes(algorithm, uneven, kernel="batched", chunk=40)._batches(algorithm.look, {}, range(100))
    assert [len(batch) for batch in given] == [40, 40, 20]


def test_spawned_workers_do_the_same_and_say_what_they_cannot_be_sent(uneven, tmp_path):
    algorithm = FedAvg(perceptron(uneven), LOCAL)
    found = fit(algorithm, uneven, rounds=2, setting=Setting(engine=partial(Processes, start="spawn"), workers=2))
    same_bits(every_state(found), every_state(fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))))
    with pytest.raises(ValueError, match=r"this Perilous can't be pickled.*at the top of a file.*engine='loop'"):
        Processes(Perilous(tmp_path, extra=lambda: 0), uneven, start="spawn")
    with pytest.raises(ValueError, match=r"workers must be a whole number of at least 1; given 0"):
        Setting(workers=0)
    with pytest.raises(ValueError, match="kernel must be 'loop' or 'batched'; given 'batch'"):
        Processes(algorithm, uneven, kernel="batch")


def test_a_daemon_is_told_that_it_cannot_have_workers(uneven, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(ValueError, match=r"This process may not start others.*engine='loop' or 'batched' here"):
        Processes(Ledgers(), uneven, Setting(workers=2))


def test_workers_begin_in_whatever_thread_the_run_is(uneven):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(fit(Ledgers(), uneven, rounds=2, setting=Setting(engine=Processes, workers=2)))
    )
    thread.start()
    thread.join(timeout=60)
    same_bits(every_state(found[0]), every_state(fit(Ledgers(), uneven, rounds=2, setting=Setting(engine=Loop))))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_forked_workers_need_not_be_sent_the_algorithm(uneven, tmp_path):
    algorithm = Perilous(tmp_path, times=0, extra=lambda: 0)
    found, expected = (
        fit(algorithm, uneven, rounds=2, setting=Setting(engine=e, workers=w)) for e, w in ((Processes, 2), (Loop, 1))
    )
    same_bits(every_state(found), every_state(expected))


def test_a_step_that_cannot_be_sent_runs_here_and_says_so(uneven, caplog):
    def local(client, message, data, key):
        return client, message

    carrier = Processes(Failing(), uneven, Setting(workers=2))
    outcomes = list(carrier.run(local, torch.ones(2), [0, 3], keys.key(0), training=True))
    assert [outcome.ids for outcome in outcomes] == [(0,), (3,)]
    assert not workers_alive()
    assert any("can't be sent to workers, so it runs in this process" in message for message in caplog.messages)


# Workers that are lost


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("what", "told"),
    [("kill", "was killed by SIGKILL, perhaps because memory is short"), ("leave", "ended with exit code 3")],
)
def test_a_worker_that_ends_costs_nothing_but_time(uneven, tmp_path, caplog, kernel, what, told):
    run = partial(fit, Perilous(tmp_path, what), uneven, rounds=3)
    found = run(setting=Setting(engine=partial(Processes, kernel=kernel, chunk=2), workers=2))
    same_bits(every_state(found), every_state(run(setting=Setting(engine=KERNELS[kernel]))))
    lines = [message for message in caplog.messages if "worker process" in message]
    assert len(lines) == 1
    assert lines[0].startswith(f"A worker process {told} at Perilous.step for client-")
    assert lines[0].endswith("; another one runs it again.")


def test_a_worker_that_is_killed_from_outside_is_replaced(uneven, caplog):
    algorithm, carriers = FedAvg(perceptron(uneven), LOCAL), []

    def engine(*given):
        carriers.append(Processes(*given))
        return carriers[0]

    def kill(moment):
        if moment.round == 2:
            victim, *_ = workers_alive()
            os.kill(victim.pid, signal.SIGKILL)

    found = fit(algorithm, uneven, rounds=4, setting=Setting(engine=engine, workers=2), callbacks=[kill])
    same_bits(every_state(found), every_state(fit(algorithm, uneven, rounds=4, setting=Setting(engine="loop"))))
    assert sum("was killed by SIGKILL" in message for message in caplog.messages) == 1
    assert not workers_alive()


def test_a_client_that_ends_every_worker_ends_the_run_and_is_named(uneven, tmp_path):
    message = r"3 worker processes in a row were lost at Perilous.step for client-2; .*SIGKILL.*use fewer workers"
    with pytest.raises(RuntimeError, match=message):
        fit(Perilous(tmp_path, times=9), uneven, rounds=2, setting=Setting(engine=Processes, workers=2))
    assert len(list(tmp_path.iterdir())) == 3
    assert not workers_alive()


def test_a_worker_that_hangs_is_replaced(uneven, tmp_path, caplog):
    run = partial(fit, Perilous(tmp_path, "hang"), uneven, rounds=2)
    began = time.monotonic()
    found = run(setting=Setting(engine=partial(Processes, timeout=1), workers=2))
    assert time.monotonic() - began < 30
    same_bits(every_state(found), every_state(run(setting=Setting(engine="loop"))))
    assert (
        sum("did not answer within 1 seconds and was ended at Perilous.step for client-2" in m for m in caplog.messages)
        == 1
    )


def test_an_error_of_a_type_that_cannot_be_sent_comes_as_text(uneven):
    algorithm, carrier = Failing(), Processes(Failing(), uneven)
    with pytest.raises(RuntimeError, match=r"(?s)failed in a worker process.*OddError: nobody else knows this type"):
        raise next(carrier.run(algorithm.odd, {}, [0], keys.key(0), training=True)).error
    carrier.close()


def test_an_operation_that_was_left_is_over(uneven):
    algorithm, carrier = Failing(), Processes(Failing(), uneven, Setting(workers=2))

    def run(value):
        return carrier.run(algorithm.slow, {"x": torch.tensor(value)}, [0, 1, 2, 3], keys.key(0), training=True)

    left = run(0.0)
    assert float(next(left).replies) == 1
    # The message of the next is put where workers may still be reading that of the first.
    assert [float(outcome.replies) for outcome in run(5.0)] == [6.0] * 4
    with pytest.raises(RuntimeError, match="Another operation was started"):
        list(left)
    carrier.close()
    carrier.close()
    assert not workers_alive()
    assert [float(outcome.replies) for outcome in run(7.0)] == [8.0] * 4  # and begins anew where it is needed
    carrier.close()


SCRIPT = """
import os, signal, sys, threading, time
import multiprocessing
from pathlib import Path
from dataclasses import dataclass
import torch
from archipel import Algorithm, Federation, Setting, fit
from archipel.engines import Processes

class Sleepy(Algorithm):
    def init_server(self, clients, key):
        return {}
    def round(self, server, clients, key):
        clients.apply(self.step, {}, key)
        return server, {}
    def step(self, client, message, data, key):
        time.sleep(60)
        return client, {}

def tell():
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.01)
    time.sleep(0.3)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test's own process may have been told to ignore it
threading.Thread(target=tell).start()
federation = Federation.from_arrays([(torch.zeros(4, 2), torch.arange(4) % 2)] * 4, test=0.0)
try:
    fit(Sleepy(), federation, rounds=2, setting=Setting(engine=Processes, workers=2))
except KeyboardInterrupt:
    print("interrupted", multiprocessing.active_children(), flush=True)
"""


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["Ctrl-C twice", "kill -9"])
def test_nothing_is_left_of_a_run_that_is_stopped(how):
    run = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(pid) for pid in run.stdout.readline().split()]
    assert len(pids) == 2
    memory = [os.readlink(f"/proc/{pids[0]}/fd/{fd}") for fd in os.listdir(f"/proc/{pids[0]}/fd")]
    assert any(re.match(r"/memfd:archipel \(deleted\)", name) for name in memory)
    assert not any("/dev/shm" in name for name in memory)
    if how == "kill -9":
        run.kill()
    else:
        # All processes of a terminal hear Ctrl-C. After the first the round goes on, in the parent and in workers.
        os.killpg(run.pid, signal.SIGINT)
        time.sleep(0.5)
        assert run.poll() is None
        assert not any(gone(pid) for pid in pids)
        os.killpg(run.pid, signal.SIGINT)
        assert run.communicate(timeout=20)[0].strip() == "interrupted []"
    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(gone(pid) for pid in pids)
    run.wait(timeout=10)
    run.stdout.close()


# Memory that is shared


def test_whatever_can_be_pickled_comes_out_of_shared_memory_as_it_went_in():
    memory, known = Memory(), object()
    base = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    shared = torch.ones(2, dtype=torch.bfloat16)
    value = {
        "transposed": base.T,
        "expanded": torch.tensor(3).expand(5),
        "empty": torch.zeros(0, 4),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]).conj(),
        "scalar": torch.tensor(1.5),
        "marked": PerExample(base),
        "packed": Compressed(
            {"sign": torch.tensor([1, -1], dtype=torch.int8)}, Dithering(levels=3), (2,), torch.float32
        ),
        "twice": [shared, shared],
        "parameter": nn.Parameter(torch.ones(2)),
        "known": known,
        "text": "é",
    }
    sent, end = memory.dump(value, {id(known): 0}, start=1)
    found, there = memory.load(sent, [known])
    assert end == there
    assert len(sent) < 4000
    assert list(found) == list(value)
    for name in ("transposed", "expanded", "empty", "bool", "complex", "scalar", "parameter"):
        assert found[name].dtype == value[name].dtype
        assert torch.equal(found[name], value[name]), name
    assert type(found["parameter"]) is nn.Parameter
    assert torch.equal(found["marked"].values, base)
    assert found["packed"].coding == Dithering(levels=3)
    assert torch.equal(found["packed"].parts["sign"], value["packed"].parts["sign"])
    assert found["twice"][0].data_ptr() == found["twice"][1].data_ptr()
    assert found["known"] is known
    assert found["text"] == "é"


def test_memory_grows_and_what_was_seen_stays_seen():
    memory = Memory()
    first, end = memory.dump(torch.arange(1000))
    seen, _ = memory.load(first)
    second, _ = memory.dump(torch.full((10**6,), 7), start=end)
    assert torch.equal(seen, torch.arange(1000))
    assert torch.equal(memory.load(second)[0], torch.full((10**6,), 7))
    assert torch.equal(memory.load(first)[0], torch.arange(1000))


def test_what_is_private_is_not_written_back():
    memory = Memory()
    sent, _ = memory.dump(torch.zeros(3))
    other = Memory.__new__(Memory)
    other._descriptor, other._mapped, other._size = os.dup(memory._descriptor), None, 0
    mine, _ = other.load(sent, private=True)
    mine += 1
    assert memory.load(sent)[0].tolist() == [0, 0, 0]
