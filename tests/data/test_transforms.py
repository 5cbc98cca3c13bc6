"""Image transforms, worked out by hand on small images."""

import math
from fractions import Fraction

import pytest
import torch

from archipel.data.pixels import resize
from archipel.data.shifts.transforms import (
    brighten,
    client_casts,
    client_transform,
    component_transform,
    dominate,
    grey_to_rgb,
    invert_green,
    invert_grey,
)


def bytes_of(values):
    return torch.tensor(values, dtype=torch.uint8)


GREYS = torch.arange(256, dtype=torch.uint8)


def test_grey_becomes_three_equal_channels():
    images = torch.randint(256, (4, 5, 6), dtype=torch.uint8)
    colour = grey_to_rgb(images)
    assert colour.shape == (4, 3, 5, 6)
    assert all(torch.equal(colour[:, channel], images) for channel in range(3))
    assert torch.equal(grey_to_rgb(images[:, None]), colour)
    with pytest.raises(ValueError, match=r"\(4, 3, 5, 6\) was given"):
        grey_to_rgb(colour)


def test_inversion_is_its_own_inverse_and_mirrors_values():
    assert invert_grey(GREYS).tolist() == list(range(255, -1, -1))
    assert torch.equal(invert_grey(invert_grey(GREYS)), GREYS)
    colour = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    green = invert_green(colour)
    assert torch.equal(green[:, [0, 2]], colour[:, [0, 2]])
    assert torch.equal(green[:, 1].int() + colour[:, 1].int(), torch.full((2, 4, 4), 255, dtype=torch.int32))
    assert torch.equal(invert_green(green), colour)


@pytest.mark.parametrize(("colour", "gains"), [("red", (100, 75, 50)), ("blue", (50, 75, 100))])
def test_colour_casts_multiply_channels_by_their_gains(colour, gains):
    cast = dominate(GREYS.view(256, 1, 1, 1).expand(-1, 3, 1, 1), colour)
    for channel, gain in enumerate(gains):
        assert cast[:, channel].flatten().tolist() == [
            math.floor(Fraction(g * gain, 100) + Fraction(1, 2)) for g in range(256)
        ]


@pytest.mark.parametrize(
    ("edge", "added"),
    [
        ("top", [[50, 50], [25, 25], [0, 0]]),
        ("bottom", [[0, 0], [25, 25], [50, 50]]),
        ("left", [[50, 0]] * 3),
        ("right", [[0, 50]] * 3),
    ],
)
def test_brightening_adds_a_ramp_and_clips(edge, added):
    for value in (0, 100, 200, 255):
        image = torch.full((1, 1, 3, 2), value, dtype=torch.uint8)
        assert brighten(image, edge)[0, 0].tolist() == [[min(value + more, 255) for more in row] for row in added]


def test_ramps_of_any_length_fall_from_50_to_0_rounded_half_up():
    for length in range(2, 40):
        ramp = brighten(torch.zeros(1, 1, length, 1, dtype=torch.uint8), "top").flatten().tolist()
        assert ramp == [math.floor(Fraction(50 * k, length - 1) + Fraction(1, 2)) for k in range(length - 1, -1, -1)]
    assert brighten(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), "bottom").item() == 50


def test_eight_clients_have_all_combinations_then_repeat():
    casts = [client_casts(i) for i in range(8)]
    assert len(set(casts)) == 8
    assert casts[0] == ("red", "top", "left")
    assert casts[4] == ("blue", "top", "left")
    assert casts[2] == ("red", "bottom", "left")
    assert casts[1] == ("red", "top", "right")
    assert client_casts(13) == casts[5]


def test_client_transform_is_cast_then_ramps():
    # Client 6 is blue, bottom, left. Grey 100 becomes (50, 75, 100); rows add 0, 50 and columns 50, 0.
    image = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    assert client_transform(image, 6)[0].tolist() == [
        [[100, 50], [150, 100]],
        [[125, 75], [175, 125]],
        [[150, 100], [200, 150]],
    ]
    assert client_transform(image[:0], 6).shape == (0, 3, 2, 2)


def test_components_of_odd_number_are_inverted():
    components = torch.tensor([0, 1, 2, 3])
    assert component_transform(bytes_of([10, 20, 30, 40]).view(4, 1, 1, 1), components).flatten().tolist() == [
        10,
        235,
        30,
        215,
    ]
    colour = component_transform(bytes_of([[1, 2, 3]] * 2).view(2, 3, 1, 1), torch.tensor([0, 1]))
    assert colour.flatten(1).tolist() == [[1, 2, 3], [1, 253, 3]]


def test_resize_keeps_constants_means_and_type():
    flat = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(resize(flat, 20, 5), torch.full((2, 3, 20, 5), 77, dtype=torch.uint8))
    checkers = bytes_of([[0, 255], [255, 0]]).repeat(4, 4)[None, None]
    shrunk = resize(checkers, 4, 4)
    # Smoothing over each pixel's surroundings leaves the mean, 127.5, of a checker board, but at its edge.
    assert (shrunk[..., 1:-1, 1:-1].float() - 127.5).abs().max() <= 1
    assert resize(flat, 8, 8) is flat
    assert resize(flat[:0], 4, 4).shape == (0, 3, 4, 4)
    assert resize(torch.rand(1, 1, 4, 4), 8, 8).dtype == torch.float32
    with pytest.raises(ValueError, match="0×4"):
        resize(flat, 0, 4)
