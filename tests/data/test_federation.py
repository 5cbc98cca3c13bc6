"""Federations of users' arrays: what's accepted, how it's split, and errors that help."""

import re
import warnings

import numpy as np
import pytest
import torch

from archipel.data.card import card
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs


def tables(sizes=(10, 20, 33), features=4, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, features)), np.arange(n) % 3) for n in sizes]


def rows(client):
    return torch.cat([columns["index"] for columns in client.truth.values()]).tolist()


@pytest.mark.parametrize(("test", "validation"), [(0.3, 0.0), (0.2, 0.2), (0.0, 0.0)])
def test_every_example_is_in_exactly_one_split(test, validation):
    arrays = tables()
    federation = Federation.from_arrays(arrays, test=test, validation=validation)
    assert len(federation) == 3
    for client, (x, y) in zip(federation.clients, arrays, strict=True):
        assert sorted(rows(client)) == list(range(len(y)))
        assert (client.validation is None) == (validation == 0)
        for split, columns in client.splits.items():
            index = client.truth[split]["index"].numpy()
            assert np.array_equal(columns["x"].numpy(), x[index].astype(np.float32))
            assert columns["y"].tolist() == y[index].tolist()
            assert len(index) == pytest.approx(
                len(y) * {"test": test, "validation": validation}.get(split, 1 - test - validation), abs=1
            )
    assert federation.sizes.tolist() == [len(client.train["y"]) for client in federation.clients]
    assert federation.sizes.dtype == torch.int64


def test_the_seed_determines_the_splits_and_the_fingerprint_tells():
    first, again, other = (Federation.from_arrays(tables(), seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert rows(first.clients[0]) != rows(other.clients[0])
    assert first.fingerprint != Federation.from_arrays(tables(), seed=0, names=["a", "b", "c"]).fingerprint


def test_a_client_splits_the_same_whoever_else_is_there():
    all_three, first_two = Federation.from_arrays(tables()), Federation.from_arrays(tables()[:2])
    assert rows(all_three.clients[1]) == rows(first_two.clients[1])


def test_the_fingerprint_sees_one_changed_value():
    arrays = tables()
    before = Federation.from_arrays(arrays).fingerprint
    arrays[2][0][5, 1] += 1
    assert Federation.from_arrays(arrays).fingerprint != before


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "stored", "kept"),
    [
        ((6, 9), np.uint8, "auto", (1, 6, 9), torch.uint8),
        ((6, 9, 3), np.uint8, "auto", (3, 6, 9), torch.uint8),
        ((3, 6, 9), np.uint8, "auto", (3, 6, 9), torch.uint8),
        ((3, 6, 9), np.float64, "auto", (3, 6, 9), torch.float32),
        ((6, 9, 4), np.uint8, "auto", (4, 6, 9), torch.uint8),
        ((5, 6, 9), np.uint8, "auto", (5, 6, 9), torch.uint8),
        ((6, 9), np.float32, "image", (1, 6, 9), torch.float32),
        ((6, 9), np.int64, "image", (1, 6, 9), torch.uint8),
        ((6, 9), np.float32, "series", (6, 9), torch.float32),
        ((5,), np.float64, "auto", (5,), torch.float32),
        ((5,), np.int64, "auto", (5,), torch.float32),
    ],
)
def test_kinds_of_data_and_their_stored_form(shape, dtype, kind, stored, kept):
    rng = np.random.default_rng(0)
    arrays = [(rng.integers(2, size=(8, *shape)).astype(dtype), np.arange(8) % 2) for _ in range(2)]
    federation = Federation.from_arrays(arrays, kind=kind)
    assert federation.inputs.shape == stored
    assert federation.clients[0].train["x"].shape[1:] == stored
    assert federation.clients[0].train["x"].dtype == kept == federation.inputs.dtype
    # What was trained on may be asked for again.
    assert federation.inputs.prepare(arrays[0][0]).shape == (8, *stored)


def test_channels_last_are_moved_not_reshaped():
    x = np.zeros((4, 6, 9, 3), np.uint8)
    x[..., 1] = 7
    federation = Federation.from_arrays([(x, [0, 1, 0, 1])])
    assert torch.equal(federation.clients[0].train["x"][:, 1], torch.full((3, 6, 9), 7, dtype=torch.uint8))


def test_users_arrays_are_copied():
    x = np.ones((6, 2), np.float32)
    federation = Federation.from_arrays([(x, [0, 1] * 3)], test=0.0)
    x[:] = 5
    assert federation.clients[0].train["x"].max() == 1


@pytest.mark.parametrize(
    ("y", "classes", "known", "codes"),
    [
        ([3, 7, 3, 9], None, ("3", "7", "9"), [0, 1, 0, 2]),
        (["b", "a", "b", "c"], None, ("a", "b", "c"), [1, 0, 1, 2]),
        (np.array(["b", "a", "b", "a"], object), ["b", "a", "z"], ("b", "a", "z"), [0, 1, 0, 1]),
        ([True, False, True, True], None, ("False", "True"), [1, 0, 1, 1]),
        (torch.tensor([0, 1, 1, 0]), ["no", "yes"], ("no", "yes"), [0, 1, 1, 0]),
        ([0.0, 1.0, 1.0, 0.0], ["no", "yes"], ("no", "yes"), [0, 1, 1, 0]),
    ],
)
def test_labels_become_codes(y, classes, known, codes):
    federation = Federation.from_arrays([(np.zeros((4, 2)), y)], test=0.0, classes=classes)
    assert federation.classes == known
    client = federation.clients[0]
    assert client.train["y"].dtype == torch.int64
    assert client.train["y"].tolist() == [codes[i] for i in client.truth["train"]["index"]]


def test_classes_are_those_of_all_clients():
    with pytest.warns(UserWarning, match="client 'client-0' has one class only, 'b'"):
        federation = Federation.from_arrays([(np.zeros((3, 2)), ["b"] * 3), (np.zeros((3, 2)), ["a", "b", "c"])])
    assert federation.classes == ("a", "b", "c")
    assert federation.clients[0].train["y"].unique().tolist() == [1]


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3)])
def test_float_targets_make_a_regression(shape):
    y = np.random.default_rng(0).normal(size=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation = Federation.from_arrays([(np.zeros((6, 2)), y)], test=0.0)
    train = federation.clients[0].train["y"]
    assert federation.classes is None
    assert train.dtype == torch.float32
    assert np.array_equal(train.numpy(), y.astype(np.float32)[federation.clients[0].truth["train"]["index"]])
    assert "regression" in str(federation)


def good(n=6):
    return np.zeros((n, 2)), [0, 1] * (n // 2)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ([], {}, "arrays is empty"),
        ([np.zeros((6, 2))], {}, r"client 'client-0': give a pair \(X, y\); given is a ndarray of length 6"),
        ([(*good(), good()[1])], {}, r"client 'client-0': give a pair \(X, y\); given is a tuple of length 3"),
        ({"a": good()}, {}, "given is a str of length 1"),
        ([good(), (np.zeros((0, 2)), [])], {}, "client 'client-1' has no examples"),
        (
            [good(), (np.zeros((6, 3)), [0, 1] * 3)],
            {},
            r"client 'client-1': x .* \(3,\), but client 'client-0' .* \(2,\)",
        ),
        ([good(), (np.zeros((6, 2, 2), np.uint8), [0, 1] * 3)], {}, "Bring all clients to the same form"),
        ([good(), (np.zeros((6, 2)), [0, 1])], {}, "client 'client-1': x has 6 examples, but y has 2"),
        (
            [good(), (np.full((6, 2), np.nan), [0, 1] * 3)],
            {},
            "client 'client-1': x holds NaN or infinite values in 6 of 6",
        ),
        ([(np.zeros((3, 2)), [0.5, np.inf, 1.0])], {}, "client 'client-0': y holds NaN or infinite values in 1 of 3"),
        ([(np.zeros((3, 2)), [0, 1, None])], {}, "client 'client-0': y has no label in 1 of 3 rows"),
        ([good(), (np.zeros((1, 2)), [0])], {"test": 0.3}, "client 'client-1' holds 1 example, too few to be split"),
        ([(np.zeros((3, 2)), [1, 1, 1])] * 2, {}, "needs two classes or more"),
        ([good()], {"test": -0.1}, "test is -0.1"),
        ([good()], {"validation": -0.1}, "validation is -0.1"),
        ([good()], {"test": 0.6, "validation": 0.4}, "nothing to train on"),
        ([good()], {"seed": -1}, "seed is -1"),
        ([good()], {"names": ["a", "b"]}, "names has 2 entries for 1 clients"),
        ([good(), good()], {"names": ["a", "a"]}, "two clients are called 'a'"),
        ([good()], {"kind": "sound"}, "kind is 'sound'; it is one of auto, image, table, series"),
        ([(np.zeros((6, 5, 5)), [0, 1] * 3)], {}, 'say which by kind="image" or kind="series"'),
        ([(np.zeros(6), [0, 1] * 3)], {}, r"shape \(6,\); expected are image"),
        ([(np.zeros((6, 2)), [0, 1] * 3)], {"kind": "series"}, r"series data are \(n, time, features\)"),
        ([(np.zeros((6, 0)), [0, 1] * 3)], {}, r"table data are \(n, features\)"),
        ([([["a", "b"]] * 6, [0, 1] * 3)], {}, "client 'client-0': x holds .* numbers are needed"),
        ([(np.zeros((6, 2)), np.zeros((6, 2), int))], {}, r"class labels have shape \(n,\)"),
        ([(np.zeros((6, 2)), 1)], {}, "y is a single value"),
        ([good(), (np.zeros((6, 2)), ["a", "b"] * 3)], {}, "client 'client-1': y holds text, but client 'client-0'"),
        ([good(), (np.zeros((6, 2)), [0.1] * 6)], {}, "client 'client-1': y holds floats"),
        ([good()], {"classes": ["a"]}, "y holds 1, which isn't the code of a class"),
        ([good()], {"classes": ["a", "a"]}, "classes names a class twice"),
        (
            [(np.zeros((2, 2)), ["cats", "dog"])],
            {"classes": ["cat", "dog"]},
            "unknown class 'cats'. Did you mean 'cat'",
        ),
        ([(np.zeros((3, 2)), [0.0, 0.5, 1.0])], {"classes": ["a", "b"]}, "y holds 0.5, which isn't the code"),
        ([(np.zeros((3, 4, 4), int) - 1, [0, 1, 0])], {"kind": "image"}, "from -1 to -1"),
    ],
)
def test_bad_input_is_refused_with_advice(arrays, options, message):
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(arrays, **options)


def test_one_class_clients_are_named_in_a_warning():
    with pytest.warns(UserWarning, match="client 'B' has one class only, '0'"):
        federation = Federation.from_arrays([good(), (np.zeros((4, 2)), [0] * 4)], names=["A", "B"])
    assert len(federation) == 2


def test_federations_made_by_hand_need_clients_with_names_of_their_own():
    inputs = Inputs("table", (1,), 1.0, (0.0,), (1.0,))
    columns = {"x": torch.zeros(2, 1), "y": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(ValueError, match="one client or more"):
        Federation("none", (), inputs, None)
    with pytest.raises(ValueError, match="two clients are called 'a'"):
        Federation("twice", (Client("a", columns, columns), Client("a", columns, columns)), inputs, None)
    assert repr(Client("a", columns, columns)) == "Client('a', train=2, test=2)"


def test_a_process_keeps_the_training_examples_of_its_own_clients_alone():
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (20, 40, 30)]
    whole = Federation.from_arrays(arrays, test=0.3, validation=0.2)
    part = whole.keeping([True, False, True])
    assert part.sizes.tolist() == whole.sizes.tolist()
    assert part.fingerprint == whole.fingerprint
    for i, (mine, client) in enumerate(zip(part.clients, whole.clients, strict=True)):
        for split in ("train", "validation"):
            for name, values in getattr(mine, split).items():
                full = getattr(client, split)[name]
                assert (values.shape, values.dtype) == (full.shape, full.dtype)
                assert (values.untyped_storage().nbytes() < full.untyped_storage().nbytes()) == (i == 1)
        assert torch.equal(mine.test["x"], client.test["x"])


def test_escape_sequences_in_names_are_not_printed():
    arrays = [(np.random.default_rng(i).normal(size=(20, 3)), np.arange(20) % 2) for i in range(2)]
    told = Federation.from_arrays(arrays, names=["\x1b[31mRed\x07", "b\x9b\u202e31m"])
    for text in (str(told), repr(told), str(card(told)), card(told).markdown(), repr(told.clients[0])):
        assert not re.search("[\x07\x1b\x9b\u202e]", text)
