"""Queries are prepared by one code, in training and in serving, which needs no torch."""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from archipel.data import Inputs
from archipel_serve import pixels
from archipel_serve.preparation import Preparation


@pytest.mark.parametrize("size", [(1, 1), (5, 9), (28, 28), (40, 17), (31, 64)])
def test_resizing_agrees_with_torch_and_with_pillow(size):
    images = np.random.default_rng(0).random((2, 3, 31, 17), np.float32)
    found = pixels.resize(images, *size)
    torchs = torch.nn.functional.interpolate(torch.from_numpy(images), size, mode="bilinear", antialias=True)
    # Both of them average in float32, by weights that are rounded to float32: a few ulp of 1.
    np.testing.assert_allclose(found, torchs.numpy(), atol=2e-6)
    pillows = [Image.fromarray(c).resize(size[::-1], Image.Resampling.BILINEAR) for c in images[0]]
    np.testing.assert_allclose(found[0], np.stack([np.asarray(p) for p in pillows]), atol=2e-6)


def test_whole_numbers_are_rounded_to_the_nearest_and_halves_to_the_even_one():
    images = np.random.default_rng(1).integers(0, 256, (4, 1, 9, 7), np.uint8)
    exact = pixels.resize(images.astype(np.float64), 5, 4)
    found = pixels.resize(images, 5, 4)
    assert found.dtype == np.uint8
    assert np.abs(found - exact).max() <= 0.5 + 1e-9  # half of a grey level, and float64's rounding
    assert pixels.resize(np.array([[[[2, 3]]]], np.uint8), 1, 1).item() == 2
    assert pixels.resize(np.array([[[[3, 4]]]], np.uint8), 1, 1).item() == 4


@pytest.mark.parametrize(
    ("inputs", "x"),
    [
        (
            Inputs("image", (3, 6, 5), 255.0, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
            np.arange(63, dtype=np.uint8).reshape(9, 7),
        ),
        (Inputs("table", (2,), 1.0, (4.0, -1.0), (2.0, 3.0), ("age", "sbp")), {"age": [63, 67], "sbp": [145, 160]}),
        (Inputs("table", (1,), 1.0, (1e9,), (10.0,), double=True), [[1e9 + 1], [1e9 + 59]]),
        (Inputs("series", (4, 2), 1.0, (0.0, 1.0), (1.0, 2.0)), np.arange(16.0).reshape(2, 4, 2)),
    ],
)
def test_serving_prepares_from_json_what_training_does(inputs, x):
    served = Preparation(**json.loads(json.dumps(asdict(inputs))))
    prepared, trained = served.prepared(x), inputs.prepare(x)
    assert torch.equal(torch.from_numpy(prepared), trained)
    assert prepared.dtype == served.storage
    # One addition and one product of float32 or float64, in the same order.
    assert np.array_equal(served.standardise(prepared), inputs.normalise(trained).numpy())


def test_it_loads_neither_torch_nor_archipel():
    code = (
        "import archipel_serve.preparation, sys\n"
        "print([m for m in ('torch', 'archipel', 'PIL', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("[]\n", "")
