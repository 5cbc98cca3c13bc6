"""The consensus benchmark: fair trials, choices on validation data alone, and a command that can be gone on with."""

import json

import pytest
import torch
from typer.testing import CliRunner

from archipel import Federation
from archipel.cli.main import app
from archipel.experiments.comparing.cells import for_choosing, trained
from archipel.experiments.reading import validate
from archipel.papers.consensus import tuning as bench
from archipel.papers.consensus.entrants import ENTRANTS, STEPS, entrants
from archipel.papers.consensus.report import report, table
from archipel.papers.consensus.tuning import FAST, FULL, ISLANDS, Plan, Result, best, configured

TINY = Plan(rates=1, penalties=2, seeds=2, rounds=2)


@pytest.mark.parametrize("plan", [FULL, FAST])
def test_every_method_is_tried_equally_often(plan):
    for entrant in ENTRANTS.values():
        trials = entrant.trials(plan.rates, plan.penalties)
        assert len(trials) == len(set(trials)) == plan.rates * plan.penalties


def test_all_trials_are_settings_that_a_run_takes():
    for islands in ISLANDS.values():
        for name, entrant in ENTRANTS.items():
            for rate, penalty in entrant.trials(FULL.rates, FULL.penalties):
                section = configured(islands, name, rate, penalty, 0, {}).algorithm.model_dump()
                if name == "l2sgd":
                    # its pull may not jump over the mean, and its local steps are of the others' length
                    eta, K, p = section["local"]["lr"], islands.clients, section["p"]
                    assert eta * penalty / (K * p) <= 1
                    assert eta / (K * (1 - p)) == pytest.approx(rate)
                elif name == "fpfc":
                    assert section["xi"] < section["penalty"]
                elif name != "pooled":
                    steps = section.get("local", section.get("personal"))["steps"]
                    assert steps == STEPS


def test_choosing_sees_validation_examples_in_the_place_of_tests():
    x = torch.arange(40.0).reshape(20, 2)
    federation = Federation.from_arrays([(x, torch.arange(20) % 2)] * 2, test=0.3, validation=0.2)
    seen = for_choosing(federation)
    for before, after in zip(federation.clients, seen.clients, strict=True):
        assert torch.equal(after.test["x"], before.validation["x"])
        assert torch.equal(after.train["x"], before.train["x"])
        assert after.validation is None
        shared = set(after.test["x"][:, 0].tolist()) & set(before.test["x"][:, 0].tolist())
        assert not shared
    assert seen.inputs == federation.inputs


def test_the_best_is_chosen_and_who_always_diverges_is_not():
    assert best({(0.1, 1.0): 0.4, (0.3, 1.0): 0.6, (0.3, 2.0): 0.5}) == (0.3, 1.0)
    assert best({(0.1, None): None, (0.3, None): None}) is None


def results(folder):
    found = {}
    for path in folder.glob("**/result.json"):
        found[path.parent.relative_to(folder).as_posix()] = json.loads(path.read_text())["result"]
    return found


@pytest.fixture(scope="module")
def made(data_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("consensus")
    found = bench.consensus(out, ["heart-disease"], ["local", "ditto"], TINY, data_dir=data_dir, workers=1)
    return out, found["heart-disease"]


def test_methods_are_chosen_on_validation_and_run_on_test_data(made, data_dir):
    out, found = made
    tuning = results(out / "tuning")
    assert len(tuning) == 2 * 2
    for method in ("local", "ditto"):
        tried = {place: result["accuracy"] for place, result in tuning.items() if f"/{method}/" in place}
        rate, penalty = found.choices[method]
        place = f"heart-disease/{method}/{bench.label((rate, penalty))}"
        assert tried[place] == max(tried.values())
        config = configured(bench.sized(ISLANDS["heart-disease"], TINY), method, rate, penalty, 1, {})
        settings = config.model_dump(mode="json")
        settings["data"]["data_dir"] = str(data_dir)
        again, _ = trained(validate(settings, "a cell"), choosing=False)
        assert found.runs[method][1]["metrics"] == again.metrics  # the second seed, on test examples
        assert found.runs[method][1]["uplink"] == sum(record["uplink"] for record in again.history)
        seen, _ = trained(validate(settings, "a cell"), choosing=True)
        assert [r["loss"] for r in seen.history] == [r["loss"] for r in again.history]  # trained on the same
    assert found.runs["local"][0]["metrics"] != found.runs["local"][1]["metrics"]


def test_what_is_done_is_not_done_again(made, data_dir, monkeypatch):
    out, found = made

    def never(config, choosing):
        raise AssertionError("a cell was run again")

    monkeypatch.setattr(bench, "trained", never)
    again = bench.consensus(out, ["heart-disease"], ["local", "ditto"], TINY, data_dir=data_dir, workers=1)
    assert again["heart-disease"] == found


def test_a_diverging_run_is_a_result_and_no_failure(data_dir, tmp_path):
    islands = bench.sized(ISLANDS["heart-disease"], TINY)
    config = configured(islands, "fedavg", 1e30, None, 0, {"data_dir": str(data_dir)}).model_dump(mode="json")
    tried = bench.trial(tmp_path, config)
    assert tried["accuracy"] is None
    assert "NaN or infin" in tried["why"]
    assert bench.final(tmp_path, config)["metrics"] == {}


def test_the_report_has_a_row_a_method_and_says_how_it_was_made(made, tmp_path):
    _, found = made
    found = Result(found.islands, found.choices | {"fedcr": None}, found.runs | {"fedcr": []})
    report(tmp_path, {"heart-disease": found}, TINY, "archipel bench consensus", None)
    text, lines = (tmp_path / "consensus.md").read_text(), (tmp_path / "consensus.csv").read_text().splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert rows.keys() >= {"Local", "Ditto", "FedCR"}
    accuracies = [run["metrics"]["average_accuracy"] for run in found.runs["local"]]
    assert f"{50 * sum(accuracies):.2f} ±" in rows["Local"]
    assert set(rows["FedCR"].replace(" ", "").strip("|").split("|")[1:]) == {"–"}
    assert "FedCR diverged" in text
    assert "Command: `archipel bench consensus`" in text
    assert any(line.startswith("Heart disease: 4 hospitals,Ditto,Accuracy,worst client") for line in lines)
    # a model each way: (13 + 1) · 4 and (4 + 1) · 2 float32 numbers, and a loss
    (up,) = (column.entries["ditto"].mean for column in table(found).columns if column.title == "up")
    assert up == pytest.approx(((13 + 1) * 4 + (4 + 1) * 2 + 1) * 4 / 1000)


def test_unknown_names_are_refused():
    with pytest.raises(
        ValueError, match=r"no method 'fedavgg' in this benchmark. Did you mean 'fedavg'\? There are: local"
    ):
        entrants("local,fedavgg")
    assert entrants("APFL, local,apfl") == ["apfl", "local"]
    call = CliRunner().invoke(app, ["bench", "consensus", "--data", "mnist"])
    assert call.exit_code == 2
    assert "There is no data set 'mnist' in this benchmark. Did you mean 'femnist'? There are: hapt" in call.stderr
