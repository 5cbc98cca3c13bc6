"""What models are fed: statistics, normalisation, and users' examples brought to the stored form."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from archipel.data.inputs import Inputs

COLOUR = Inputs("image", (3, 4, 4), 255.0, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
GREY = Inputs("image", (1, 4, 4), 255.0, (0.5,), (0.2,))
FLOATS = Inputs("image", (3, 4, 4), 1.0, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
TABLE = Inputs("table", (3,), 1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SERIES = Inputs("series", (5, 2), 1.0, (0.0, 0.0), (1.0, 1.0))


def columns(kind, seed=0):
    rng = np.random.default_rng(seed)
    shape = {"image": (3, 4, 5), "table": (6,), "series": (7, 2)}[kind]
    if kind == "image":
        return [torch.tensor(rng.integers(256, size=(n, *shape)), dtype=torch.uint8) for n in (5, 2000, 11)]
    return [torch.tensor(rng.normal(3, 2, size=(n, *shape)), dtype=torch.float32) for n in (5, 2000, 11)]


@pytest.mark.parametrize(("kind", "axes"), [("image", (0, 2, 3)), ("table", (0,)), ("series", (0, 1))])
def test_clients_sums_give_the_pooled_mean_and_deviation(kind, axes):
    clients = columns(kind)
    inputs = Inputs.fit(clients, kind)
    pooled = torch.cat(clients).double().numpy() / (255 if kind == "image" else 1)
    assert inputs.shape == tuple(clients[0].shape[1:])
    assert inputs.mean == pytest.approx(pooled.mean(axes))
    assert inputs.std == pytest.approx(pooled.std(axes))
    normal = inputs.normalise(torch.cat(clients)).double().numpy()
    assert normal.mean(axes) == pytest.approx(0, abs=1e-5)
    assert normal.std(axes) == pytest.approx(1, abs=1e-5)


def test_constant_features_become_zero_and_large_ones_keep_their_spread():
    years = 2020 + torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    inputs = Inputs.fit([torch.cat([years, torch.full((4, 1), 0.1)], 1)], "table")
    assert inputs.mean == pytest.approx((2020.5, 0.1))
    assert inputs.std == pytest.approx((0.5, 1.0))
    x = inputs.normalise(torch.tensor([[2021.0, 0.1]]))
    assert x[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_no_examples_no_statistics():
    with pytest.raises(ValueError, match="no training examples"):
        Inputs.fit([torch.zeros(0, 3)], "table")


@pytest.mark.parametrize("kind", ["image", "table", "series"])
def test_normalise_keeps_float64_and_works_under_vmap(kind):
    x = columns(kind)[1][:12]
    inputs = Inputs.fit(columns(kind), kind)
    assert inputs.normalise(x).dtype == torch.float32
    assert inputs.normalise(x.double()).dtype == torch.float64
    batched = torch.func.vmap(inputs.normalise)(x.unflatten(0, (3, 4)))
    assert torch.equal(batched.flatten(0, 1), inputs.normalise(x))
    untouched = x.clone()
    inputs.normalise(x)
    assert torch.equal(x, untouched)


def test_survives_json_and_can_be_a_key():
    again = Inputs(**json.loads(json.dumps(asdict(COLOUR))))
    assert again == COLOUR
    assert hash(again) == hash(COLOUR)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "sound"}, "'sound'"),
        ({"shape": (4, 4)}, "3 axes"),
        ({"shape": (3, 0, 4)}, "3 axes"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"mean": (0.0,)}, "mean has 1"),
        ({"std": (1.0, 0.0, 1.0)}, "every std is above 0"),
    ],
)
def test_inconsistent_inputs_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        Inputs(**{**asdict(COLOUR), **changed})


IMAGE = np.random.default_rng(0).integers(256, size=(3, 4, 4)).astype(np.uint8)
PLANE = IMAGE[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (IMAGE, IMAGE[None]),
        (IMAGE.transpose(1, 2, 0), IMAGE[None]),
        (torch.tensor(IMAGE), IMAGE[None]),
        (IMAGE.astype(np.int64), IMAGE[None]),
        (IMAGE / 255, IMAGE[None]),
        (torch.tensor(IMAGE / 255, dtype=torch.float32), IMAGE[None]),
        (PLANE.tolist(), np.stack([PLANE] * 3)[None]),
        (PLANE[None], np.stack([PLANE] * 3)[None]),
        (PLANE[..., None], np.stack([PLANE] * 3)[None]),
        (np.stack([PLANE] * 5), np.stack([np.stack([PLANE] * 3)] * 5)),
        (np.stack([IMAGE] * 5), np.stack([IMAGE] * 5)),
        (np.stack([IMAGE] * 5).transpose(0, 2, 3, 1), np.stack([IMAGE] * 5)),
        (np.stack([PLANE[None]] * 3), np.stack([np.stack([PLANE] * 3)] * 3)),
        (np.zeros((0, 4, 4), np.uint8), np.zeros((0, 3, 4, 4))),
    ],
)
def test_images_of_many_forms_become_the_stored_one(given, expected):
    stored = COLOUR.prepare(given)
    assert stored.dtype == torch.uint8
    assert stored.shape == expected.shape
    assert np.array_equal(stored.numpy(), expected)


def test_other_sizes_are_resized_and_users_arrays_left_alone():
    big = np.full((9, 11, 3), 200, np.uint8)
    stored = COLOUR.prepare(big)
    assert torch.equal(stored, torch.full((1, 3, 4, 4), 200, dtype=torch.uint8))
    stored.zero_()
    same = COLOUR.prepare(IMAGE)
    same.zero_()
    assert big.min() == 200
    assert IMAGE.max() > 0


def test_grey_federations_take_grey_images_and_float_ones_floats():
    assert GREY.prepare(PLANE).shape == (1, 1, 4, 4)
    assert GREY.prepare(np.stack([PLANE] * 2)).shape == (2, 1, 4, 4)
    assert GREY.prepare(np.stack([PLANE] * 3)[:, None]).shape == (3, 1, 4, 4)
    floats = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    assert torch.equal(FLOATS.prepare(floats), torch.tensor(floats, dtype=torch.float32))
    with pytest.raises(ValueError, match="floats on the same scale"):
        FLOATS.prepare(IMAGE)


def test_tables_and_series_take_one_or_many():
    assert TABLE.prepare([1, 2, 3]).tolist() == [[1.0, 2.0, 3.0]]
    assert TABLE.prepare(np.zeros((4, 3))).shape == (4, 3)
    assert SERIES.prepare(np.zeros((5, 2))).shape == (1, 5, 2)
    assert SERIES.prepare(np.zeros((4, 5, 2))).shape == (4, 5, 2)


@pytest.mark.parametrize(
    ("inputs", "given", "message"),
    [
        (TABLE, np.zeros(4), r"shape \(4,\); expected is one example \(3,\) or a batch \(n, 3\)"),
        (TABLE, 1.0, r"shape \(\)"),
        (TABLE, ["a", "b", "c"], "numbers are needed"),
        (TABLE, [[1.0, 2.0], [1.0]], "different lengths"),
        (TABLE, [[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], "1 of 2 rows"),
        (TABLE, [[1.0, 2.0, 1e300]], "too large for float32"),
        (SERIES, np.zeros((2, 5)), r"\(5, 2\) or a batch \(n, 5, 2\)"),
        (COLOUR, np.zeros((2, 4, 4, 4), np.uint8), "3 channels or grey"),
        (GREY, np.stack([IMAGE] * 2), r"in colour, but the federation's images are grey \(1 channel\)"),
        (GREY, IMAGE, "three grey images, or one in colour"),
        (COLOUR, np.zeros((0, 4), np.uint8), "without pixels"),
        (COLOUR, np.full((4, 4), 256), "from 256 to 256"),
        (COLOUR, np.full((4, 4), -0.1), "floats from 0 to 1"),
        (COLOUR, np.full((4, 4), 2.0), "floats from 0 to 1"),
        (COLOUR, np.full((4, 4), np.inf), "NaN or infinite"),
        (COLOUR, np.zeros((4, 4), complex), "complex128"),
    ],
)
def test_examples_that_do_not_fit_are_refused_with_advice(inputs, given, message):
    with pytest.raises(ValueError, match=message):
        inputs.prepare(given)
