"""The commands that lead from runs to a decision: evaluate with intervals, report, compare, sweep."""

import json

import pytest
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.runs.metrics import Assessment

HEART = ["heart-fedspm", "rounds=3"]


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def heart(tmp_path_factory, data_dir):
    folder = tmp_path_factory.mktemp("deciding") / "heart"
    call("run", *HEART, f"data.data_dir={data_dir}", "--out", folder)
    return folder


def test_evaluate_shows_and_keeps_each_sites_metrics_beside_training_alone(heart):
    first = call("evaluate", heart)
    assert "--local" in first.stderr
    shown = call("evaluate", heart, "--local")
    for words in ("cleveland", "all sites", "Local", "majority class", "specificity", "Brier score", "diseased"):
        assert words in shown.stdout
    kept = json.loads((heart / "evaluation.json").read_text())
    sites = Assessment.from_json(kept["sites"])
    assert sites.models == ["FedSPM", "Local", "majority class"]
    assert len(sites.of("Local")) == 4
    found = json.loads(call("evaluate", heart, "--json", "--positive", "healthy").stdout)["sites"]
    other = Assessment.from_json(found)
    for site, row in other.of("FedSPM").items():  # healthy's sensitivity is diseased's specificity
        assert row.metrics["sensitivity"] == sites.of("FedSPM")[site].metrics["specificity"]
    assert "There is no class 'ill'" in call("evaluate", heart, "--positive", "ill", code=2).stderr
    warned = {line.split(":")[0] for line in sites.warnings}
    zero = {
        s for s, r in sites.of("FedSPM").items() if 0 in (r.metrics[n].value for n in ("sensitivity", "specificity"))
    }
    assert zero <= warned
