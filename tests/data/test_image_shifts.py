"""Looks, against other people's code and formulas in Python numbers."""

import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from archipel import Federation
from archipel.data.shifts.colours import Brightness, Contrast, Gamma, Hue, Saturation, feddrm
from archipel.data.shifts.image_shifts import Blurred, Brightened, Cast, Coloured, Inverted, Rotated
from archipel.data.shifts.transforms import brighten, dominate

GREYS = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
COLOURS = torch.randint(256, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def half_up(value):
    return min(max(math.floor(value + 0.5), 0), 255)


@pytest.mark.parametrize(
    ("look", "formula"),
    [
        (Brightness(1.5), lambda v: 1.5 * v),
        (Contrast(0.5), lambda v: 127.5 + 0.5 * (v - 127.5)),
        (Contrast(3.0), lambda v: 127.5 + 3 * (v - 127.5)),
        (Gamma(0.6), lambda v: 255 * (v / 255) ** 0.6),
        (Gamma(2.0), lambda v: v * v / 255),
        (Inverted(), lambda v: 255 - v),
    ],
)
def test_looks_that_change_grey_values(look, formula):
    assert look.change(GREYS).flatten().tolist() == [half_up(formula(v)) for v in range(256)]


@pytest.mark.parametrize("turn", [-0.1, 0.1, 1 / 3, 0.5, 1.0])
def test_hue_turns_as_colorsys_does(turn):
    # The standard library is in double precision, we in single: a value close to a half may round the other way.
    found = Hue(turn).change(COLOURS).permute(0, 2, 3, 1).reshape(-1, 3)
    for before, after in zip(COLOURS.permute(0, 2, 3, 1).reshape(-1, 3).tolist(), found.tolist(), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(c / 255 for c in before))
        expected = [255 * c for c in colorsys.hsv_to_rgb((h + turn) % 1, s, v)]
        assert after == pytest.approx(expected, abs=0.501)
    grey = Coloured().change(GREYS)
    assert torch.equal(Hue(turn).change(grey), grey)


@pytest.mark.parametrize("gain", [0.0, 0.5, 1.0, 1.5])
def test_saturation_moves_away_from_grey(gain):
    found = Saturation(gain).change(COLOURS)
    r, g, b = COLOURS.double().unbind(1)
    grey = (0.299 * r + 0.587 * g + 0.114 * b)[:, None]
    expected = (grey + gain * (COLOURS.double() - grey)).clamp(0, 255)
    assert (found - expected).abs().max() <= 0.501
    if gain == 1:
        assert torch.equal(found, COLOURS)


@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
@pytest.mark.parametrize("degrees", [30, -45, 200, 90, 180])
def test_rotation_as_scipys(shape, degrees):
    images = torch.randint(256, (2, 3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found = Rotated(degrees).change(images)
    # The default plane of scipy's, (1, 0) of an image, turns counter-clockwise too.
    expected = ndimage.rotate(
        images.double().numpy(), degrees, axes=(3, 2), reshape=False, order=1, mode="grid-constant", cval=0
    )
    assert np.abs(found.double().numpy() - expected).max() <= 0.501  # rounding


def test_rotation_is_counter_clockwise():
    image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    image[0, 0, 2, 4] = 255  # right of the centre
    for degrees in (90, 89.9):
        turned = Rotated(degrees).change(image)
        assert turned[0, 0].argmax() == 2  # above it
    assert torch.equal(Rotated(-90).change(Rotated(90).change(COLOURS)), COLOURS)
    assert torch.equal(Rotated(360).change(COLOURS), COLOURS)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_as_scipys(sigma):
    found = Blurred(sigma).change(COLOURS)
    expected = ndimage.gaussian_filter(
        COLOURS.double().numpy(), (0, 0, sigma, sigma), mode="nearest", radius=(0, 0, *[math.ceil(3 * sigma)] * 2)
    )
    assert np.abs(found.double().numpy() - expected).max() <= 0.501


def test_those_of_the_paper_are_its_functions():
    assert torch.equal(Cast("red").change(COLOURS), dominate(COLOURS, "red"))
    assert torch.equal(Brightened("left").change(COLOURS), brighten(COLOURS, "left"))
    assert torch.equal(Inverted("green").change(COLOURS)[:, 1], 255 - COLOURS[:, 1])


def test_feddrm_has_eight_clients():
    looks = [tuple(feddrm(i)) for i in range(9)]
    assert len(set(looks)) == 8
    assert looks[8] == looks[0] == (Saturation(0.5), Hue(-0.1), Gamma(0.6))


@pytest.mark.parametrize(
    "look",
    [Coloured(), Inverted(), Cast("blue"), Brightened("top"), Rotated(10), Blurred(1.0), Gamma(2.0), Hue(0.1)],
)
def test_nothing_and_little(look):
    seen, _ = look.apply({"x": COLOURS[:0], "y": torch.zeros(0)}, {}, torch.tensor(0))
    assert seen["x"].shape == (0, 3, 12, 12)
    before = COLOURS.clone()
    seen, _ = look.apply({"x": COLOURS, "y": torch.zeros(4)}, {}, torch.tensor(0))
    assert seen["x"].dtype == torch.uint8
    assert torch.equal(COLOURS, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Blurred(0.0), "sigma is 0.0; it is a finite number above 0"),
        (lambda: Gamma(-1.0), "gamma is -1.0"),
        (lambda: Rotated(math.nan), "degrees is nan"),
        (lambda: Saturation(-0.5), "gain is -0.5"),
        (lambda: Hue(0.1).change(GREYS), r"Apply Coloured\(\) first"),
        (lambda: Gamma(2.0).check(Federation.from_arrays([(np.zeros((4, 2)), [0, 1] * 2)])), "changes uint8 images"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
