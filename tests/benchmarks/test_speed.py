"""The benchmark of speed: who is compared does the same work, and tables say what was timed."""

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from archipel.algorithms.fedavg import FedAvg
from archipel.core import keys
from archipel.core.trees import leaves
from archipel.engines.setting import Setting
from archipel.fit import fit
from speed import drawing as speed_drawing
from speed import floors as speed_floors
from speed import measure as speed
from speed import plan as speed_plan
from speed import report as speed_report
from speed import works_of_archipel as speed_archipel
from speed.__main__ import main as speed_command
from speed.peers import networks, shards
from speed.work import Work, prepare

SMALL = Work(clients=3, cohort=3, examples=6, batch=6, epochs=3, shape=(1, 4, 4), lr=0.1)
MODELS = {
    "linear": SMALL,
    "momentum": replace(SMALL, momentum=0.9),
    "mlp": replace(SMALL, network="mlp", hidden=5, momentum=0.9),
    "cnn": replace(SMALL, network="cnn", shape=(1, 8, 8), momentum=0.9),
}
# Sums over six examples in another order, in float32, over nine steps: a few units in the last place of weights
# below 1, 6e-8 each.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Examples, few of them."""
    place = tmp_path_factory.mktemp("speed")
    for shape, stored in [((1, 4, 4), "floats"), ((1, 8, 8), "floats"), ((1, 28, 28), "bytes"), ((3, 28, 28), "bytes")]:
        prepare(replace(SMALL, shape=shape, stored=stored), place, rows=60)
    return place


def trained(work, engine="loop", rounds=2):
    """A run of Archipel."""
    federation = speed_archipel.federation(work)
    return fit(speed_archipel.algorithm(work, federation), federation, rounds=rounds, setting=Setting(engine=engine))


def bare(floor, work, rounds=2, **options):
    """The floor and its model after some rounds with everybody."""
    made = speed_floors.FLOORS[floor](work, **options)
    theta = [p.detach().clone() for p in networks.started(work.plain).parameters()]
    for _ in range(rounds):
        theta = made.round(theta, list(range(work.clients)))
    return made, theta


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), **CLOSE)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_bare_loop_and_archipel_learn_the_same_model(folder, model, engine):
    work = prepare(MODELS[model], folder)
    _, theta = bare("loop", work)
    start = [p.detach() for p in networks.started(work.plain).parameters()]
    assert max(float((a - b).abs().max()) for a, b in zip(theta, start, strict=True)) > 0.01
    assert_same(leaves(trained(work, engine).server["model"]), theta)


@pytest.mark.parametrize(
    ("floor", "model", "options"),
    [
        ("vmap", "momentum", {"chunk": 2}),
        ("vmap", "mlp", {"chunk": 3}),
        ("vmap", "cnn", {"chunk": 2}),
        ("loop", "cnn", {"pooling_first": True}),
        ("by-hand", "linear", {"chunk": 2}),
        ("by-hand", "momentum", {"chunk": 10}),
    ],
)
def test_floors_learn_the_same_model_as_the_bare_loop(folder, floor, model, options):
    work = prepare(MODELS[model], folder)
    assert_same(bare(floor, work, **options)[1], bare("loop", work)[1])


def test_two_processes_learn_the_same_model_as_one_and_end(folder):
    work = prepare(MODELS["momentum"], folder)
    made, theta = bare("processes", work)
    try:
        assert_same(theta, bare("loop", work)[1])
    finally:
        made.close()
    assert not any(worker.is_alive() for worker in made.workers)


@pytest.mark.parametrize("method", ["ditto", "pfedme"])
def test_personal_floors_learn_the_same_models(folder, method):
    work = prepare(replace(SMALL, method=method, momentum=0.9 if method == "ditto" else 0.0), folder)
    made, theta = bare("loop", work)
    run = trained(work)
    server = run.server["inner"] if method == "ditto" else run.server
    assert_same(leaves(server["model"]), theta)
    for client, state in enumerate(run.clients):
        assert_same(leaves(state["personal"]), made.personal[client])


def test_bytes_are_the_same_examples_as_floats(folder):
    floats = prepare(replace(SMALL, shape=(1, 8, 8)), folder)
    stored = prepare(replace(floats, stored="bytes"), folder, rows=60)
    one, other = (speed_archipel.federation(work) for work in (floats, stored))
    for a, b in zip(one.clients, other.clients, strict=True):
        seen, expected = other.inputs.normalise(b.train["x"]), one.inputs.normalise(a.train["x"])
        np.testing.assert_allclose(seen, expected, atol=1e-5)  # float32 sums over all pixels


def test_minibatches_are_passes_over_all_examples(folder):
    work = prepare(replace(SMALL, batch=4), folder)  # 4 and 2 of 6
    batches = speed_floors.BareLoop(work)._batches(6, work.local_steps)
    assert [len(batch) for batch in batches] == [4, 2] * 3
    assert sorted(torch.cat(batches[2:4]).tolist()) == list(range(6))
    vmap = speed_floors.BareVmap(work)
    seen = []
    vmap.gradients = lambda params, x, y: seen.append(x) or [torch.zeros_like(p) for p in params]
    vmap.round([p.detach() for p in vmap.model.parameters()], [1])
    own = vmap.x[6:12]
    one_pass = torch.cat(seen[:2], dim=1)[0].flatten(1)
    assert sorted(one_pass.sum(1).tolist()) == pytest.approx(sorted(own.flatten(1).sum(1).tolist()))


def test_clients_beyond_the_rows_share_them(folder):
    work = prepare(replace(SMALL, clients=12), folder)
    x, _ = shards.read(work.plain)
    assert len(x) == 60
    assert [place.start for place in shards.places(work.plain, 60)] == [*range(0, 60, 6), 0, 6]


def shrunk(contender, folder):
    work = contender.work
    size = 40 if work.steps else 6
    work = replace(work, clients=4, cohort=2 if work.cohort < work.clients else 4, examples=size, batch=3)
    work = replace(work, steps=2 if work.steps else 0, hidden=min(work.hidden, 5))
    return prepare(work, folder, rows=240)


class Enough(Exception):  # noqa: N818
    """Ends a run."""


def test_everything_that_is_planned_runs(tmp_path):
    planned = {}
    for workload in speed_plan.workloads().values():
        for contender in workload.contenders:
            if contender.kind not in speed.PEERS and contender.kind != "processes":
                small = shrunk(contender, tmp_path)
                engine = contender.options.get("engine", "auto")
                planned[contender.kind, engine, small] = (contender, small)
    assert len(planned) > 15
    for (kind, engine, _), (contender, small) in planned.items():
        moved = []

        def each(distance, moved=moved):
            moved.append(distance())
            if len(moved) == 2:
                raise Enough

        options = {"engine": engine} if kind == "archipel" else contender.options
        run = speed_archipel.run if kind == "archipel" else partial(speed_floors.run, kind)
        with pytest.raises(Enough):
            run(small, each, **options)
        assert all(distance > 0 for distance in moved), contender.name


def test_archipel_starts_where_all_others_do(folder):
    work = prepare(MODELS["mlp"], folder)
    algorithm = speed_archipel.algorithm(work, speed_archipel.federation(work))
    assert isinstance(algorithm, FedAvg)
    assert_same(leaves(algorithm.task.init(keys.key(5))), list(networks.started(work.plain).parameters()))


def test_contenders_are_processes_that_work_in_turns(folder):
    """One of Archipel, a floor, and one that fails; another simulator that isn't here is left out."""
    work = prepare(SMALL, folder)
    contenders = [
        speed.Contender("Archipel", "archipel", work, {"engine": "loop"}),
        speed.Contender("floor", "by-hand", work),
        speed.Contender("broken", "by-hand", work, {"chunks": 3}),
        speed.Contender("Flower", "flwr", work),
    ]
    plan = speed.Plan({"W2": speed.Workload("small", contenders, often=2)}, turns=1, seconds=0.01)
    kept = []
    results, stopped = speed.measure(plan, {}, keep=lambda results: kept.append(json.dumps(results)))
    found = results["W2"]
    assert not stopped
    assert json.loads(kept[-1]) == json.loads(json.dumps(results))
    assert set(found) == {"Archipel", "floor", "broken"}
    assert "chunks" in found["broken"]["failed"]
    for name in ("Archipel", "floor"):
        assert len(found[name]["turns"]) == 2
        assert all(second > 0 for turn in found[name]["turns"] for second in turn)
        assert found[name]["megabytes"] > 50  # torch alone
        assert 0 < found[name]["first"] < 300
    # a full batch of the same examples from the same weights
    assert found["Archipel"]["moved"] == pytest.approx(found["floor"]["moved"], rel=1e-4)
    text = speed_report.report(results, plan, {}, "make speed", "noise")
    assert "| broken | failed: " in text
    assert "Flower (pip install flwr[simulation] torch)" in text


def timed(kind, *turns, **more):
    return {
        "kind": kind,
        "turns": [list(turn) for turn in turns],
        "first": 2.0,
        "moved": 0.5,
        "megabytes": 100.0,
    } | more


MADE_UP = {
    "W1": {
        speed_plan.ARCHIPEL: timed("archipel", [2.0], [4.0]),
        speed_plan.PAIR: timed("processes", [2.0], [2.0]),
        "pfl-research": timed("pfl", [8.0], [8.0]),
        "fluke": timed("fluke", [4.0], [4.0], failed="out of memory"),
        "Flower": timed("flwr", [4.0], [5.0]),
    },
    "W2": {
        speed_plan.ARCHIPEL: timed("archipel", [0.010, 0.020, 0.012], [0.012]),
        "pfl-research": timed("pfl", [0.048], [0.060]),
    },
    "W3": {
        speed_plan.INCREMENTAL: timed("archipel", [3.0]),
        speed_plan.EXACT: timed("archipel", [6.0]),
        speed_plan.PLAIN: timed("archipel", [1.0]),
        speed_plan.ROUTER: timed("archipel", [1.5]),
    },
    "overhead": {
        "Archipel, loop": timed("archipel", [0.150], [0.180]),
        speed_plan.LOOP: timed("loop", [0.090], [0.060]),
    },
    "population": {"1,000": timed("archipel", [0.020]), "100,000": timed("archipel", [0.025])},
    "growth": {speed_plan.ARCHIPEL: timed("archipel", early=500.0, late=510.0)},
}


def test_targets_say_what_was_measured():
    rows = {reach.what: reach for reach in speed_report.reaches(MADE_UP)}
    # turn by turn 2/4 and 4/5; fluke failed, and doesn't count
    fastest = rows["W1: Archipel ÷ the fastest other simulator (Flower)"]
    assert (fastest.value, fastest.least, fastest.greatest) == pytest.approx((0.65, 0.5, 0.8))
    pair = rows["W1: Archipel ÷ bare loop, 2 processes"]
    assert pair.row[2:] == ["1.50 (1.00–2.00)", "no"]
    assert rows["W1: Archipel ÷ bare loop, 2 processes, pooling before ReLU"].row[2:] == ["not measured", ""]
    assert rows["W2: Archipel ÷ pfl-research"].value == pytest.approx((0.012 / 0.048 + 0.012 / 0.060) / 2)
    assert rows["W2: Archipel ÷ FedJAX"].row[2:] == ["not measured", ""]
    mixture = rows["W3: FedSPM with the incremental E-step ÷ FedAvg of encoder and router"]
    assert mixture.value == pytest.approx(3.0 / 2.5)
    # 60 and 120 ms over 100 clients × 3 steps
    assert rows["the engine's cost a client-step in the loop"].row[2:] == ["0.30 (0.20–0.40) ms", "no"]
    assert rows["a round of 100 from 100,000 clients ÷ from 1,000"].row[3] == "no"
    assert rows["memory at round 200 ÷ at round 20"].value == pytest.approx(1.02)


def test_tables_show_times_shares_failures_and_who_is_missing():
    plan = speed_plan.fast()
    text = speed_report.report(MADE_UP, plan, {"pfl": sys.executable}, 'make speed ARGS="--fast"', "noise", True)
    assert text.startswith("**Stopped by Ctrl-C")
    assert "| Flower | 4,500.0 (4,000.0–5,000.0) | 0.65 (0.50–0.80) | 2.0 | 100 | 0.5 |" in text
    assert "| fluke | failed: out of memory |" in text
    assert "| FedAvg of the encoder and of the router | 2,500.0 | 1.20 (1.20–1.20) |" in text
    missing = text.partition("Not installed")[2].partition("\n")[0]
    assert all(peer.title in missing for name, peer in speed.PEERS.items() if name != "pfl")
    assert "pfl-research" not in missing
    assert "growth:" not in text  # memory alone, which is among the targets


def test_the_figure_has_a_bar_for_each_and_a_curve_for_what_scales():
    curves = {f"Archipel: {k}": timed("archipel", [k / 1000]) for k in (10, 100)}
    figure = speed_drawing.draw(MADE_UP | {"cohort": curves}, speed_plan.full())
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == ["W1", "W2", "W3", "population", "cohort"]
    widths = [bar.get_width() for bar in panels["W1"].patches]
    assert widths == pytest.approx([8000, 4500, 3000, 2000])  # the fastest on top, fluke left out
    (line,) = panels["cohort"].lines
    assert line.get_xydata().tolist() == [[10, 10], [100, 100]]


def test_interpreters_of_peers_are_found(tmp_path):
    (tmp_path / "fluke" / "bin").mkdir(parents=True)
    (tmp_path / "fluke" / "bin" / "python").symlink_to(sys.executable)
    assert speed.interpreters(tmp_path)["fluke"] == str(tmp_path / "fluke" / "bin" / "python")
    assert speed.interpreters(None, {"pfl": sys.executable})["pfl"] == sys.executable
    with pytest.raises(ValueError, match="no peer 'flower'; there are pfl, fedjax, flwr, fluke, blazefl"):
        speed.interpreters(None, {"flower": sys.executable})
    with pytest.raises(ValueError, match="doesn't exist"):
        speed.interpreters(None, {"pfl": str(tmp_path / "nothing")})
    with pytest.raises(ValueError, match="no workload 'W9'; there are W1"):
        speed_plan.full(["W9"])


def test_the_command_refuses_wrong_words_with_a_sentence(capsys, tmp_path):
    for words, sentence in (
        (["--only", "W9"], "There is no workload 'W9'; there are W1, W2"),
        (["--peer-python", "pfl"], "--peer-python takes NAME=PATH"),
        (["--peer-python", "nobody=/bin/sh"], "There is no peer 'nobody'; there are pfl"),
    ):
        with pytest.raises(SystemExit) as ended:
            speed_command([*words, "--out", str(tmp_path)])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
