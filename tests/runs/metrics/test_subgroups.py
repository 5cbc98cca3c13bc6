"""Subgroups against scikit-learn on the patients themselves, and small cells that no difference tells."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import recall_score

from archipel import SGD, FedAvg, Federation, classification, fit
from archipel.runs.metrics.subgroups import shown, subgroups


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(0)
    arrays, names = [], ["age", "dose"]
    for n in (200, 90, 40):
        x = np.stack([rng.integers(20, 90, n), rng.normal(size=n)], 1).astype(np.float32)
        arrays.append((x, (x[:, 0] + 25 * rng.normal(size=n) > 55).astype(int)))
    federation = Federation.from_arrays(arrays, names=["a", "b", "c"], test=0.4, features=[names] * 3)
    task = classification(torch.nn.Sequential(Blind(), torch.nn.Linear(2, 4)), federation)
    return fit(FedAvg(task, SGD(lr=0.3, steps=20, batch=None)), federation, rounds=5), federation


class Blind(torch.nn.Module):
    """A missing value counts as the mean."""

    def forward(self, x):
        return x.nan_to_num(0.0)


def _with_gaps(client):
    x = client.test["x"].clone()
    x[::9, 1] = torch.nan
    return replace(client, test=client.test | {"x": x})


def rows_of(run, federation, by, limits=(), minimum=10):
    with run.asking(federation) as (clients, key):
        return subgroups(run.algorithm, run.server, clients, federation, key, by, limits, minimum=minimum)


def test_subgroups_are_scikit_learns_on_their_patients(trained):
    run, federation = trained
    rows = rows_of(run, federation, "age", (45, 70), minimum=1)
    assert [row.name for row in rows] == ["age below 45", "age from 45 to 70", "age from 70"]
    for row, (low, high) in zip(rows, ((0, 45), (45, 70), (70, 200)), strict=True):
        y, given_ = [], []
        for client in federation.clients:
            inside = (client.test["x"][:, 0] >= low) & (client.test["x"][:, 0] < high)
            y += client.test["y"][inside].tolist()
            answers = run.predict(client.test["x"][inside], client=client.name).values
            given_ += answers.argmax(-1).tolist()
        assert row.n == len(y)
        assert row.metrics["sensitivity"].value == pytest.approx(recall_score(y, given_))
        assert row.metrics["specificity"].value == pytest.approx(recall_score(y, given_, pos_label=0))


def test_missing_values_are_a_subgroup_and_the_training_mean_is_the_default_limit(trained):
    run, federation = trained
    federation = replace(federation, clients=tuple(_with_gaps(client) for client in federation.clients))
    rows = rows_of(run, federation, "dose", minimum=1)
    mean = federation.inputs.mean[1]
    assert [row.name for row in rows] == [f"dose below {mean:.4g}", f"dose from {mean:.4g}", "dose missing"]
    missing = sum(int(client.test["x"][:, 1].isnan().sum()) for client in federation.clients)
    assert rows[-1].n == missing
    assert sum(row.n for row in rows) == sum(len(client.test["y"]) for client in federation.clients)


def test_small_subgroups_are_not_sent(trained):
    run, federation = trained
    for row in rows_of(run, federation, "age", (25, 70), minimum=10):
        assert row.n >= 10 * row.sites
    assert rows_of(run, federation, "age", minimum=10_000) == []


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(2, 15))
def test_no_small_cell_follows_from_the_total(sizes, minimum):
    """What is hidden at a site is nothing, or at least the minimum together, or two cells or more."""
    told = shown(torch.tensor(sizes), minimum).tolist()
    hidden = [n for n, tell in zip(sizes, told, strict=True) if n and not tell]
    assert all(n >= minimum for n, tell in zip(sizes, told, strict=True) if tell)
    if len(hidden) == 1:  # there was no other cell to hide it in
        assert not any(told)


@pytest.mark.parametrize(
    ("by", "limits", "words"), [("weight", (), "no column 'weight'"), ("age", (5, 5), "must rise")]
)
def test_refusals(trained, by, limits, words):
    run, federation = trained
    with pytest.raises(ValueError, match=words):
        rows_of(run, federation, by, limits)
