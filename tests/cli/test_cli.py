"""The command, as people and programs use it."""

import json
import os
import signal
from functools import partial

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from archipel import load
from archipel.cli.main import app
from archipel.experiments import PRESETS, read_config
from archipel.fit import fit
from archipel.reports import demo

SMALL = [
    "rounds=3",
    "data.clients=3",
    "encoder.options.channels=[4, 8]",
    "algorithm.local.steps=2",
    "algorithm.routing.steps=2",
]


def call(*words: object, code: int = 0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def last_metrics(folder) -> dict[str, float]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "spm"
    call("run", "digits-fedspm", *SMALL, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def avg(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "avg"
    call("run", "digits-fedavg", *SMALL[:-1], "--out", folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(folder / "colour.png")
    Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(folder / "grey.jpg")
    Image.fromarray(rng.integers(0, 256, (16, 16, 4), dtype=np.uint8)).save(folder / "through.png")
    np.save(folder / "several.npy", rng.integers(0, 256, (2, 3, 16, 16), dtype=np.uint8))
    np.savez(folder / "more.npz", x=rng.integers(0, 256, (1, 3, 16, 16), dtype=np.uint8))
    (folder / "notes.txt").write_text("no query")
    return folder


def test_a_run_leaves_all_that_is_needed_to_make_it_again(spm) -> None:
    assert read_config(str(spm / "config.yaml")) == read_config("digits-fedspm", SMALL)
    environment = json.loads((spm / "environment.json").read_text())
    assert {"git", "python", "torch", "numpy", "archipel", "platform", "date"} <= set(environment)
    assert len((spm / "metrics.jsonl").read_text().splitlines()) == 3
    states = {path.name for path in (spm / "checkpoint").rglob("*.safetensors")}
    assert states == {"server.safetensors", "clients.safetensors"}
    figures = {path.name for path in (spm / "figures").iterdir()}
    assert figures == {f"{name}.{kind}" for name in ("accuracy", "federation", "routing") for kind in ("pdf", "png")}


def test_run_prints_metrics_and_clients(spm) -> None:
    shown = call("run", "digits-fedspm", *SMALL, "--out", spm).output
    for word in ("system accuracy", "routing accuracy", "client-2", "routed", f"archipel route {spm}"):
        assert word in shown
    assert f"{100 * last_metrics(spm)['average_accuracy']:.1f}%" in shown


def test_a_complete_run_is_shown_and_not_trained_again(spm, monkeypatch) -> None:
    monkeypatch.setattr("archipel.experiments.running.fit", None)
    before = (spm / "metrics.jsonl").read_bytes()
    assert "is complete" in call("run", "digits-fedspm", *SMALL, "--out", spm).stderr
    assert (spm / "metrics.jsonl").read_bytes() == before


def test_show_file_run(avg, tmp_path) -> None:
    shown = call("show", "digits-fedavg", *SMALL[:-1]).output
    assert yaml.safe_load(shown)["algorithm"]["local"]["nesterov"] is False, "every default is shown"
    file = tmp_path / "mine.yaml"
    file.write_text(shown)
    call("run", file, "--out", tmp_path / "run")
    assert last_metrics(tmp_path / "run") == last_metrics(avg)


def test_runs_go_to_a_folder_of_their_name_and_seed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("run", "digits-fedavg", *SMALL[1:3], "rounds=1", "algorithm.local.steps=1", "seed=7", "name=mine")
    assert (tmp_path / "runs" / "mine-seed7" / "config.yaml").exists()


@pytest.mark.parametrize("kind", ["spm", "avg"])
def test_evaluate_finds_what_training_recorded(kind, request) -> None:
    folder = request.getfixturevalue(kind)
    found = json.loads(call("evaluate", folder, "--json").stdout)
    assert found["metrics"] == found["recorded"] == last_metrics(folder)
    assert [row["client"] for row in found["clients"]] == ["client-0", "client-1", "client-2"]
    assert "that training recorded" in call("evaluate", folder).stderr


def test_evaluate_refuses_other_data(spm, tmp_path) -> None:
    other = tmp_path / "copy"
    other.mkdir()
    (other / "checkpoint").symlink_to(spm / "checkpoint")
    config = yaml.safe_load((spm / "config.yaml").read_text())
    config["data"]["seed"] = 99
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    assert "fingerprint" in call("evaluate", other, code=2).stderr


def test_route_as_json_lines(spm, images) -> None:
    lines = call("route", spm, images, "--json", "--top", 8).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    names = [record["input"].removeprefix(f"{images}/") for record in records]
    assert names == ["colour.png", "grey.jpg", "more.npz", "several.npy[0]", "several.npy[1]", "through.png"]
    for record in records:
        probabilities = [entry["probability"] for entry in record["clients"]]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert probabilities == sorted(probabilities, reverse=True)
        assert record["answered_by"] == record["clients"][0]["client"]
        assert record["prediction"] in list("0123456789")
        assert 0 < record["probability"] <= 1


def test_route_as_a_table_with_a_client_of_choice(spm, images) -> None:
    shown = call("route", spm, images / "colour.png", "--client", "client-1", "--top", 2).output
    assert "most likely clients" in shown
    row = next(line for line in shown.splitlines() if "colour.png" in line)
    assert row.split()[-1] == "client-1"
    record = json.loads(call("route", spm, images / "colour.png", "--client", "client-1", "--json").stdout)
    assert record["answered_by"] == "client-1"


def test_a_prior_over_clients_reweights_routes(spm, images) -> None:
    def probabilities(*options: object) -> dict[str, float]:
        told = call("route", spm, images / "colour.png", "--json", "--top", 3, *options).stdout
        return {entry["client"]: entry["probability"] for entry in json.loads(told)["clients"]}

    run = load(spm)
    sizes = dict(zip(run.facts.names, run.facts.sizes, strict=True))
    plain, uniform = probabilities(), probabilities("--prior", "uniform")
    # Bayes' rule: the posterior is the density times the prior, up to a constant.
    density = {name: p / sizes[name] for name, p in plain.items()}
    assert uniform == pytest.approx({name: d / sum(density.values()) for name, d in density.items()}, rel=1e-4)
    assert probabilities("--prior", "0,1,0")["client-1"] == pytest.approx(1)
    for wrong in ("many", "1,2", "0,0,0", "-1,1,1"):
        assert "prior" in call("route", spm, images / "colour.png", "--prior", wrong, code=2).stderr


def test_asking_a_client_of_a_method_without_router(avg, images) -> None:
    assert "--client NAME" in call("route", avg, images / "colour.png", code=2).stderr
    record = json.loads(call("route", avg, images / "colour.png", "--client", "client-0", "--json").stdout)
    assert record["answered_by"] == "client-0"
    assert "clients" not in record


def test_ctrl_c_and_the_same_command_again(spm, tmp_path, monkeypatch) -> None:
    def interrupt(moment) -> None:
        if moment.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "stopped"
    words = ("run", "digits-fedspm", *SMALL, "--out", folder)
    with monkeypatch.context() as patch:
        patch.setattr("archipel.experiments.running.fit", lambda *a, **k: fit(*a, **k | {"callbacks": [interrupt]}))
        stopped = call(*words, code=130)
    done = json.loads((folder / "checkpoint" / "checkpoint.json").read_text())["round"]
    assert done == 2
    assert "Stopped after round 2 of 3" in stopped.stderr
    assert "resumes it" in stopped.stderr
    call(*words)
    assert last_metrics(folder) == last_metrics(spm)
    losses = [[json.loads(line)["loss"] for line in (f / "metrics.jsonl").open()] for f in (folder, spm)]
    assert losses[0] == losses[1]


def test_divergence_is_told(tmp_path) -> None:
    settings = [*SMALL[:3], "rounds=2", "algorithm.local.lr=1e30"]
    told = call("run", "digits-fedavg", *settings, "--out", tmp_path, code=1).stderr
    assert "learning rate" in told
    assert "it has no checkpoint" in call("evaluate", tmp_path, code=2).stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "digits-fedsmp"], "Did you mean 'digits-fedspm'"),
        (["run", "digits-fedspm", "rouns=3"], "Did you mean 'rounds'"),
        (["run", "nowhere.yaml"], "There is no file nowhere.yaml"),
        (["show", "digits-fedspm", "algorithm.components=0"], "at least 1; given 0"),
        (["run", "digits-fedspm", "encoder.name=mlp", "encoder.options.hidden=[0]"], "a width of 1 or more"),
        (["run", "digits-fedavg", "encoder.options.channels=5"], "can't be built with the options"),
        (["run", "digits-fedavg", "data.clients=2000"], "client"),
        (["evaluate", "nowhere"], "no such folder"),
        (["route", "nowhere", "a.png"], "no such folder"),
        (["demo", "--source", "cifar"], "fashion-mnist or digits"),
    ],
)
def test_bad_input_is_told_in_one_message(words, hint, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = call(*words, code=2).stderr
    assert hint in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nowhere.png", "There is no file"),
        ("notes.txt", "of no type that can be read"),
        ("broken.png", "can't be read: it isn't an image"),
        ("broken.npy", "can't be read: it isn't one of NumPy's arrays."),
        ("table.npy", "doesn't fit the run"),
        ("nothing", "holds no queries"),
    ],
)
def test_queries_that_cant_be_used(name, hint, spm, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "broken.png").write_bytes(b"hello")
    (tmp_path / "broken.npy").write_bytes(b"hello")
    np.save(tmp_path / "table.npy", np.zeros(5))
    (tmp_path / "nothing").mkdir()
    told = call("route", spm, tmp_path / name, code=2).stderr
    assert hint in told
    assert name in told


def test_another_run_in_the_folder(spm) -> None:
    told = call("run", "digits-fedspm", *SMALL, "seed=5", "--out", spm, code=2).stderr
    assert "seed: 0 there, 5 now" in told
    assert "--fresh" in told


def test_list_names_everything() -> None:
    shown = call("list").output
    for name in (*PRESETS, "fedavg", "fedspm", "fashion-mnist", "digits", "arrays", "lenet", "resnet20"):
        assert name in shown


def test_the_demo_trains_shows_and_is_found_complete(tmp_path, monkeypatch) -> None:
    small = partial(read_config_small, demo.read_config)
    monkeypatch.setattr(demo, "read_config", small)
    words = ("demo", "--source", "digits", "--rounds", 2, "--out", tmp_path)
    shown = call(*words).output
    assert "This will take about" in shown
    place = tmp_path / "demo-digits"
    table = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in table] == ["FedAvg", "FedSPM", "oracle"]
    assert {path.stem for path in (place / "figures").iterdir()} == {"accuracy", "federation", "routing"}
    for name in ("fedavg", "fedspm", "oracle"):
        found = json.loads(call("evaluate", place / name, "--json").stdout)
        assert found["metrics"] == last_metrics(place / name)
    assert len(call("route", place / "fedspm", place / "queries", "--json").stdout.splitlines()) == 3
    monkeypatch.setattr("archipel.experiments.running.fit", None)
    again = call(*words).output
    assert "is complete" in again
    assert [line for line in again.splitlines() if line.startswith("│")] == [
        line for line in shown.splitlines() if line.startswith("│")
    ]


def read_config_small(read, what, settings):
    kept = SMALL[1:] if what == "digits-fedspm" else SMALL[1:-1]
    return read(what, [*settings, *kept])


def test_help_and_the_version_are_at_hand():
    from importlib import metadata

    assert call("--version").stdout.strip() == metadata.version("archipel")
    assert call().stdout.count("Usage:") == 1
    assert call("-h").stdout == call("--help").stdout
    assert "Usage: " in call("data", "check", "-h").stdout


def test_several_data_sets_are_checked_at_once(tmp_path):
    told = call("data", "check", "digits", "iris", "--data-dir", tmp_path).stdout
    assert "digits" in told
    assert "iris" in told
    assert "wine" not in told


def test_a_folder_for_data_that_need_none_is_refused(tmp_path):
    told = call("run", "digits-fedavg", f"data.data_dir={tmp_path}", code=2).stderr
    assert "reads no files" in told


def test_an_unfinished_run_says_how_far_it_is_and_where_it_is_resumed(tmp_path, caplog):
    from archipel.experiments import read_config
    from archipel.experiments.running import train

    settings = ["data.clients=3", "rounds=3"]
    train(read_config("digits-fedavg", settings), tmp_path / "run", until=2)
    assert "2 of 3 rounds are done" in call("evaluate", tmp_path / "run").stderr
    caplog.set_level("INFO", logger="archipel")
    call("run", "digits-fedavg", *settings, "--out", tmp_path / "run")
    assert "resumed after round 2 of 3" in caplog.messages
    assert "rounds are done" not in call("evaluate", tmp_path / "run").stderr
