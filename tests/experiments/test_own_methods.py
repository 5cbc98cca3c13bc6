"""A method is one file: it is found in every place where methods are named. A user's own method needs none of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import archipel
from archipel import FedAvg
from archipel.algorithms.registry import by_name, modules
from archipel.core.lazy import stub
from archipel.experiments.methods import SECTIONS
from archipel.experiments.reading import read_config, to_yaml, validate

TOY = '''"""Toy. A. Nobody: A method of one file. 2026."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from archipel.algorithms.parts.shared_model import PLAIN, SharedModel
from archipel.core.checks import NonNegative
from archipel.core.trees import Tree
from archipel.learning.sgd import SGD, Shift, proximal


@dataclass(frozen=True, eq=False)
class ToyProx(SharedModel):
    """Federated averaging near the shared model, as a toy.

    Args:
        task: the model and its loss.
    """

    local: SGD = PLAIN
    penalty: NonNegative = 0.25
    kind: Literal["a", "b"] = "a"

    def shift(self, client: Tree, message: Tree) -> Shift:
        """The gradient of the toy's term."""
        return proximal(self.penalty, message["model"])
'''

EVERYWHERE = """
import pytest
from torch import nn
import torch
import archipel, archipel.algorithms
from archipel import SGD, Federation, ToyProx, classification, fit
assert "ToyProx" in archipel.__all__ and "ToyProx" in archipel.algorithms.__all__
from archipel.experiments import read_config
from archipel.experiments.building import build
config = read_config("digits-fedavg", ["algorithm.name=toyprox", "algorithm.penalty=0.5", "rounds=1"])
assert config.algorithm.local.momentum == 0.0, "the class's own solver is the default"
algorithm, federation = build(config)
assert type(algorithm) is ToyProx and algorithm.penalty == 0.5
for wrong, message in (
    ({"penalty": -1.0}, "ToyProx's penalty must be 0 or above and finite; given -1.0"),
    ({"kind": "c"}, "ToyProx's kind must be 'a' or 'b'; given 'c'"),
    ({"batch_norm": "off"}, "ToyProx's batch_norm must be 'share', 'local' or 'recompute'; given 'off'"),
    ({"local": 0.1}, "ToyProx's local must be a solver"),
):
    with pytest.raises((TypeError, ValueError)) as caught:
        ToyProx(algorithm.task, **wrong)
    assert message in str(caught.value), caught.value
with pytest.raises(ValueError, match="algorithm.penalty: ToyProx's penalty must be 0 or above and finite"):
    read_config("digits-fedavg", ["algorithm.name=toyprox", "algorithm.penalty=-1"])
with pytest.raises(ValueError, match="algorithm.penalti: there is no such key. Did you mean 'penalty'"):
    read_config("digits-fedavg", ["algorithm.name=toyprox", "algorithm.penalti=1"])
from rich.console import Console
from archipel.reports.catalogue import catalogue
console = Console(width=200)
with console.capture() as shown:
    console.print(catalogue())
assert "toyprox" in shown.get() and "as a toy" in shown.get()
x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
islands = Federation.from_arrays([(x[:20], (x[:20, 0] > 0).long()), (x[20:], (x[20:, 0] > 0).long())])
task = classification(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), islands)
drawn = task.init(torch.tensor(0))["buffers"]["1"]["running_mean"]
for policy, moves in (("share", True), ("local", False), ("recompute", True)):
    run = fit(ToyProx(task, SGD(lr=0.1, steps=2, batch=6), batch_norm=policy), islands, rounds=1)
    assert (not torch.equal(run.server["model"]["buffers"]["1"]["running_mean"], drawn)) == moves
print("found everywhere")
"""


def test_a_new_method_is_one_file(tmp_path):
    package = tmp_path / "archipel"
    shutil.copytree(Path(archipel.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "algorithms" / "toyprox.py").write_text(TOY)
    done = subprocess.run(
        [sys.executable, "-c", EVERYWHERE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("found everywhere")


def test_names_are_read_without_loading_torch():
    code = (
        "import sys; from archipel.algorithms.registry import modules; "
        "print(modules()['FedAvg'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["archipel.algorithms.fedavg", "False"]


def test_the_stub_for_type_checkers_names_every_method():
    found = Path(archipel.algorithms.__file__).with_suffix(".pyi").read_text()
    assert found == stub(modules()), "python -m archipel.algorithms.registry writes it anew"
    assert len(modules()) == len(by_name()) >= 28


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    (tmp_path / "island_methods.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "island_methods:ToyProx"
    sys.modules.pop("island_methods", None)


def test_a_users_own_method_runs_by_its_name(own_method):
    config = read_config("digits-fedavg", [f"algorithm.name={own_method}", "algorithm.penalty=0.5"])
    assert config.algorithm.penalty == 0.5
    again = validate(yaml.safe_load(to_yaml(config)), "the same again")
    assert again == config
    inner = [f"algorithm.inner={{name: '{own_method}', penalty: 2.0}}", "algorithm.name=ditto"]
    assert read_config("digits-fedavg", inner).algorithm.inner.penalty == 2.0
    with pytest.raises(ValueError, match=r"algorithm.penalti: there is no such key. Did you mean 'penalty'"):
        read_config("digits-fedavg", [f"algorithm.name={own_method}", "algorithm.penalti=1"])
    with pytest.raises(ValueError, match=r"no subclass of Algorithm named 'ToyProxy'"):
        read_config("digits-fedavg", ["algorithm.name=island_methods:ToyProxy"])


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("{name: xyz}", "algorithm.inner.name: is 'xyz'; it is one of .*fedavg"),
        ("{}", "algorithm.inner.name: is missing; it is one of"),
        ("3", "algorithm.inner: is a section, with settings of its own; given 3"),
        ("{name: fedavg, locl: 1}", r"algorithm.inner.locl: there is no such key. Did you mean 'local'\?"),
    ],
)
def test_faults_of_an_inner_method_are_told_by_their_place(inner, message):
    with pytest.raises(ValueError, match=message):
        read_config("digits-fedavg", ["algorithm.name=ditto", f"algorithm.inner={inner}"])


def test_sections_have_the_defaults_of_the_class():
    assert SECTIONS["fedavg"](name="fedavg").local.build() == FedAvg.__dataclass_fields__["local"].default
    assert SECTIONS["l2sgd"](name="l2sgd").local.steps == 1
    assert SECTIONS["fedavgft"](name="fedavgft").tuning.epochs == 1
    assert SECTIONS["fedavgft"].model_validate({"name": "fedavgft", "tuning": {"steps": 3}}).tuning.epochs is None
    with pytest.raises(KeyError):
        SECTIONS["fedspam"]
