"""What every algorithm must do, whichever it is; ``table.py`` says how a new one gets all this by one row."""

from functools import partial

import pytest
import torch
from table import ROWS

from archipel import Federation, Predicts, Routes, Sample, fit
from archipel.algorithm import Algorithm
from archipel.core import keys
from archipel.core.trees import PerClient, decoded_rows, deliver, flatten, leaves, unflatten
from archipel.engines import Batched, Handle, Ledger, Loop, Processes, Wire
from archipel.engines.carrier import client_data
from archipel.engines.outcome import step_name
from archipel.engines.setting import Setting
from archipel.states.checkpoint import Checkpoint

ROUNDS = 3
ORDER = [2, 0, 3, 1]


@pytest.fixture(params=ROWS)
def row(request):
    return ROWS[request.param]


@pytest.fixture(scope="module")
def looped(uneven):
    """Each algorithm's run in the loop, made once."""
    made = {}

    def run(row):
        if id(row) not in made:
            made[id(row)] = fit(
                row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Loop)
            )
        return made[id(row)]

    return run


def states(run):
    return flatten({"server": run.server, "clients": {str(i): state for i, state in enumerate(run.clients)}})


def same_bits(one, other):
    one, other = states(one), states(other)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def test_it_is_an_algorithm_with_a_personal_model_unless_it_fits_a_distribution(row, uneven):
    algorithm = row.make(uneven)
    assert isinstance(algorithm, Algorithm)
    assert isinstance(algorithm, Predicts) == row.predicts
    with pytest.raises(AttributeError, match="cannot assign to field"):
        algorithm.task = None


def test_batches_agree_with_the_loop(row, uneven, looped, caplog):
    run = fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Batched))
    one, other = states(looped(row)), states(run)
    assert one.keys() == other.keys()
    for name in one:
        # the library's promise: float32, sums in another order, a few steps
        torch.testing.assert_close(other[name], one[name], rtol=1e-5, atol=1e-5)
    assert not [m for m in caplog.messages if "can't be batched" in m]
    traffic = [[(r["uplink"], r["downlink"]) for r in run.history] for run in (run, looped(row))]
    assert traffic[0] == traffic[1]


def test_bytes_on_a_wire_agree_with_the_loop_to_the_bit(row, uneven, looped):
    run = fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Wire))
    same_bits(run, looped(row))
    assert run.metrics == looped(row).metrics
    assert [r["uplink"] for r in run.history] == [r["uplink"] for r in looped(row).history]


@pytest.mark.parametrize(("kernel", "alone"), [("loop", Loop), ("batched", partial(Batched, chunk=2))])
def test_processes_agree_to_the_bit_with_what_each_runs(row, uneven, looped, kernel, alone):
    processes = partial(Processes, kernel=kernel, chunk=2 if kernel == "batched" else None)
    run = fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=processes, workers=2))
    one = (
        looped(row)
        if kernel == "loop"
        else fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=alone))
    )
    same_bits(run, one)
    assert run.metrics == one.metrics
    assert [r["uplink"] for r in run.history] == [r["uplink"] for r in one.history]


def test_threads_agree_with_the_loop_to_the_bit(row, uneven, looped):
    run = fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine="loop", workers=2))
    same_bits(run, looped(row))


class Meta(Setting):
    def to_device(self, tree):
        # How many local steps there are is read as a number before they are made, which a GPU can and meta can't.
        moved = super().to_device(tree)
        return moved | {"steps": tree["steps"]} if isinstance(tree, dict) and "steps" in tree else moved


class Elsewhere(Batched):
    """Runs every step once more on torch's meta device, which computes nothing and refuses operations with tensors of
    another device, as a GPU would.
    """

    def __init__(self, algorithm, federation, *_):
        super().__init__(algorithm, federation)
        self.there, self.steps = Batched(algorithm, federation, Meta(device="meta"), self.states), set()

    def one(self, step, message, ids, key, training):
        outcome = super().one(step, message, ids, key, training)
        sent = self.there.setting.to_device(message)
        states, replies = self.there.compute(step, sent, ids, key, training)
        found = leaves((states, decoded_rows(replies)))
        assert [leaf.device.type for leaf in found] == ["meta"] * len(found)
        assert [leaf.shape for leaf in found] == [leaf.shape for leaf in leaves((outcome[0], outcome[1].replies))]
        self.steps.add(step_name(step))
        return outcome


def test_steps_run_on_another_device_as_they_are(row, uneven):
    carriers = []
    algorithm = row.make(uneven)
    fit(
        algorithm,
        uneven,
        groups=row.groups,
        rounds=1,
        setting=Setting(engine=lambda *given: carriers.append(Elsewhere(*given)) or carriers[0]),
    )
    assert any(name.startswith(type(algorithm).__name__) for name in carriers[0].steps)


def test_the_seed_decides(row, uneven, looped):
    same_bits(
        fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Loop)), looped(row)
    )
    other = fit(row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Loop), seed=1)
    one, other = flatten(looped(row).server), flatten(other.server)
    for name in one:
        if one[name].is_floating_point() and one[name].dim():
            assert not torch.equal(one[name], other[name]), name


def test_evaluation_changes_nothing(row, uneven, looped):
    run = fit(
        row.make(uneven), uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Loop), evaluate_every=1
    )
    same_bits(run, looped(row))
    assert run.metrics == looped(row).metrics


@pytest.mark.parametrize("engine", [Loop, Batched])
def test_sites_count_what_the_evaluation_finds(row, uneven, looped, engine):
    found = looped(row).evaluate(uneven, Setting(engine=engine))
    if not row.predicts:
        assert found.sites is None
        return
    title = type(looped(row).algorithm).__name__
    accuracy = {site: one.metrics["accuracy"].value for site, one in found.sites.of(title).items()}
    assert accuracy == pytest.approx({one["client"]: one["accuracy"] for one in found.clients}, abs=1e-12)
    assert [one.n for one in found.sites.of(title).values()] == [len(client.test["y"]) for client in uneven.clients]


@pytest.mark.parametrize("engine", [Loop, Batched])
def test_who_is_not_sampled_keeps_its_state(row, uneven, engine):
    algorithm, cohort = row.make(uneven), Sample(count=2)
    before = fit(
        algorithm, uneven, groups=row.groups, rounds=ROUNDS, cohort=cohort, setting=Setting(engine=engine), until=1
    )
    after = fit(
        algorithm, uneven, groups=row.groups, rounds=ROUNDS, cohort=cohort, setting=Setting(engine=engine), until=2
    )
    asked = cohort.draw(uneven.sizes, keys.fold(keys.key(0), "cohort", 1)).tolist()
    assert after.history[1]["cohort"] == len(asked) == 2
    for i, (old, new) in enumerate(zip(before.clients, after.clients, strict=True)):
        # Adapted models follow the shared one; what clients train with does not.
        old, new = ({n: v for n, v in flatten(s).items() if not n.startswith("adapted/")} for s in (old, new))
        assert old.keys() == new.keys()
        unchanged = all(torch.equal(old[name], new[name]) for name in old)
        assert unchanged == (i not in asked or not old), i


def test_shapes_and_dtypes_are_those_of_the_first_round(row, uneven, looped):
    def kinds(run):
        return {name: (value.shape, value.dtype) for name, value in states(run).items()}

    algorithm = row.make(uneven)
    assert kinds(looped(row)) == kinds(
        fit(algorithm, uneven, groups=row.groups, rounds=ROUNDS, setting=Setting(engine=Loop), until=1)
    )
    # and of the initial state
    handle = Handle(Loop(algorithm, uneven), torch.arange(4), uneven.sizes, 0, 1, Ledger(), edges=row.edges)
    start = flatten(algorithm.init_server(handle, keys.key(0)))
    end = flatten(looped(row).server)
    assert {n: (v.shape, v.dtype) for n, v in start.items()} == {n: (v.shape, v.dtype) for n, v in end.items()}


def test_states_pass_through_a_checkpoint_to_the_bit(row, looped, tmp_path):
    run = looped(row)
    Checkpoint(ROUNDS, run.server, run.clients, {}).save(tmp_path)
    back = Checkpoint.load(tmp_path)
    for one, other in zip([run.server, *run.clients], [back.server, *back.clients], strict=True):
        one, other = flatten(one), flatten(other)
        assert list(one) == list(other)
        assert all(torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one)


def test_predictions_are_distributions(row, uneven, looped):
    run = looped(row)
    x = uneven.clients[0].test["x"]
    assert bool(run.metrics) == row.predicts
    for client in run.clients if row.predicts else ():
        torch.testing.assert_close(run.algorithm.predict(run.server, client, x).exp().sum(1), torch.ones(len(x)))
    if isinstance(run.algorithm, Routes):
        torch.testing.assert_close(run.algorithm.route(run.server, x).exp().sum(1), torch.ones(len(x)))


class Renumbered(Loop):
    """A loop in which client i draws what client ``ORDER[i]`` draws elsewhere: keys go with clients, not places."""

    def compute(self, step, message, client, key, training):
        data = client_data(self.federation, client, training=training)
        return step(self.states[client], deliver(message, client), data, keys.fold(key, ORDER[client]))


def drive(algorithm, carrier, federation, server, edges):
    """Rounds from a given server state, without the engine around them: the states after them, and at enrolment."""
    everyone, root = torch.arange(len(federation)), keys.key(0)
    with torch.no_grad():
        message = {"server": server, "index": PerClient(everyone)}
        list(carrier.run(algorithm.enrol, message, everyone.tolist(), root, training=True))
        enrolled = [carrier.states[i] for i in everyone.tolist()]
        for t in range(ROUNDS):
            handle = Handle(carrier, everyone, federation.sizes, t, ROUNDS, Ledger(), edges=edges)
            server, _ = algorithm.round(server, handle, keys.fold(root, t))
    return server, [carrier.states[i] for i in everyone.tolist()], enrolled


def test_clients_in_another_order_are_the_same_clients(row, uneven):
    algorithm = row.make(uneven)
    shuffled = Federation("shuffled", tuple(uneven.clients[i] for i in ORDER), uneven.inputs, uneven.classes)

    def reordered(server):
        named = flatten(server)
        i, j = (torch.tensor(ORDER)[index] for index in torch.triu_indices(4, 4, 1))
        table = torch.zeros(4, 4, dtype=torch.int64)
        table[tuple(torch.triu_indices(4, 4, 1))] = torch.arange(6)
        place, sign = table[torch.minimum(i, j), torch.maximum(i, j)], torch.where(i < j, 1.0, -1.0)
        pairs = {path: torch.einsum("p...,p->p...", named[path][place], sign) for path in row.per_pair}
        edges = {path: named[path].flip(0) for path in row.per_edge}
        return unflatten(named | {path: named[path][ORDER] for path in row.per_client} | pairs | edges)

    loop = Loop(algorithm, uneven)
    outside = Handle(loop, torch.arange(4), uneven.sizes, 0, ROUNDS, Ledger(), edges=row.edges)
    start = algorithm.init_server(outside, keys.key(1))
    server, clients, enrolled = drive(algorithm, loop, uneven, start, row.edges)
    other, others, _ = drive(algorithm, Renumbered(algorithm, shuffled), shuffled, reordered(start), row.edges)
    # Sums over clients are taken in another order: float32, a few steps.
    expected, found = flatten(reordered(server)), flatten(other)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    x = uneven.clients[0].train["x"]
    for i, original in enumerate(ORDER) if row.predicts else ():
        torch.testing.assert_close(
            algorithm.predict(other, others[i], x),
            algorithm.predict(server, clients[original], x),
            rtol=1e-4,
            atol=1e-4,
        )
    if isinstance(algorithm, Routes):
        torch.testing.assert_close(
            algorithm.route(other, x), algorithm.route(server, x)[:, ORDER], rtol=1e-4, atol=1e-4
        )
    before, after = ((flatten(s), *map(flatten, c)) for s, c in ((start, enrolled), (server, clients)))
    assert any(not torch.equal(old[name], new[name]) for old, new in zip(before, after, strict=True) for name in old)
