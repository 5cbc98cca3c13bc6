"""Minibatches: every example once a pass, whatever the sizes, and the same in a loop as under vmap."""

import math

import pytest
import torch

from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.minibatches import plan_minibatches


def examples(n, padded=None):
    """N real rows that hold their own number, padded by −1."""
    rows = torch.full((padded or n,), -1)
    rows[:n] = torch.arange(n)
    return Examples({"x": rows}, torch.tensor(n), n)


def side_by_side(sizes):
    """The clients as one batched step sees them."""
    longest = max(sizes)
    columns = torch.stack([examples(n, longest)["x"] for n in sizes])
    return Examples({"x": columns}, torch.tensor(sizes), min(sizes))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 11])
@pytest.mark.parametrize("batch", [1, 2, 3, 10, None])
def test_every_example_comes_once_a_pass(n, batch):
    plan = plan_minibatches(examples(n), keys.key(0), batch, epochs=3)
    size = min(batch or n, n)
    per_pass = math.ceil(n / size)
    assert plan.index.shape == plan.mask.shape == (3 * per_pass, size)
    assert plan.active.all()
    for p in range(3):
        part = slice(p * per_pass, (p + 1) * per_pass)
        assert sorted(plan.index[part][plan.mask[part]].tolist()) == list(range(n))
        # all batches but the last are full
        assert plan.mask[part].sum(1).tolist() == [size] * (per_pass - 1) + [n - size * (per_pass - 1)]


def test_passes_are_shuffled_differently():
    plan = plan_minibatches(examples(50), keys.key(0), 50, epochs=2)
    # Two of 50! orders are equal with a probability that nobody will see.
    assert plan.index[0].tolist() != plan.index[1].tolist()
    assert plan.index[0].tolist() != list(range(50))


def test_a_client_smaller_than_a_batch_makes_one_step_of_all_it_has():
    plan = plan_minibatches(examples(3), keys.key(0), 10, epochs=1)
    assert plan.mask.tolist() == [[True] * 3]
    assert sorted(plan.index[0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("batch", [2, 5, None])
def test_steps_go_on_through_as_many_passes_as_they_need(batch):
    n, steps = 5, 8
    plan = plan_minibatches(examples(n), keys.key(1), batch, steps=steps)
    assert len(plan.index) == steps
    per_pass = math.ceil(n / (batch or n))
    for start in range(0, steps - per_pass + 1, per_pass):
        part = slice(start, start + per_pass)
        assert sorted(plan.index[part][plan.mask[part]].tolist()) == list(range(n))


def test_fewer_steps_than_a_pass_take_no_example_twice():
    plan = plan_minibatches(examples(20), keys.key(1), 3, steps=4)
    taken = plan.index[plan.mask].tolist()
    assert len(set(taken)) == len(taken) == 12


@pytest.mark.parametrize("run", [{"steps": 7}, {"steps": 1}, {"epochs": 1}, {"epochs": 3}])
@pytest.mark.parametrize("batch", [1, 4, 50, None])
def test_a_batched_client_draws_what_it_draws_alone(run, batch):
    sizes = [3, 10, 1, 8]
    each = keys.fold(keys.key(0), torch.arange(len(sizes)))

    def batched(data, key):
        plan = plan_minibatches(data, key, batch, **run)
        return data["x"][plan.index], plan.mask, plan.active

    rows, mask, active = torch.func.vmap(batched)(side_by_side(sizes), each)
    for i, n in enumerate(sizes):
        alone = plan_minibatches(examples(n), each[i], batch, **run)
        steps = int(active[i].sum())
        assert steps == len(alone.index)
        assert active[i].tolist() == [True] * steps + [False] * (len(active[i]) - steps)
        assert not mask[i, steps:].any()
        for step in range(steps):
            assert rows[i, step][mask[i, step]].tolist() == alone.index[step][alone.mask[step]].tolist()
        # what is masked is still a real row: models may compute on it
        assert (rows[i] >= 0).all()


@pytest.mark.parametrize("sizes", [[3, 10, 4, 8], [7, 7], [9, 12, 11]])
@pytest.mark.parametrize("run", [{"steps": 7}, {"epochs": 2}])
@pytest.mark.parametrize("batch", [1, 4, 50, None])
def test_what_is_known_beforehand_of_a_batch_is_so(sizes, run, batch):
    known = []

    def batched(data, key):
        plan = plan_minibatches(data, key, batch, **run)
        known.append((plan.row_counts, plan.common_steps))
        return plan.index, plan.mask, plan.active, [plan[step] for step in range(len(plan.row_counts))]

    each = keys.fold(keys.key(0), torch.arange(len(sizes)))
    index, mask, active, taken = torch.func.vmap(batched)(side_by_side(sizes), each)
    ((rows, common),) = known
    assert active[:, :common].all()
    assert not active[:, len(rows) :].any()
    for step, count in enumerate(rows):
        if count is None:
            assert torch.equal(taken[step], index[:, step])
        else:
            assert mask[:, step].sum(1).tolist() == [count] * len(sizes)
            assert torch.equal(taken[step], index[:, step, :count])
    if len(set(sizes)) == 1:
        assert None not in rows
    for n, key in zip(sizes, each, strict=True):
        alone = plan_minibatches(examples(n), key, batch, **run)
        assert alone.row_counts == alone.mask.sum(1).tolist()
        assert [alone[s].tolist() for s in range(len(alone.row_counts))] == [
            i[m].tolist() for i, m in zip(alone.index, alone.mask, strict=True)
        ]


def test_pieces_cover_all_rows_in_order():
    pieces = list(examples(10).pieces(4))
    assert [len(piece["x"]) for piece in pieces] == [4, 4, 2]
    assert torch.cat([piece["x"] for piece in pieces]).tolist() == list(range(10))


def test_columns_can_be_added_and_parts_be_missing_under_vmap():
    data = examples(3)
    assert data.adding(w=torch.ones(3)).take(torch.tensor([2, 0]))["x"].tolist() == [2, 0]
    assert set(data.columns) == {"x"}
    both = ClientData(side_by_side([2, 3]), test=side_by_side([1, 2]))
    seen = torch.func.vmap(lambda d: (d.train.mask.sum(), d.test.mask.sum(), torch.tensor(d.validation is None)))(both)
    assert [s.tolist() for s in seen] == [[2, 3], [1, 2], [True, True]]
