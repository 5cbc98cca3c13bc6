"""Who carries steps out: all engines alike, failures contained, traffic counted to the byte."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

from archipel import (
    SGD,
    Algorithm,
    DivergenceError,
    FedAvg,
    Federation,
    FedSPM,
    Network,
    NoReplyError,
    PerClient,
    PerExample,
    Run,
    Sample,
    classification,
    fit,
)
from archipel.core import keys
from archipel.core.trees import flatten
from archipel.engines import Batched, Handle, Ledger, Processes, Wire
from archipel.engines.auto import choose
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic, quadratic_federation
from archipel.models import LeNet

ENGINES = {
    "loop": Setting(engine="loop"),
    "batched": Setting(engine="batched"),
    "threads": Setting(engine="threads", workers=3),
    "processes": Setting(engine=Processes, workers=2),
    "wire": Setting(engine="wire"),
}


@dataclass(frozen=True)
class Ledgers(Algorithm):
    """Uses all that a carrier offers: both kinds of state, rows for each client, draws, and every operation."""

    def init_server(self, clients, key):
        return {"table": torch.ones(clients.population, 2), "total": torch.zeros(3), "mean": torch.zeros(())}

    def init_client(self, message, data, key):
        marks = keys.uniform(key, data.train.length) * data.train.mask
        return {"index": message["index"], "visits": torch.tensor(0), "marks": PerExample(marks), "empty": {}}

    def round(self, server, clients, key):
        found = clients.collect(self.look, {"mine": PerClient({"row": server["table"]}), "one": torch.ones(())}, key)
        table = server["table"].index_copy(0, found.ids, found.value["row"])
        total = clients.sum(self.weigh, {"table": table}, keys.fold(key, "weigh"))
        mean = clients.mean(self.visits, {}, key, "uniform")
        clients.apply(self.mark, {"mean": mean}, keys.fold(key, "mark"))
        return {"table": table, "total": total, "mean": mean}, {}

    def look(self, client, message, data, key):
        x = torch.where(data.train.mask[:, None], data.train["x"], 0.0)
        row = 0.5 * message["mine"]["row"] + x.sum(0)[:2] / data.train.count + keys.normal(key, 2)
        return client | {"visits": client["visits"] + 1}, {"row": row * message["one"]}

    def weigh(self, client, message, data, key):
        own = message["table"].index_select(0, client["index"][None])[0]
        return client, torch.cat([own, client["marks"].values.sum()[None]])

    def visits(self, client, message, data, key):
        return client, client["visits"].float()

    def mark(self, client, message, data, key):
        marks = client["marks"].values + message["mean"] * data.train.mask
        return client | {"marks": PerExample(marks)}, {}


@dataclass(frozen=True)
class Spoilt(Algorithm):
    """Clients count their rounds; from round ``since`` on, those listed spoil their reply or their state."""

    reply: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    since: int = 0
    value: float = float("nan")

    def init_server(self, clients, key):
        return {"mean": torch.tensor(0.0)}

    def init_client(self, message, data, key):
        return {"index": message["index"], "count": torch.tensor(0.0)}

    def round(self, server, clients, key):
        on = torch.tensor(clients.round >= self.since)
        return {"mean": clients.mean(self.count, {"on": on}, key, "uniform")}, {}

    def count(self, client, message, data, key):
        def spoil(ids, good):
            listed = torch.isin(client["index"], torch.tensor(ids, dtype=torch.int64)) if ids else torch.tensor(False)
            return torch.where(listed & message["on"], self.value, good)

        count = client["count"] + 1
        reply = 10.0 * client["index"] + count
        return client | {"count": spoil(self.state, count)}, spoil(self.reply, reply)


@dataclass(frozen=True)
class Nosy(Algorithm):
    """Reports what a step is shown: rows of train, validation and test."""

    def init_server(self, clients, key):
        return {}

    def round(self, server, clients, key):
        return server, {}

    def peek(self, client, message, data, key):
        parts = (data.train, data.validation, data.test)
        return client, torch.stack([torch.tensor(-1) if part is None else part.count for part in parts])

    def fail(self, client, message, data, key):
        raise LookupError("nothing to be found here")


def same_bits(one, other):
    one, other = flatten(one), flatten(other)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def close(one, other, tolerance=1e-5):
    one, other = flatten(one), flatten(other)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance)


def every_state(run):
    return {"server": run.server, "clients": {str(i): state for i, state in enumerate(run.clients)}}


def perceptron(federation, *more):
    return classification(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), *more), federation)


@pytest.fixture
def door(uneven):
    """Makes a handle on all clients over a carrier, which is closed afterwards."""
    carriers = []

    def make(algorithm, setting=ENGINES["loop"], federation=uneven, **settings):
        carriers.append(choose(algorithm, federation, setting)[0])
        everyone = torch.arange(len(federation))
        return Handle(carriers[-1], everyone, federation.sizes, 0, 1, Ledger(), **settings)

    yield make
    for carrier in carriers:
        carrier.close()


# Engines alike


def test_all_engines_do_the_same_with_everything_a_carrier_offers(uneven):
    runs = {
        name: fit(Ledgers(), uneven, rounds=4, cohort=Sample(count=3), setting=setting)
        for name, setting in ENGINES.items()
    }
    for name in ("threads", "processes", "wire"):
        same_bits(every_state(runs[name]), every_state(runs["loop"]))
    close(every_state(runs["batched"]), every_state(runs["loop"]))
    visits = [int(client["visits"]) for client in runs["loop"].clients]
    assert sum(visits) == 4 * 3
    traffic = [[(r["uplink"], r["downlink"], r["cohort"]) for r in run.history] for run in runs.values()]
    assert traffic[1:] == traffic[:-1]


@pytest.mark.parametrize(
    "local",
    [
        SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True, clip=0.3),
        SGD(lr=0.1, steps=5, batch=16, weight_decay=0.1, schedule="cosine"),
    ],
)
def test_fedavg_on_uneven_clients_is_the_same_in_all_engines(uneven, local):
    algorithm = FedAvg(perceptron(uneven), local)
    looped, threads, processes, batched = (
        fit(algorithm, uneven, rounds=3, setting=ENGINES[name]) for name in ("loop", "threads", "processes", "batched")
    )
    same_bits(every_state(threads), every_state(looped))
    same_bits(every_state(processes), every_state(looped))
    close(every_state(batched), every_state(looped))
    assert threads.history[-1]["metrics"] == looped.history[-1]["metrics"]


def test_batches_of_any_size_are_the_loop(uneven):
    algorithm = FedAvg(perceptron(uneven), SGD(lr=0.1, epochs=1, batch=4))
    looped = fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))
    for chunk in (1, 3):
        engine = partial(Batched, chunk=chunk)
        close(
            every_state(fit(algorithm, uneven, rounds=2, setting=Setting(engine=engine))),
            every_state(looped),
        )


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Itemising(nn.Module):
    def forward(self, x):
        return x * x.abs().mean().item()


@pytest.mark.parametrize("module", [Branching, Itemising])
def test_a_model_that_cannot_be_batched_takes_the_loop_and_says_so_once(uneven, module, caplog):
    algorithm = FedAvg(perceptron(uneven, module()), SGD(lr=0.1, epochs=1, batch=4, momentum=0.5, keep_momentum=True))
    batched, looped = (
        fit(algorithm, uneven, rounds=3, setting=Setting(engine=engine)) for engine in ("batched", "loop")
    )
    same_bits(every_state(batched), every_state(looped))
    lines = [r.getMessage() for r in caplog.records if "can't be batched" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("FedAvg.train can't be batched over clients, so clients run one by one: ")


class Padded(Nosy):
    """Forgets the mask, so that padding changes its answer."""

    def peek(self, client, message, data, key):
        return client, data.train["x"].mean()

    def spread(self, client, message, data, key):
        # NaN for every client that is padded, and for nobody alone
        return client, torch.log(data.train.count - data.train.length + 1.0).mul(0.0)


@pytest.mark.parametrize("step", ["peek", "spread"])
def test_a_step_that_differs_when_batched_takes_the_loop(door, step, caplog, uneven):
    algorithm = Padded()
    batched, looped = door(algorithm, ENGINES["batched"]), door(algorithm)
    # The first cohort is the largest client, which isn't padded: the smallest betrays the step all the same.
    for ids in ([2], [0, 1, 2, 3]):
        found, expected = (
            handle.only(torch.tensor(ids)).collect(getattr(algorithm, step), {}, keys.key(0))
            for handle in (batched, looped)
        )
        assert torch.equal(found.value, expected.value)
        assert found.ids.tolist() == ids
    assert any("differs from the looped one" in r.getMessage() for r in caplog.records)


def test_dropout_gives_the_same_bits_for_any_number_of_workers(uneven, caplog):
    # Momentum that is kept tells whether the first client, which is tried before dropout is noticed, trained twice.
    local = SGD(lr=0.1, epochs=1, batch=4, momentum=0.9, keep_momentum=True)
    algorithm = FedAvg(perceptron(uneven, nn.Dropout(0.5)), local)
    runs = [
        fit(algorithm, uneven, rounds=2, seed=3, setting=Setting(engine="loop", workers=workers))
        for workers in (1, 2, 4)
    ]
    runs.append(fit(algorithm, uneven, rounds=2, seed=3, setting=Setting(engine="batched")))
    for run in runs[1:]:
        same_bits(every_state(run), every_state(runs[0]))
    assert "FedAvg.train draws by torch's own generator: one worker instead of 2." in caplog.messages
    other = fit(algorithm, uneven, rounds=2, seed=4, setting=Setting(engine="loop"))
    assert not torch.equal(flatten(other.server)["model/head/bias"], flatten(runs[0].server)["model/head/bias"])


# Failures


@pytest.mark.parametrize(
    ("engine", "value"),
    [
        ("loop", torch.nan),
        ("loop", -torch.inf),
        ("threads", torch.nan),
        ("batched", torch.nan),
        ("processes", torch.nan),
        ("wire", torch.inf),
    ],
)
def test_a_client_that_spoils_its_reply_or_state_is_dropped_named_and_keeps_its_state(uneven, engine, value, caplog):
    algorithm = Spoilt(reply=(0,), state=(2,), since=1, value=value)
    run = fit(algorithm, uneven, rounds=3, setting=ENGINES[engine])
    # Clients 1 and 3 have counted to three; 0 and 2 only in the one good round.
    assert [float(client["count"]) for client in run.clients] == [1, 3, 1, 3]
    assert float(run.server["mean"]) == (10 * 1 + 3 + 10 * 3 + 3) / 2
    assert "dropped" not in run.history[0]
    for record in run.history[1:]:
        assert record["dropped"] == dict.fromkeys(("client-0", "client-2"), "NaN or infinite values")
    assert any(
        line.startswith("round 2: left out: client-0 (NaN") and "client-2 (NaN" in line for line in caplog.messages
    )


def test_the_round_goes_on_without_those_who_do_not_answer(uneven):
    run = fit(
        Spoilt(),
        uneven,
        rounds=4,
        setting=Setting(engine="loop"),
        answers=lambda round, client: (round + client) % 2 == 0,
    )
    assert [float(client["count"]) for client in run.clients] == [2, 2, 2, 2]
    assert float(run.server["mean"]) == (10 * 1 + 2 + 10 * 3 + 2) / 2  # of round 3: clients 1 and 3 alone
    assert run.history[3]["dropped"] == dict.fromkeys(("client-0", "client-2"), "no answer")


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_with_no_learning_rate_and_half_the_replies_lost_the_model_is_the_same_to_the_bit(uneven, engine):
    algorithm = FedAvg(perceptron(uneven), SGD(lr=0.0, epochs=1, batch=4))
    start = algorithm.init_server(None, keys.fold(keys.key(0), "server"))
    run = fit(
        algorithm,
        uneven,
        rounds=3,
        setting=Setting(engine=engine),
        answers=lambda round, client: (round + client) % 2 == 0,
    )
    same_bits(run.server, start)


def test_a_mean_divides_by_the_examples_that_arrived():
    # One exact Newton step (A = 1, lr = 1) takes client k to a_k; of weights 1, 2, 5 the middle one is lost.
    federation = quadratic_federation(torch.ones(3, 1, 1), torch.tensor([[1.0], [10.0], [4.0]]), sizes=[1, 2, 5])
    newton = FedAvg(Quadratic(), SGD(lr=1.0, steps=1, batch=None))
    run = fit(newton, federation, rounds=1, answers=lambda round, client: client != 1)
    assert float(run.server["model"]["theta"]) == pytest.approx((1 * 1 + 5 * 4) / 6, rel=1e-15)
    run = fit(replace(newton, weights="uniform"), federation, rounds=1, answers=lambda round, client: client != 1)
    assert float(run.server["model"]["theta"]) == pytest.approx((1 + 4) / 2, rel=1e-15)


def test_a_round_without_any_answer_leaves_the_server_as_it_was(uneven, caplog):
    straight = fit(Spoilt(), uneven, rounds=1, setting=Setting(engine="loop"))
    run = fit(Spoilt(), uneven, rounds=2, setting=Setting(engine="loop"), answers=lambda round, client: round == 0)
    same_bits(run.server, straight.server)
    assert len(run.history) == 2
    assert len(run.history[1]["dropped"]) == 4
    assert any("The server keeps its state" in message for message in caplog.messages)


def test_nan_everywhere_ends_the_run_with_advice_and_the_last_good_state(uneven, tmp_path):
    algorithm = Spoilt(reply=(0, 1, 2, 3), since=2)
    with pytest.raises(
        DivergenceError,
        match=r"in round 3: 4 asked; NaN.*state before this round is in .*diverged.*lower learning rate",
    ):
        fit(algorithm, uneven, rounds=5, setting=Setting(engine="loop"), folder=tmp_path)
    kept = Run.read(tmp_path / "diverged", algorithm)
    assert len(kept.history) == 2
    same_bits(kept.server, fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop")).server)


def test_a_server_that_leaves_the_finite_numbers_ends_the_run(uneven):
    class Exploding(Spoilt):
        def round(self, server, clients, key):
            return {"mean": server["mean"] + float("inf")}, {}

    with pytest.raises(DivergenceError, match="After round 1: the server's state holds NaN or infinities"):
        fit(Exploding(), uneven, rounds=2, setting=Setting(engine="loop"))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_who_is_not_sampled_is_not_touched(uneven, engine):
    run = fit(Spoilt(), uneven, rounds=3, cohort=Sample(count=1), setting=Setting(engine=engine))
    cohorts = [Sample(count=1).draw(uneven.sizes, keys.fold(keys.key(0), "cohort", round)).item() for round in range(3)]
    assert [float(client["count"]) for client in run.clients] == [cohorts.count(i) for i in range(4)]


@pytest.mark.parametrize("engine", ["loop", "threads", "batched", "processes"])
def test_an_error_in_a_step_goes_up_as_it_is(door, engine):
    algorithm = Nosy()
    with pytest.raises(LookupError, match="nothing to be found"):
        door(algorithm, ENGINES[engine]).apply(algorithm.fail, {}, keys.key(0))


# What a step sees


@pytest.mark.parametrize("kind", ["loop", "batched", "processes", "wire"])
def test_training_sees_no_held_out_data_and_evaluation_does(door, kind):
    x = torch.arange(40.0).reshape(20, 2)
    federation = Federation.from_arrays([(x, x[:, 0]), (x[:10], x[:10, 0])], test=0.2, validation=0.3)
    algorithm = Nosy()
    handle = door(algorithm, ENGINES[kind], federation)
    sizes = [[len(c.train["y"]), len(c.validation["y"]), len(c.test["y"])] for c in federation.clients]
    assert handle.evaluate(algorithm.peek, {}, keys.key(0)).value.tolist() == sizes
    assert handle.collect(algorithm.peek, {}, keys.key(0)).value.tolist() == [[n, -1, -1] for n, _, _ in sizes]


def test_the_wire_refuses_what_cant_be_sent(uneven):
    augment = SGD(steps=1, augment=lambda x, key: x)
    with pytest.raises(ValueError, match=r"this FedAvg can't be pickled: .*lambda.* or take engine='loop'"):
        Wire(FedAvg(classification(nn.Linear(3, 4), uneven), augment), uneven)


def test_the_wire_reports_an_error_of_the_other_side(door):
    algorithm = Nosy()
    handle = door(algorithm, ENGINES["wire"])
    with pytest.raises(RuntimeError, match=r"failed in the client's process(.|\n)*LookupError: nothing to be found"):
        handle.apply(algorithm.fail, {}, keys.key(0))


def test_a_message_holds_tensors_alone(door):
    algorithm = Nosy()
    with pytest.raises(TypeError, match=r"tree of tensors; it holds 0\.5\. Send torch\.tensor\(0\.5\)"):
        door(algorithm).apply(algorithm.peek, {"lr": 0.5}, keys.key(0))


def test_a_state_that_changes_its_keys_is_refused_when_batched(uneven):
    class Shifting(Spoilt):
        def count(self, client, message, data, key):
            return client | {"late": torch.tensor(1.0)}, torch.tensor(0.0)

    with pytest.raises(ValueError, match="give every entry a first value in init_client"):
        fit(Shifting(), uneven, rounds=2, setting=Setting(engine="batched"))


# The door


def test_replies_name_who_answered_in_order_with_examples_as_weights(door, uneven):
    algorithm = Spoilt()
    handle = door(algorithm, answers=lambda round, client: client != 2)
    handle.carrier.states.load([{"index": torch.tensor(i), "count": torch.tensor(0.0)} for i in range(4)])
    replies = handle.only(torch.tensor([3, 2, 0])).collect(algorithm.count, {"on": torch.tensor(False)}, keys.key(0))
    assert replies.ids.tolist() == [0, 3]
    assert replies.weights.tolist() == uneven.sizes[[0, 3]].tolist()
    assert replies.value.tolist() == [1, 31]
    assert handle.everyone.ids.tolist() == [0, 1, 2, 3]
    assert handle.population == 4
    with pytest.raises(NoReplyError, match="1 asked; no answer"):
        handle.only(torch.tensor([2])).collect(algorithm.count, {"on": torch.tensor(False)}, keys.key(0))
    with pytest.raises(ValueError, match="weights must be 'examples' or 'uniform'; given 'size'"):
        handle.mean(algorithm.count, {"on": torch.tensor(False)}, keys.key(0), "size")


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_fedavgs_traffic_is_its_model_both_ways(uneven, engine):
    parameters = (3 * 6 + 6) + (6 * 3 + 3)
    algorithm = FedAvg(perceptron(uneven), SGD(lr=0.1, steps=2, batch=4))
    run = fit(algorithm, uneven, rounds=2, cohort=Sample(count=3), setting=Setting(engine=engine), evaluate_every=1)
    for record in run.history:
        assert record["cohort"] == 3
        assert record["uplink"] == 3 * (4 * parameters + 4)  # and the loss, a float32
        assert record["downlink"] == 3 * (4 * parameters + 8)  # and the learning rate, a float64


def test_what_a_client_holds_already_is_not_sent_again_in_the_round(door):
    algorithm = Nosy()
    handle = door(algorithm)
    ledger, model, more = handle.ledger, torch.zeros(100), torch.zeros(3, dtype=torch.float64)

    def cost(clients, message):
        before = ledger.downlink
        clients.apply(algorithm.peek, message, keys.key(0))
        return ledger.downlink - before

    two = handle.only(torch.tensor([0, 1]))
    assert cost(two, {"model": model}) == 2 * 400
    assert cost(two, {"model": model, "more": more}) == 2 * 24
    assert cost(handle, {"deep": {"model": model}, "more": more}) == 2 * (400 + 24)  # to clients 2 and 3
    assert cost(handle, {"model": model, "again": model}) == 0
    # Another tensor, or the same with other values, is news even if the numbers are equal.
    assert cost(handle, {"model": model.clone()}) == 4 * 400
    model.add_(0)
    assert cost(handle, {"model": model}) == 4 * 400
    # A table's rows are each client's own and counted whenever they are sent.
    table = PerClient({"a": torch.zeros(4, 5), "b": torch.zeros(4, dtype=torch.int64)})
    assert [cost(two, {"t": table}) for _ in range(2)] == [2 * (20 + 8)] * 2
    # The next round has a new ledger: nothing is held.
    ledger = Ledger()
    assert cost(replace(handle, ledger=ledger), {"model": model}) == 4 * 400


def test_fedspm_sends_its_parameters_once_for_both_steps_of_a_round(uneven):
    block = SGD(lr=0.1, steps=2, batch=4)
    spm = FedSPM(
        classification(nn.Linear(3, 4), uneven),
        Network(nn.Linear(3, 4), uneven.inputs),
        components=2,
        local=block,
        routing=block,
    )
    m, C = 4, 2
    theta = nu = 3 * 4 + 4
    tilts = m * C * (1 + 4)
    for record in fit(spm, uneven, rounds=2).history:
        # down: the parameters, τ, and two rates in float64; up: C totals, the parameters, and two losses
        assert record["downlink"] == m * (4 * (theta + nu + tilts + m * C) + 2 * 8)
        assert record["uplink"] == m * 4 * (C + theta + nu + tilts + 2)


def test_a_lost_client_was_sent_its_message_and_evaluation_is_no_traffic(door):
    algorithm = Nosy()
    handle = door(algorithm, answers=lambda round, client: client == 0)
    handle.apply(algorithm.peek, torch.zeros(10), keys.key(0))
    assert (handle.ledger.downlink, handle.ledger.uplink) == (4 * 40, 3 * 8)
    handle.evaluate(algorithm.peek, torch.zeros(10), keys.key(0))
    assert (handle.ledger.downlink, handle.ledger.uplink) == (4 * 40, 3 * 8)


# Which engine


def test_the_engine_is_chosen_by_the_model(uneven):
    def chosen(encoder, federation=uneven, engine="auto", workers=2):
        algorithm = FedAvg(classification(encoder, federation), SGD(steps=1))
        carrier, why = choose(algorithm, federation, Setting(engine=engine, workers=workers))
        carrier.close()
        return carrier.describe()["engine"], carrier.describe().get("workers"), why

    assert chosen(nn.Linear(3, 2)) == ("auto", None, "each step by the size of its operations")
    assert chosen(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))[:2] == ("loop", 1)
    images = torch.randint(0, 256, (8, 16, 16), dtype=torch.uint8)
    pictures = Federation.from_arrays([(images, torch.arange(8) % 2)] * 2)
    assert chosen(LeNet(pictures.inputs.shape, 4), pictures)[:2] == ("loop", 2)
    tables = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (300, *[4] * 20)]
    assert chosen(nn.Linear(3, 2), Federation.from_arrays(tables))[2] == "sizes too uneven to pad: clients one by one"
    assert chosen(nn.Linear(3, 2), engine="loop", workers=None) == ("loop", 1, "chosen by the user")
    with pytest.raises(ValueError, match=r"engine must be one of 'auto', 'loop'.*given 'gpu'"):
        Setting(engine="gpu")


@pytest.mark.parametrize(("width", "engine"), [(8, "batched"), (1600, "loop")])
def test_a_step_of_large_operations_is_looped_and_one_of_small_ones_batched(uneven, width, engine, caplog):
    # 1600 × 1600 weights on batches of 4: 2 · 4 · 1600² = 20 Mflop a product, above the bound of 16; 8 × 8: 512 flop.
    module = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width))
    algorithm = FedAvg(classification(module, uneven), SGD(steps=2, batch=4))
    carriers = []
    with caplog.at_level("INFO", "archipel"):
        fit(
            algorithm,
            uneven,
            rounds=2,
            setting=Setting(engine=lambda a, f, *_: carriers.append(choose(a, f)[0]) or carriers[0]),
        )
    assert carriers[0].describe()["steps"]["FedAvg.train"]["engine"] == engine
    told = [record.message for record in caplog.records if record.message.startswith("FedAvg.train: ")]
    assert len(told) == 1  # said once, not every round
    assert ("in batches" in told[0]) == (engine == "batched")
