"""Trees: exact sums, round trips through names and bytes, and what is refused."""

import pytest
import torch

from archipel.core.trees import (
    PerClient,
    PerExample,
    Sum,
    add,
    deliver,
    dot,
    finite,
    flatten,
    leaves,
    leaves_like,
    nbytes,
    norm,
    stack,
    tree_map,
    unflatten,
    with_leaves,
)
from archipel.states.encoding import decode, encode

ODD_TREES = {
    "a bare tensor": torch.arange(3),
    "a bare PerExample": PerExample(torch.ones(4, 2)),
    "nothing": {},
    "an empty branch": {"a": {"b": {}}, "c": torch.ones(2)},
    "depth and PerExample": {"x": {"y": {"z": PerExample(torch.rand(3, 2))}}, "w": torch.tensor(2)},
    "unsorted names": {"b": torch.ones(1), "a": {"d": torch.zeros(2), "c": torch.ones(3)}},
    "empty tensors": {"e": torch.zeros(0, 3)},
    "names with dots and blanks": {"layer.0": torch.ones(1), "two words": torch.zeros(())},
}


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, PerExample):
        same(one.values, other.values)
    else:
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one, other)


def test_a_mean_is_weighted_by_examples_held():
    total = Sum()
    total.add({"a": torch.tensor([[0.0], [4.0]])}, [1, 3])
    same(total.mean(), {"a": torch.tensor([3.0])})
    same(total.total(), {"a": torch.tensor([12.0])})


def test_the_mean_of_equal_values_is_that_value_to_the_bit():
    # 0.1 has no finite binary expansion: sums of w · 0.1 in float32 would round.
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1000, generator=generator) * torch.logspace(-20, 20, 1000)
    weights = torch.randint(1, 100_000, (37,), generator=generator).tolist()
    whole, piecewise = Sum(), Sum()
    whole.add({"v": value.expand(37, -1)}, weights)
    for weight in weights:
        piecewise.add({"v": value[None]}, [weight])
    for total in (whole, piecewise):
        assert torch.equal(total.mean()["v"], value)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32]
)
def test_scalars_keep_shape_and_dtype(dtype):
    total = Sum()
    total.add({"s": torch.tensor([3, 3, 3]).to(dtype)}, [1, 2, 4])
    same(total.mean(), {"s": torch.tensor(3).to(dtype)})
    same(decode(encode({"s": torch.tensor(3).to(dtype)})), {"s": torch.tensor(3).to(dtype)})


def test_integers_are_rounded_and_not_truncated():
    total = Sum()
    total.add({"n": torch.tensor([1, 2])}, [1, 9])
    assert total.mean()["n"].item() == 2  # 1.9


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="There is nothing to average"):
        Sum().mean()


@pytest.mark.parametrize("name", ODD_TREES)
def test_trees_round_trip_with_their_order(name):
    tree = ODD_TREES[name]
    same(unflatten(flatten(tree)), tree)
    same(decode(encode(tree)), tree)


def test_bytes_do_not_tell_views_from_copies():
    base = torch.arange(12.0).reshape(3, 4)
    same(decode(encode({"t": base.T, "same": base})), {"t": base.T.contiguous(), "same": base})


@pytest.mark.parametrize(
    "bad",
    [
        {"a": 1.0},
        {"a": [torch.ones(1)]},
        {1: torch.ones(1)},
        {"a/b": torch.ones(1)},
        {"a!": torch.ones(1)},
        {"": torch.ones(1)},
        {"a": PerClient(torch.ones(2))},
        None,
    ],
)
def test_what_is_no_tree_is_refused(bad):
    with pytest.raises(TypeError, match="A tree is a nested dict with string keys and tensors"):
        flatten(bad)


def test_nbytes_counts_elements_times_width():
    tree = {
        "f64": torch.zeros(3, dtype=torch.float64),
        "bf16": torch.zeros(2, 2, dtype=torch.bfloat16),
        "i64": torch.tensor(1),
        "w": PerExample(torch.zeros(5, 2)),
    }
    assert nbytes(tree) == 3 * 8 + 4 * 2 + 8 + 10 * 4


def test_the_algebra_is_that_of_one_long_vector():
    generator = torch.Generator().manual_seed(0)
    left, right = (
        {"a": torch.randn(3, generator=generator), "b": {"c": torch.randn(2, 2, generator=generator)}} for _ in "lr"
    )
    one, other = (torch.cat([t.flatten() for t in leaves(tree)]) for tree in (left, right))
    assert torch.allclose(dot(left, right), one @ other)
    assert torch.allclose(norm(left), one.norm())
    assert torch.equal(torch.cat([t.flatten() for t in leaves(add(left, right, -0.5))]), one - 0.5 * other)
    assert dot({}, {}) == 0
    assert torch.equal(stack([left, right])["b"]["c"][1], right["b"]["c"])


def test_trees_pair_by_name_and_not_by_position():
    left = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 5.0])}
    swapped = {"b": torch.tensor([3.0, 5.0]), "a": torch.tensor([1.0, 2.0])}
    assert dot(left, swapped) == 39  # 1 + 4 + 9 + 25
    assert tree_map(torch.sub, left, swapped)["a"].tolist() == [0, 0]


def test_leaves_come_in_the_order_of_a_pattern_and_go_back_into_it():
    one, two, three = (torch.tensor(i) for i in (1, 2, 3))
    pattern = {"a": {"c": one, "d": two}, "b": PerExample(three)}
    swapped = {"b": PerExample(three), "a": {"d": two, "c": one}}
    assert leaves_like(pattern, swapped) == leaves(pattern) == [one, two, three]
    same(with_leaves(pattern, leaves_like(pattern, swapped)), pattern)
    assert leaves((pattern, {}, (two,))) == [one, two, three, two]
    with pytest.raises(ValueError, match="expected 2, but got 1"):
        leaves_like(pattern, {"a": {"c": one}, "b": PerExample(three)})


def test_a_sum_pairs_by_name_and_not_by_position():
    total = Sum()
    for rows in (1, 2):  # one client, and a batch
        total.add({"a": torch.full((rows, 2), 4.0), "b": torch.zeros(rows, 2)}, [1] * rows)
        total.add({"b": torch.zeros(rows, 2), "a": torch.full((rows, 2), 4.0)}, [1] * rows)
    same(total.mean(), {"a": torch.full((2,), 4.0), "b": torch.zeros(2)})


def test_finite_looks_at_floating_leaves():
    assert finite({"a": torch.ones(2), "n": torch.tensor(2**62)})
    assert finite({})
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not finite({"a": torch.ones(2), "b": PerExample(torch.tensor([1.0, bad]))})


def test_a_client_is_delivered_its_own_row_and_all_that_is_broadcast():
    table = {"t": torch.arange(6).reshape(3, 2), "u": torch.tensor([7.0, 8.0, 9.0])}
    message = {"mine": PerClient(table), "shared": torch.ones(1)}
    same(deliver(message, 1), {"mine": {"t": torch.tensor([2, 3]), "u": torch.tensor(8.0)}, "shared": torch.ones(1)})
