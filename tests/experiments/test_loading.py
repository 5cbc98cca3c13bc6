"""Runs read back from their folders."""

import json

import pytest
import torch

from archipel import SGD, FedAvg, Federation, classification, fit, load, refitted
from archipel.experiments import build, read_config, train

SMALL = [
    "rounds=3",
    "data.clients=3",
    "encoder.options.channels=[4, 8]",
    "algorithm.local.steps=2",
    "algorithm.routing.steps=2",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    config = read_config("digits-fedspm", SMALL)
    return config, folder, train(config, folder).run


def test_a_loaded_run_answers_as_the_one_that_fit_returned(trained) -> None:
    config, folder, run = trained
    x = build(config)[1].clients[1].test["x"]
    loaded = load(folder)
    assert torch.equal(loaded.route(x).probabilities, run.route(x).probabilities)
    for client in (None, "client-2"):
        ours, theirs = loaded.predict(x, client=client), run.predict(x, client=client)
        assert torch.equal(ours.values, theirs.values)
        assert ours.labels == theirs.labels
        assert ours.answered_by == theirs.answered_by
    assert loaded.metrics == run.metrics


def test_a_users_own_module_needs_the_algorithm(tmp_path) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    islands = Federation.from_arrays([(x[:20], (x[:20, 0] > 0).long()), (x[20:], (x[20:, 0] > 0).long())])
    algorithm = FedAvg(classification(torch.nn.Linear(3, 4), islands), SGD(lr=0.5, steps=2))
    run = fit(algorithm, islands, rounds=2, folder=tmp_path)
    with pytest.raises(FileNotFoundError, match="algorithm=…"):
        load(tmp_path)
    assert torch.equal(load(tmp_path, algorithm).predict(x).values, run.predict(x).values)
    other = FedAvg(classification(torch.nn.Linear(3, 5), islands), SGD(lr=0.5, steps=2))
    with pytest.raises(ValueError, match=r"weight has shape \(5, 3\), and in the checkpoint"):
        load(tmp_path, other)


def test_no_run(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_a_stopped_run_goes_on_to_the_same_end(trained, tmp_path) -> None:
    config, _, straight = trained
    stopped = train(config, tmp_path, until=1)
    assert (stopped.found, len(stopped.run.history)) == ("nothing", 1)
    resumed = train(config, tmp_path)
    assert (resumed.found, resumed.run.metrics) == ("part", straight.metrics)
    x = build(config)[1].clients[0].test["x"]
    assert torch.equal(resumed.run.predict(x).values, straight.predict(x).values)


def test_a_complete_run_is_not_trained_again(trained, monkeypatch) -> None:
    config, folder, run = trained
    monkeypatch.setattr("archipel.experiments.running.fit", None)
    again = train(config, folder)
    assert (again.found, again.run.metrics) == ("all", run.metrics)
    other_engine = read_config("digits-fedspm", [*SMALL, "workers=1", "evaluate_every=1", "name=other"])
    assert train(other_engine, folder).found == "all"


def test_another_run_in_the_folder(trained) -> None:
    _, folder, _ = trained
    with pytest.raises(ValueError, match=r"algorithm.local.lr: 0.01 there, 0.5 now") as caught:
        train(read_config("digits-fedspm", [*SMALL, "algorithm.local.lr=0.5"]), folder)
    assert "--fresh" in str(caught.value)


def test_fresh_removes_the_runs_files_and_no_others(tmp_path) -> None:
    settings = [*SMALL[:3], "algorithm.local.steps=1", "rounds=1"]
    (tmp_path / "notes.txt").write_text("mine")
    train(read_config("digits-fedavg", settings), tmp_path)
    outcome = train(read_config("digits-fedavg", [*settings, "seed=1"]), tmp_path, fresh=True)
    assert outcome.found == "nothing"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_may_end_with_a_refit(tmp_path) -> None:
    settings = ["rounds=2", "algorithm.local.steps=2", "algorithm.routing.steps=2"]
    plain = train(read_config("digits-fedspm", settings), tmp_path / "plain").run
    config = read_config("digits-fedspm", [*settings, "refit=end"])
    _, federation = build(config)
    better = train(config, tmp_path / "end").run
    expected = refitted(plain, federation)
    for name in ("gamma", "xi"):
        assert torch.equal(better.server["ratio"][name], expected.server["ratio"][name])
        assert not torch.equal(better.server["ratio"][name], plain.server["ratio"][name])
    assert better.metrics == expected.metrics
    # the folder holds the refitted run, and its metrics
    assert load(tmp_path / "end").metrics == expected.metrics
    last = json.loads((tmp_path / "end" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["metrics"] == expected.metrics
    assert last["refitted"]
    again = train(config, tmp_path / "end")
    assert again.found == "all"
    assert again.run.metrics == expected.metrics
    with pytest.raises(ValueError, match="refit: end fits the tilts of FedSPM"):
        read_config("digits-fedavg", ["refit=end"])
