"""A network of the user's own, in the command; and no code runs that the user didn't name."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from archipel.cli.main import app

NET = """
from pathlib import Path
from torch import nn

Path("imported").touch()

class Wide(nn.Module):
    def __init__(self, shape, width=8, *, features):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.ReLU())
        self.out = nn.Linear(width, features)

    def forward(self, x):
        return self.out(self.inner(x))

class Fixed(nn.Module):
    def __init__(self, sides):
        super().__init__()
        self.inner = nn.Linear(3 * sides**2, 5)

    def forward(self, x):
        return self.inner(x.flatten(1))

NUMBER = 3
"""
SMALL = ["rounds=1", "data.clients=3", "algorithm.local.steps=2"]


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """The name of a module in the current folder, another one for each test, since Python imports a name once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # and taken away afterwards
    name = f"nets_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(NET)
    return name


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        (["Wide", "encoder.options.width=6", "encoder.features=4"], {(6, 768), (4, 6), (10, 4)}),
        (["Fixed", "encoder.options.sides=16"], {(5, 768), (10, 5)}),
    ],
)
def test_an_encoder_of_ones_own(module, tmp_path, options, shapes) -> None:
    name, *settings = options
    words = [f"encoder.name={module}:{name}", *settings, *SMALL]
    shown = call("run", "digits-fedavg", *words, "--out", tmp_path / "run").stdout
    assert f"archipel evaluate {tmp_path / 'run'} --import {module}" in shown
    found = json.loads(call("evaluate", tmp_path / "run", "--import", module, "--json").stdout)
    assert found["metrics"] == found["recorded"]
    from archipel import load
    from archipel.core.trees import leaves

    matrices = {tuple(leaf.shape) for leaf in leaves(load(tmp_path / "run").server) if leaf.dim() == 2}
    assert matrices == shapes


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        (["encoder.name=no_such_module:Net"], "There is no module 'no_such_module'"),
        (
            ["encoder.name={module}:Wode"],
            "named 'Wode'. Did you mean 'Wide'? There are: Wide, Fixed",
        ),
        (["encoder.name={module}:NUMBER"], "no subclass of Module named 'NUMBER'"),
        (["encoder.name={module}:Wide", "encoder.options.widht=3"], "Wide has no option 'widht'. It takes: width"),
        (["encoder.name={module}:Fixed"], "Fixed needs the option 'sides'"),
        (["encoder.name={module}:Fixed", "encoder.options.sides=x"], "Fixed can't be built with the options"),
        (["encoder.name={module}:Fixed", "encoder.options.sides=7"], "Fixed can't process the federation's examples"),
    ],
)
def test_a_wrong_name_gives_a_sentence(module, settings, hint) -> None:
    words = [setting.format(module=module) for setting in settings]
    assert hint in call("run", "digits-fedavg", *words, *SMALL, "--out", "run", code=2).stderr


def test_a_module_that_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing_net.py").write_text("1 / 0")
    told = call("show", "digits-fedavg", "encoder.name=failing_net:Net", code=2).stderr
    assert "failing_net can't be imported: ZeroDivisionError" in told


def test_a_file_or_a_runs_folder_imports_nothing_by_itself(module, tmp_path) -> None:
    settings = yaml.safe_load(call("show", "digits-fedavg").stdout)
    settings["encoder"] = {"name": f"{module}:Wide"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    told = call("run", "mine.yaml", *SMALL, "--out", "run", code=2).stderr
    assert f"--import {module}" in told
    assert not (tmp_path / "imported").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    for words in (["evaluate", "run"], ["route", "run", "mine.yaml"]):
        call(*words, code=2)
    assert not (tmp_path / "imported").exists()
    call("run", "mine.yaml", *SMALL, "--fresh", "--out", "run", "--import", module)
    assert (tmp_path / "imported").exists()


def test_options_of_a_presets_network_do_not_go_to_another(module) -> None:
    from archipel.experiments import read_config

    with pytest.warns(UserWarning, match=r"encoder\.options are another network's and are left out: hidden"):
        config = read_config("heart-fedspm", [f"encoder.name={module}:Fixed", "encoder.options.sides=16"])
    assert config.encoder.options == {"sides": 16}
    assert config.algorithm.router.options == {"hidden": [32]}
    with pytest.warns(UserWarning, match=r"algorithm\.router\.options .* hidden"):
        config = read_config("heart-fedspm", [f"algorithm.router.name={module}:Wide"])
    assert config.algorithm.router.options == {}
    assert config.encoder.options == {"hidden": [32]}
