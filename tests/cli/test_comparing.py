"""``archipel compare`` and ``archipel sweep``: fair, resumable, and honest about what they can't tell apart."""

import csv
import json
import math

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.experiments import read_config
from archipel.experiments.comparing import cells, difference
from archipel.experiments.comparing.comparison import base_config, compare
from archipel.experiments.comparing.entries import defaults, entry, space, tuned
from archipel.experiments.methods import SECTIONS
from archipel.reports.comparison import figure, which_for_whom

FOUR = ["rounds=2", "algorithm.local.epochs=1"]


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three hospitals whose rules differ, as CSV files with a column y."""
    place = tmp_path_factory.mktemp("comparing") / "hospitals"
    place.mkdir()
    rng = np.random.default_rng(0)
    for name, turn in (("Nice", 1.0), ("Lyon", 1.0), ("Lille", -1.0)):
        x = rng.normal(size=(90, 3))
        y = turn * x[:, 0] + 0.3 * rng.normal(size=90) > 0
        rows = [f"{a},{b},{c},{'ill' if k else 'well'}" for (a, b, c), k in zip(x, y, strict=True)]
        (place / f"{name}.csv").write_text("\n".join(["age,dose,weight,y", *rows]))
    return place


def test_a_comparison_finds_whom_one_model_fails(folder, tmp_path):
    """Lille's labels are turned around: one model for all fails there, training alone doesn't."""
    words = ["compare", folder, "rounds=12", "--methods", "fedavg,local", "--seeds", "3", "--tune", "2",
             "--metric", "balanced_accuracy", "--workers", "1", "--out", tmp_path]  # fmt: skip
    shown = call(*words).stdout
    assert "Lille: Local (Local before FedAvg" in shown
    rows = list(csv.reader((tmp_path / "differences.csv").open()))
    mean = {site: float(value.replace("−", "-")) for method, site, value, *_ in rows[1:] if method == "FedAvg"}
    assert mean["Lille"] < -0.3  # a model that follows the other two is wrong about nearly everybody
    for name in ("compare.md", "compare.csv", "compare.tex", "compare.png", "compare.pdf"):
        assert (tmp_path / name).stat().st_size
    cell = json.loads((tmp_path / "cells" / "fedavg" / "seed1" / "result.json").read_text())
    assert len(cell["result"]["tried"]) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    call(*words)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before


def test_a_search_that_was_stopped_goes_on_to_the_same_trials(folder, tmp_path, monkeypatch):
    base = base_config(str(folder), FOUR)
    base = base.model_copy(update={"data": base.data.model_copy(update={"validation": 0.2})})
    arguments = {"base": base.model_dump(mode="json"), "section": entry(base, "ditto"), "seed": 1, "tries": 5,
                 "metric": "auc", "first": defaults(entry(base, "ditto"), "ditto", base)}  # fmt: skip
    whole = cells.one_method(tmp_path / "whole", **arguments)
    real, calls = cells.trained, []

    def stops(*words, **names):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*words, **names)

    monkeypatch.setattr(cells, "trained", stops)
    with pytest.raises(KeyboardInterrupt):
        cells.one_method(tmp_path / "parts", **arguments)
    monkeypatch.setattr(cells, "trained", real)
    assert cells.one_method(tmp_path / "parts", **arguments) == whole
    assert len(whole["tried"]) == 5
    best = max(range(5), key=lambda trial: (whole["tried"][trial], -trial))
    assert best or whole["chosen"] == pytest.approx(arguments["first"])


def test_the_intervals_are_nadeaus_and_bengios():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=6), rng.normal(size=6)
    plain = stats.ttest_rel(one, other).confidence_interval()
    found = difference(one, other, ratio=0.0)  # without overlap it is the paired t interval
    assert (found.low, found.high) == pytest.approx(tuple(plain))
    wider = difference(one, other, ratio=0.5)
    factor = math.sqrt((1 / 6 + 0.5) / (1 / 6))
    assert wider.high - wider.mean == pytest.approx(factor * (found.high - found.mean))
    assert difference([0.5], [0.25], 0.5).low is None


def test_all_methods_are_tuned_alike():
    base = read_config("heart-fedspm")
    for name in SECTIONS:
        section = entry(base, name)
        ranges = space(name)
        assert ranges["lr"] == (1e-3, 1.0, True)
        found = tuned(section, dict.fromkeys(ranges, 0.5))
        SECTIONS[name].model_validate(found)  # every search's settings are settings of the method
        assert set(defaults(section, name, base)) <= set(ranges)
        text = json.dumps(found)
        assert text.count('"lr"') == text.count('"lr": 0.5')
    assert entry(base, "fedavg")["local"]["epochs"] == 2  # the base run's solver


def test_no_test_example_takes_part_in_a_choice(folder, tmp_path, monkeypatch):
    seen = []
    real = cells.fit

    def watches(algorithm, federation, **names):
        seen.append({client.name: client.test["x"] for client in federation.clients})
        return real(algorithm, federation, **names)

    monkeypatch.setattr(cells, "fit", watches)
    base = base_config(str(folder), FOUR)
    compare(base, ["fedavg", "local"], tmp_path, seeds=1, tries=2, workers=1)
    *chosen_by, final = seen[:3]  # two trials, and the run that is tested
    for one in chosen_by:
        for name, x in one.items():
            test = {tuple(row) for row in final[name].tolist()}
            assert not test & {tuple(row) for row in x.tolist()}


def test_sweep_chooses_by_validation_and_resumes(folder, tmp_path):
    words = [
        "sweep",
        folder,
        "rounds=3",
        "algorithm.local.lr=0.0001,0.1",
        "seed=0,1",
        "--workers",
        "1",
        "--out",
        tmp_path,
    ]
    shown = call(*words).stdout
    assert "Best on validation examples" in shown
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [set(row) for row in rows] == [{"algorithm.local.lr", "seed", "validation auc"}] * 4
    values = [float(row["validation auc"]) for row in rows]
    assert values == sorted(values, reverse=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    call(*words)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before


def test_a_comparison_is_drawn_and_told_for_one_seed(folder, tmp_path):
    found = compare(base_config(str(folder), FOUR), ["fedavg", "local"], tmp_path, seeds=1, tries=0, workers=1)
    assert all(row[5] == "not told apart" for row in which_for_whom(found)[1:])
    assert figure(found).axes


def test_several_targets_are_compared_by_their_mean(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        x = rng.normal(size=(60, 2)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x + 0.3 * rng.normal(size=x.shape)).astype(np.float32))
    found = compare(
        base_config(str(tmp_path), FOUR), ["fedavg", "local"], tmp_path / "out", seeds=1, tries=0, workers=1
    )
    assert found.metric == "r2"
    assert set(found.scores["local"]) == {"", "a", "b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fedavg"], "two methods or more"),
        (["--methods", "fedavg,dito"], "Did you mean 'ditto'?"),
        (["--metric", "precision"], "metric is one of accuracy"),
        (["--metric", "mae"], "These data have classes"),
    ],
)
def test_refusals_are_sentences(folder, tmp_path, words, message):
    assert message in call("compare", folder, "--out", tmp_path, *words, code=2).stderr
