"""What goes wrong at clients: exceptions, odd replies, writes into inputs, absurd values, lost workers."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from archipel import SGD, Algorithm, DivergenceError, FedAvg, Federation, Setting, fit, regression
from archipel.core import keys
from archipel.core.trees import PerClient, flatten, tree_map
from archipel.engines.outcome import magnitudes
from archipel.engines.pool.processes import Processes
from archipel.states.checkpoint import Checkpoint

NAMES = ["Lyon", "Nice", "Oslo", "Rome"]
PARENT = os.getpid()
SETTINGS = {
    "loop": Setting(engine="loop"),
    "threads": Setting(engine="threads", workers=2),
    "batched": Setting(engine="batched"),
    "auto": Setting(),
    "processes": Setting(engine="processes", workers=2),
    "wire": Setting(engine="wire"),
}
ENGINES = list(SETTINGS)


@pytest.fixture
def cities():
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(n, 3, generator=generator), torch.arange(n) % 2) for n in (9, 12, 25, 17)]
    return Federation.from_arrays(parts, test=0.0, names=NAMES)


@dataclass(frozen=True)
class Odd(Algorithm):
    """Averages a vector; from round ``since`` on one client replies as ``what`` says. Clients count their rounds."""

    what: str = ""
    since: int = 0
    client: int = 2
    until: int = 10**9

    def init_server(self, clients, key):
        return {"mean": torch.zeros(3)}

    def init_client(self, message, data, key):
        return {"index": message["index"], "count": torch.tensor(0.0)}

    def round(self, server, clients, key):
        message = {"mean": server["mean"], "round": torch.tensor(clients.round)}
        mean = clients.mean(self.step, message, key)
        return {"mean": mean["value"]}, {}

    def step(self, client, message, data, key):
        after = client | {"count": client["count"] + 1}
        reply = {"value": 0.5 * message["mean"] + 1.0}
        if not self.what or int(client["index"]) != self.client:
            return after, reply
        if not self.since <= int(message["round"]) < self.until:
            return after, reply
        if self.what == "raise":
            raise LookupError("no such ward")
        value = {
            "scalar": torch.tensor(1.0),
            "one": torch.ones(1),
            "bool": torch.ones(3, dtype=torch.bool),
            "int": torch.ones(3, dtype=torch.int64),
            "double": torch.ones(3, dtype=torch.float64),
            "absurd": torch.full((3,), 1e30),
            "nested": {"a": torch.ones(3)},
            "array": np.ones(3),
            "list": [torch.ones(3)],
            "sparse": torch.ones(3).to_sparse(),
        }.get(self.what)
        return after, {"other": torch.ones(3)} if self.what == "renamed" else {"value": value}


# Exceptions and replies of another form


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_names_the_step_the_client_and_the_round(cities, tmp_path, engine):
    with pytest.raises((LookupError, RuntimeError), match="no such ward") as caught:
        fit(Odd("raise", since=3), cities, rounds=6, setting=SETTINGS[engine], folder=tmp_path, checkpoint_every=2)
    notes = " ".join(caught.value.__notes__)
    assert "Odd.step failed at Oslo in round 4." in notes
    assert "is of round 2; the same call resumes it" in notes
    assert Checkpoint.load(tmp_path).round == 2
    # Whoever mends the client goes on from there, with the result of a run that was never stopped.
    mended = Odd("raise", since=3, client=9)
    assert flatten(fit(mended, cities, rounds=6).server)["mean"].tolist() == pytest.approx([1.96875] * 3)


def test_a_run_without_client_states_is_saved_before_it_stops(cities, tmp_path):
    @dataclass(frozen=True)
    class Stateless(Odd):
        def init_client(self, message, data, key):
            return {}

        def round(self, server, clients, key):
            index = PerClient(torch.arange(4))
            return {"mean": clients.mean(self.step, {"mean": server["mean"], "i": index}, key)}, {}

        def step(self, client, message, data, key):
            if int(message["i"]) == 2 and float(message["mean"][0]) > 1.7:
                raise LookupError("no such ward")
            return client, 0.5 * message["mean"] + 1.0

    with pytest.raises(LookupError) as caught:
        fit(Stateless(), cities, rounds=6, setting=Setting(engine="loop"), folder=tmp_path)
    assert "is of round 3; the same call resumes it" in " ".join(caught.value.__notes__)
    assert Checkpoint.load(tmp_path).round == 3
    assert Checkpoint.load(tmp_path).server["mean"].tolist() == [1.75] * 3  # 1, 1.5, 1.75


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_fails_can_be_left_out(cities, engine):
    run = fit(Odd("raise", since=1, until=3), cities, rounds=4, setting=SETTINGS[engine], on_error="drop")
    assert [list(record.get("dropped", {})) for record in run.history] == [[], ["Oslo"], ["Oslo"], []]
    assert "no such ward" in run.history[1]["dropped"]["Oslo"]
    assert [float(state["count"]) for state in run.clients] == [4, 4, 2, 4]


ODD = {
    "scalar": r"float32 of shape \(\) at value",
    "one": r"float32 of shape \(1,\) at value",
    "bool": r"bool of shape \(3,\) at value",
    "int": r"int64 of shape \(3,\) at value",
    "double": r"float64 of shape \(3,\) at value",
    "nested": "a tree with the entries a at value",
    "renamed": "a tree with the entries other",
}


@pytest.mark.parametrize("engine", ["loop", "auto", "processes", "wire"])
@pytest.mark.parametrize("what", ODD)
def test_a_reply_unlike_the_first_is_refused_by_name(cities, what, engine):
    with pytest.raises(TypeError, match=ODD[what] + ".*but that of client 0, the first, is") as caught:
        fit(Odd(what), cities, rounds=2, setting=SETTINGS[engine])
    assert "Odd.step failed at Oslo in round 1." in caught.value.__notes__


NO_TREES = {
    "array": "a NumPy array|an? ndarray",
    "list": "a list",
    "sparse": "a sparse tensor",
    "nothing": "None|a NoneType",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", NO_TREES)
def test_a_reply_that_is_no_tree_of_tensors_is_refused_by_name(cities, what, engine):
    with pytest.raises(TypeError, match=rf"Odd\.step replied with ({NO_TREES[what]}); a reply is a dense") as caught:
        fit(Odd(what), cities, rounds=2, setting=SETTINGS[engine])
    assert "Odd.step failed at Oslo in round 1." in caught.value.__notes__


@dataclass(frozen=True)
class Alike(Algorithm):
    """Every client returns the same odd result, which could be batched."""

    what: str

    def init_server(self, clients, key):
        return {"mean": torch.zeros(3)}

    def init_client(self, message, data, key):
        return {"a": torch.zeros(2)}

    def round(self, server, clients, key):
        return {"mean": clients.mean(self.step, {"mean": server["mean"]}, key)}, {}

    def step(self, client, message, data, key):
        one = message["mean"] + 1
        return {
            "reply list": (client, [one]),
            "reply tuple": (client, {"a": (one, one)}),
            "reply number": (client, {"a": 1.0}),
            "reply array": (client, np.ones(3)),
            "state list": ({"a": [client["a"]]}, one),
            "state array": (np.ones(2), one),
            "state None": (None, one),
            "state sparse": ({"a": torch.ones(2).to_sparse()}, one),
            "no pair": one,
            "no state": ({}, one),
            "other shape": ({"a": torch.zeros(3)}, one),
            "other type": ({"a": torch.zeros(2, dtype=torch.float64)}, one),
        }[self.what]


ALIKE = {
    "reply list": r"Alike\.step replied with a list; a reply is",
    "reply tuple": r"Alike\.step replied with a tuple; a reply is",
    "reply number": r"Alike\.step replied with a float; a reply is|replied with the number 1.0",
    "reply array": rf"Alike\.step replied with ({NO_TREES['array']}); a reply is",
    "state list": r"Alike\.step returned a state with a list; a state is",
    "state array": rf"Alike\.step returned a state with ({NO_TREES['array']}); a state is",
    "state None": rf"Alike\.step returned a state with ({NO_TREES['nothing']}); a state is",
    "state sparse": r"Alike\.step returned a state with a sparse tensor; a state is",
    "no pair": r"Alike\.step returned a .*ensor; a step returns a pair",
    "no state": "changed the shape of a client's state, at a",
    "other shape": "changed the shape of a client's state, at a",
    "other type": "changed the shape of a client's state, at a",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ALIKE)
def test_a_result_that_is_no_pair_of_trees_is_refused_by_name_also_in_batches(cities, what, engine):
    with pytest.raises((TypeError, ValueError), match=ALIKE[what]):
        fit(Alike(what), cities, rounds=1, setting=SETTINGS[engine])


def test_an_odd_reply_that_is_left_out_leaves_the_clients_state_alone(cities):
    run = fit(Odd("one", since=1, until=2), cities, rounds=3, setting=Setting(engine="loop"), on_error="drop")
    assert [float(state["count"]) for state in run.clients] == [3, 3, 2, 3]
    assert list(run.history[1]["dropped"]) == ["Oslo"]


def test_on_error_has_two_values(cities):
    with pytest.raises(ValueError, match="on_error must be 'stop' or 'drop'; given 'ignore'"):
        fit(Odd(), cities, rounds=1, on_error="ignore")


@dataclass(frozen=True)
class Typed(Algorithm):
    dtype: torch.dtype
    operation: str

    def init_server(self, clients, key):
        return {"value": torch.zeros(3)}

    def round(self, server, clients, key):
        return {"value": getattr(clients, self.operation)(self.step, {}, key)}, {}

    def step(self, client, message, data, key):
        return client, torch.ones(3, dtype=self.dtype)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    ("dtype", "operation", "refused"),
    [
        (torch.int64, "mean", "int64 values; a mean over clients needs floating-point numbers"),
        (torch.bool, "mean", "bool values; a mean"),
        (torch.bool, "sum", "bool values; a sum over clients needs"),
        (torch.int64, "sum", None),
        (torch.float16, "mean", None),
    ],
)
def test_a_mean_needs_floating_point_numbers(cities, dtype, operation, refused, engine):
    def run():
        return fit(Typed(dtype, operation), cities, rounds=1, setting=SETTINGS[engine])

    if refused:
        with pytest.raises(TypeError, match=f"Typed.step replies with {refused}"):
            run()
    else:
        total = 9 + 12 + 25 + 17
        assert run().server["value"].tolist() == [total if operation == "sum" else 1] * 3


# Writes into what a step was given


@dataclass(frozen=True)
class Writing(Algorithm):
    into: str

    def init_server(self, clients, key):
        return {"shared": torch.zeros(3), "own": torch.zeros(4, 3)}

    def round(self, server, clients, key):
        message = {"shared": server["shared"], "own": PerClient(server["own"])}
        return {"shared": clients.mean(self.step, message, key), "own": server["own"]}, {}

    def step(self, client, message, data, key):
        if self.into == "data":
            data.train["x"].add_(1.0)
        else:
            message[self.into].add_(1.0)
        return client, message["shared"] + 0.0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("into", ["shared", "own", "data"])
def test_writes_into_a_message_or_data_are_refused_in_all_engines(cities, into, engine):
    before = [client.train["x"].clone() for client in cities.clients]
    said = "data" if into == "data" else f"message {into}"
    with pytest.raises(RuntimeError, match=f"Writing.step wrote into its {said}. A step must not change"):
        fit(Writing(into), cities, rounds=1, setting=SETTINGS[engine], on_error="drop")
    if engine == "wire":  # elsewhere the harm is done, and said
        assert all(torch.equal(a, c.train["x"]) for a, c in zip(before, cities.clients, strict=True))


# Absurd values


def test_the_largest_reply_is_named_and_checkpoints_stay_as_they_are(cities, tmp_path):
    @dataclass(frozen=True)
    class Poisoned(Odd):
        def round(self, server, clients, key):
            new, info = super().round(server, clients, key)
            return {"mean": new["mean"].square() if float(new["mean"].max()) > 1e6 else new["mean"]}, info

    # 1e30 comes from Oslo in round 6; its square is infinite.
    with pytest.raises(DivergenceError, match=r"After round 6: .* is 1e\+30, of Oslo in round 6.*unchanged") as caught:
        fit(Poisoned("absurd", since=5), cities, rounds=9, folder=tmp_path, checkpoint_every=2)
    assert str(tmp_path / "diverged") in str(caught.value)
    assert Checkpoint.load(tmp_path).round == 4
    assert Checkpoint.load(tmp_path / "diverged").round == 5
    # Without the client that poisons it the run goes on from the last checkpoint.
    good = fit(Odd(), cities, rounds=9)
    assert good.server["mean"].tolist() == pytest.approx([2 - 2.0**-8] * 3)


def test_a_poison_of_an_earlier_round_is_traced(cities, tmp_path):
    @dataclass(frozen=True)
    class Delayed(Odd):
        def step(self, client, message, data, key):
            after, reply = super().step(client, message, data, key)
            return after, {"value": reply["value"] * message["mean"].abs().max().clamp(min=1.0)}

    # Round 2's mean is about 4e29, round 3's replies are its square, which float32 does not hold.
    with pytest.raises(DivergenceError, match=r"After round 3: .*Left out: Lyon.* 1e\+30, of Oslo in round 2"):
        fit(Delayed("absurd", since=1, until=2), cities, rounds=5, folder=tmp_path, checkpoint_every=1)
    assert Checkpoint.load(tmp_path).round == 2
    assert Checkpoint.load(tmp_path / "diverged").round == 2
    # The latest checkpoint has the poison; the one before it does not.
    assert Checkpoint.load(tmp_path).server["mean"].max() > 1e29
    Path(tmp_path / "checkpoint" / "server.safetensors").unlink()
    assert Checkpoint.load(tmp_path).server["mean"].tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_seen_in_every_type(dtype, bad):
    rows = torch.ones(3, 4, dtype=dtype)
    rows[1, 2] = bad
    for tree in (rows, {"a": torch.full((3,), 9.0), "b": rows}, {"i": torch.arange(3), "b": rows}):
        assert magnitudes(tree, 3).isfinite().tolist() == [True, False, True]
        for i, sound in enumerate([True, False, True]):
            assert magnitudes(tree_map(lambda t, i=i: t[i : i + 1], tree), 1).isfinite().tolist() == [sound]


def test_large_values_whose_sum_overflows_are_finite():
    assert magnitudes({"a": torch.full((2, 5), 3e38)}, 2).isfinite().all()
    assert magnitudes({"a": torch.full((1, 5), 3e38), "b": torch.full((1, 2), -3e38)}, 1).isfinite().all()
    assert magnitudes({"a": torch.zeros(2, 0), "b": {}}, 2).tolist() == [0, 0]
    assert magnitudes({"a": torch.zeros(1, 0), "b": torch.tensor([[1.0, -3.0]])}, 1).tolist() == [3]


# Lost workers


@dataclass(frozen=True)
class Fragile(Algorithm):
    """The worker of client 0 waits until the other worker can do no more, and is killed, once."""

    folder: Path

    def init_server(self, clients, key):
        return {"sum": torch.zeros(1)}

    def init_client(self, message, data, key):
        return {"index": message["index"]}

    def round(self, server, clients, key):
        return {"sum": clients.sum(self.step, {}, key)}, {}

    def step(self, client, message, data, key):
        if os.getpid() != PARENT and int(client["index"]) == 0 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGKILL)
        return client, keys.uniform(key)[None]


def test_one_of_two_workers_is_killed_while_the_other_waits_for_its_turn(tmp_path):
    many = Federation.from_arrays([(torch.zeros(2, 1), torch.tensor([0, 1])) for _ in range(12)], test=0.0)
    lost = fit(Fragile(tmp_path), many, rounds=1, setting=Setting(engine=Processes, workers=2))
    assert (tmp_path / "killed").exists()
    assert torch.equal(lost.server["sum"], fit(Fragile(tmp_path), many, rounds=1).server["sum"])


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_whole_numbers_among_a_modules_buffers_are_averaged(engine):
    """BatchNorm counts minibatches in int64, and the mean of counts 3 and 5 is 4."""
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays([(x[:9], x[:9, 0]), (x[9:], x[9:, 0])], test=0.0)
    encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    method = FedAvg(regression(encoder, federation), SGD(epochs=1, batch=3), weights="uniform")
    run = fit(method, federation, rounds=1, setting=Setting(engine=engine))
    assert run.server["model"]["buffers"]["1"]["num_batches_tracked"].tolist() == 4
