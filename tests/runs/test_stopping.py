"""Early stopping: rounds from a record that is known, the best round's bits, and a resumption that decides alike."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from archipel import SGD, EarlyStopping, FedAvg, FedAvgFT, Federation, classification, fit, load
from archipel.cli.main import app
from archipel.core.trees import flatten
from archipel.runs.stopping import best_round

NOISY = SGD(lr=3.0, steps=3, batch=8, schedule="constant")


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def federation():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, 4, generator=generator)
    y = (x[:, 0] + torch.randn(240, generator=generator) > 0).long()
    return Federation.from_arrays([(x[s], y[s]) for s in torch.arange(240).split(80)], validation=0.3)


def method(federation):
    return FedAvg(classification(torch.nn.Linear(4, 4), federation), NOISY)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 5))
def test_the_best_round_is_the_first_minimum(values, every):
    history = [{"round": r} | ({"validation": {"brier": values[r // every - 1]}} if r % every == 0 else {})
               for r in range(1, every * len(values) + 1)]  # fmt: skip
    first = values.index(min(values))
    assert best_round(history, "brier") == (every * (first + 1), len(values) - 1 - first)


def test_the_best_round_is_kept_to_the_bit(federation, tmp_path):
    stopping = EarlyStopping(patience=4, folder=tmp_path)
    run = fit(method(federation), federation, rounds=60, folder=tmp_path, callbacks=[stopping])
    assert len(run.history) < 60
    assert run.history[-1]["stopped"] is True
    assert "metrics" in run.history[-1]
    values = [record["validation"]["brier"] for record in run.history]
    assert stopping.round == 1 + values.index(min(values)) == len(run.history) - 4
    again = fit(method(federation), federation, rounds=60, until=stopping.round)  # the same bits for any stop
    for one, other in zip(flatten(stopping.best.server).values(), flatten(again.server).values(), strict=True):
        assert torch.equal(one, other)
    found = stopping.best.evaluate(federation).metrics
    assert found == again.evaluate(federation).metrics


@pytest.mark.parametrize("at", [2, 5])
def test_a_resumed_run_stops_where_one_that_never_stopped_does(federation, tmp_path, at):
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(folder, **more):
        stopping = EarlyStopping(patience=4, every=2, folder=folder)
        return fit(method(federation), federation, rounds=60, folder=folder, callbacks=[stopping], **more), stopping

    first, one = run(whole)
    run(parts, until=at)
    second, other = run(parts)
    assert [r.get("validation") for r in first.history] == [r.get("validation") for r in second.history]
    assert one.round == other.round
    third, _ = run(parts)  # it has ended: nothing is trained
    assert len(third.history) == len(second.history)


def test_without_a_folder_and_with_methods_that_adapt(federation):
    block = SGD(lr=0.5, steps=2, batch=None)
    task = classification(torch.nn.Linear(4, 4), federation)
    stopping = EarlyStopping(patience=2, metric="auc")
    fit(FedAvgFT(task, block, tuning=block), federation, rounds=12, callbacks=[stopping])
    assert stopping.best.predict(federation.clients[0].test["x"], client=0).values.isfinite().all()


def test_refusals(federation):
    bare = Federation.from_arrays([(torch.randn(20, 4), torch.arange(20) % 2)] * 2)
    with pytest.raises(ValueError, match=r"data\.validation=0\.2"):
        fit(method(bare), bare, rounds=2, callbacks=[EarlyStopping()])
    with pytest.raises(ValueError, match="There is no mae"):
        fit(method(federation), federation, rounds=2, callbacks=[EarlyStopping(metric="mae")])
    with pytest.raises(ValueError, match="patience"):
        EarlyStopping(patience=0)
    with pytest.raises(ValueError, match="No round was validated"):
        _ = EarlyStopping().best


def test_the_command_stops_keeps_the_best_round_and_tells(tmp_path, data_dir):
    folder = tmp_path / "run"
    words = ["run", "heart-fedavg", "rounds=80", "data.validation=0.2", "algorithm.local.lr=0.3", "seed=1",
             f"data.data_dir={data_dir}", "stopping.patience=3", "--out", folder]  # fmt: skip
    assert f"archipel evaluate {folder / 'best'}" in call(*words).stdout
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(history) < 80
    best = load(folder / "best")
    assert len(best.history) == best_round(history, "brier")[0]
    assert "is complete" in call(*words).stderr
    call("evaluate", folder / "best")
    shutil.rmtree(folder)
    assert "data.validation" in call("run", "heart-fedavg", "stopping.patience=3", "--out", folder, code=2).stderr
