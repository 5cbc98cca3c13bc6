"""Figure 2's grid on the digits: what it writes is what its runs measured, and it goes on where it was."""

import json
from os import devnull

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.drm.bridge.errors import estimates
from archipel.papers.fedspm import figure2
from archipel.papers.fedspm.baselines import Setting
from archipel.papers.fedspm.report import Benchmark

TINY = Setting(
    data={"source": "digits", "clients": 3},
    encoder={"name": "mlp", "features": 4, "options": {"hidden": [4]}},
    router={"name": "mlp", "features": 4, "options": {"hidden": [4]}},
    rounds=4,
    batch=16,
)


def test_a_tiny_grid(tmp_path):
    grid = Benchmark(tmp_path, workers=1, command="archipel bench …", console=Console(file=open(devnull, "w")))  # noqa: SIM115
    results = figure2.figure2(TINY, grid, momenta=(0.0, 0.9), every=2)
    assert list(results) == ["momentum0/seed0", "momentum0.9/seed0"]
    histories = [result["history"] for result in results.values()]
    assert [[record["bridge"]["t"] for record in history] for history in histories] == [[2], [2]]
    assert histories[0] != histories[1]
    numbers = json.loads((tmp_path / "figure2.json").read_text())["runs"]
    assert [(entry["place"], entry["momentum"]) for entry in numbers] == [
        (place, momentum) for place in ("normalised", "balanced") for momentum in (0.0, 0.9)
    ]
    found = estimates(histories[1], "balanced")
    assert numbers[3]["gradient"] == found.gradient
    table = (tmp_path / "figure2.md").read_text()
    assert f"| 0.9 | {found.gradient[0]:.3g} | {found.gamma2:.3g} |" in table
    assert Image.open(tmp_path / "figure2.png").width > 1000
    before = (tmp_path / "runs/momentum0/seed0/result.json").stat().st_mtime_ns
    assert figure2.figure2(TINY, grid, momenta=(0.0, 0.9), every=2) == results
    assert (tmp_path / "runs/momentum0/seed0/result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("setting", [figure2.fast(), figure2.full()])
def test_the_runs_that_are_asked_for(setting):
    cells = figure2.cells(setting, figure2.MOMENTA, 1, 1)
    solvers = [cell.arguments["config"]["algorithm"] for cell in cells]
    assert [solver["routing"]["momentum"] for solver in solvers] == [0, 0.3, 0.6, 0.9, 0.95, 0.99]
    for solver in solvers:
        assert solver["routing"]["schedule"] == solver["local"]["schedule"] == "constant"
        assert (solver["routing"]["steps"], solver["routing"]["lr"]) == (15, 0.01)
        assert (solver["expectation"], solver["components"]) == ("exact", 3)


def test_one_round_is_too_few():
    assert CliRunner().invoke(app, ["bench", "figure2", "--fast", "--rounds", "1"]).exit_code == 2
