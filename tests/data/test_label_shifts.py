"""Shifts of labels, features and quantity: what they do, and what they record."""

import math

import numpy as np
import pytest
import torch

from archipel import Federation
from archipel.core import keys
from archipel.data.shifts.feature_shifts import Affine, Missing
from archipel.data.shifts.label_shifts import Keep, NoisyLabels, PermuteLabels

KEY = keys.key(3)


def table(n=1000, d=3, classes=4):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return {"x": x, "y": torch.arange(n) % classes}


def federation(classes=4, d=3):
    columns = table(40, d, classes)
    return Federation.from_arrays([(columns["x"], columns["y"])] * 2)


def test_a_permutation_is_undone_by_its_inverse():
    shift = PermuteLabels((3, 0, 2, 1))
    columns = table()
    seen, truth = shift.apply(columns, {}, KEY)
    assert torch.equal(truth["label"], columns["y"])
    assert torch.equal(torch.tensor(shift.permutation).argsort()[seen["y"]], columns["y"])
    again, truth = shift.apply(seen, truth, KEY)
    assert torch.equal(truth["label"], columns["y"])  # of the first shift on, the original
    assert again["y"][:4].tolist() == [shift.permutation[k] for k in shift.permutation]


@pytest.mark.parametrize("permutation", [(0, 0, 1), (1, 2, 3), (0, 2), (-1, 0)])
def test_a_permutation_that_is_none_is_refused(permutation):
    with pytest.raises(ValueError, match="which isn't one: each class from 0"):
        PermuteLabels(permutation)


def test_noise_is_symmetric_and_remembers():
    n, rate, K = 40_000, 0.3, 4
    columns = table(n, classes=K)
    seen, truth = NoisyLabels(rate, K).apply(columns, {}, KEY)
    assert torch.equal(truth["clean"], columns["y"])
    assert torch.equal(truth["label"], columns["y"])
    assert torch.equal(truth["noisy"], seen["y"] != columns["y"])
    # A share of n draws: sd √(r(1−r)/n). Five sd.
    assert abs(truth["noisy"].double().mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / n)
    jump = (seen["y"] - columns["y"])[truth["noisy"]] % K
    assert jump.min() >= 1
    each, wrong = torch.bincount(jump, minlength=K)[1:] / len(jump), 1 / (K - 1)
    assert (each - wrong).abs().max() < 5 * math.sqrt(wrong * (1 - wrong) / len(jump))
    assert torch.equal(NoisyLabels(0.0, K).apply(columns, {}, KEY)[0]["y"], columns["y"])
    assert NoisyLabels(1.0, K).apply(columns, {}, KEY)[1]["noisy"].all()


def test_noise_after_a_permutation_keeps_both_labels():
    columns = table()
    seen, truth = PermuteLabels((1, 2, 3, 0)).apply(columns, {}, KEY)
    noisy, truth = NoisyLabels(0.5, 4).apply(seen, truth, KEY)
    assert torch.equal(truth["label"], columns["y"])
    assert torch.equal(truth["clean"], seen["y"])
    twice, truth = NoisyLabels(0.5, 4).apply(noisy, truth, keys.fold(KEY, 1))
    assert torch.equal(truth["clean"], seen["y"])
    assert torch.equal(truth["noisy"], twice["y"] != seen["y"])


def test_an_affine_shift_is_per_feature():
    columns = table()
    seen, _ = Affine(scale=(1.0, 2.0, -1.0), offset=0.5).apply(columns, {}, KEY)
    assert torch.equal(seen["x"], columns["x"] * torch.tensor([1.0, 2.0, -1.0]) + 0.5)
    series = {"x": torch.ones(2, 5, 3), "y": torch.zeros(2)}
    assert Affine(offset=(0, 1, 2)).apply(series, {}, KEY)[0]["x"][1, 4].tolist() == [1, 2, 3]


def test_missing_values_are_recorded_and_filled_by_what_is_left():
    columns = table(2000)
    holes, truth = Missing(0.25).apply(columns, {}, KEY)
    assert torch.equal(torch.isnan(holes["x"]), truth["missing"])
    assert torch.equal(holes["x"][~truth["missing"]], columns["x"][~truth["missing"]])
    assert abs(truth["missing"].double().mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 6000)
    filled, same = Missing(0.25, "mean").apply(columns, {}, KEY)
    assert torch.equal(same["missing"], truth["missing"])
    mean = np.nanmean(holes["x"].double().numpy(), axis=0)
    for j in range(3):
        values = filled["x"][truth["missing"][:, j], j]
        assert values.numpy() == pytest.approx(np.full(len(values), mean[j]), rel=1e-6)  # float32
    # Tests are filled by the training data's mean, not by their own.
    test, mask = Missing(0.25, "mean").apply({"x": columns["x"] + 9, "y": columns["y"]}, {}, KEY, train=filled)
    assert test["x"][mask["missing"][:, 0], 0].numpy() == pytest.approx(mean[0], rel=1e-4)


def test_a_sensor_that_a_client_lacks():
    columns = table()
    seen, truth = Missing(1.0, 0.0, features=(1,)).apply(columns, {}, KEY)
    assert truth["missing"].all(0).tolist() == [False, True, False]
    assert not seen["x"][:, 1].any()
    with pytest.raises(ValueError, match="a feature lost all of them"):
        Missing(1.0, "mean", features=(1,)).apply(columns, {}, KEY)


def test_keeping_rows_keeps_them_together():
    columns = table(100)
    seen, truth = Keep(0.25).apply(columns, {"index": torch.arange(100)}, KEY)
    assert len(seen["y"]) == 25
    assert (truth["index"].diff() > 0).all()
    assert torch.equal(seen["x"], columns["x"][truth["index"]])
    assert torch.equal(seen["y"], columns["y"][truth["index"]])
    assert len(Keep(1e-9).apply(columns, {}, KEY)[0]["y"]) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyLabels(1.5, 4), "rate is 1.5; it is a probability"),
        (lambda: NoisyLabels(0.5, 1), "2 classes or more"),
        (lambda: Affine(scale=(1.0, 0.0)), "no scale of 0"),
        (lambda: Affine(offset=math.inf), "finite"),
        (lambda: Missing(-0.1), "rate is -0.1"),
        (lambda: Missing(0.1, "median"), "it is 'nan', 'mean' or a number"),
        (lambda: Keep(0.0), "fraction is 0.0"),
        (lambda: PermuteLabels((1, 0)).check(federation()), "permutation has 2; 'arrays' has 4 classes"),
        (lambda: NoisyLabels(0.1, 7).check(federation()), "classes is 7; 'arrays' has 4 classes"),
        (lambda: Affine(scale=(1.0, 2.0)).check(federation()), "scale has 2 numbers; 'arrays' has 3 features"),
        (lambda: Missing(0.1, features=(3,)).check(federation()), "features names 3; 'arrays' has the features 0 to 2"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
