"""Augmentation: shifts and mirrors of the image that was given, the same in a loop and in vmap."""

import pytest
import torch

from archipel import SGD, FedAvg, Federation, classification, fit
from archipel.core import keys
from archipel.data.augment import Augment, Crop, Flip
from archipel.engines.setting import Setting

IMAGES = torch.randint(1, 256, (6, 2, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_crop_is_a_shift_with_black_coming_in():
    padded = torch.zeros(6, 2, 9, 11, dtype=torch.uint8)
    padded[:, :, 2:-2, 2:-2] = IMAGES
    seen = set()
    for seed in range(40):
        for before, after in zip(padded, Crop(2)(IMAGES, keys.key(seed)), strict=True):
            windows = [
                (r, c) for r in range(5) for c in range(5) if torch.equal(before[:, r : r + 5, c : c + 7], after)
            ]
            assert len(windows) == 1
            seen |= {*windows}
    # 240 draws of 25 places: each is missed with (24/25)^240 = 6e-5.
    assert len(seen) == 25


def test_a_flip_mirrors_about_half():
    many = IMAGES[:1].expand(4000, -1, -1, -1)
    seen = Flip()(many, keys.key(0))
    mirrored = (seen == IMAGES[:1].flip(3)).flatten(1).all(1)
    assert ((seen == IMAGES[:1]).flatten(1).all(1) ^ mirrored).all()
    assert abs(mirrored.double().mean() - 0.5) < 5 * 0.5 / 4000**0.5  # five sd
    assert torch.equal(Flip(0.0)(IMAGES, keys.key(0)), IMAGES)
    assert torch.equal(Flip(1.0)(IMAGES, keys.key(0)), IMAGES.flip(3))


def test_batched_over_clients_and_padded_it_draws_the_same():
    augment = Augment((Crop(2), Flip()))
    several = keys.fold(keys.key(1), torch.arange(3))
    batched = torch.func.vmap(augment)(IMAGES.expand(3, -1, -1, -1, -1), several)
    for key, found in zip(several, batched, strict=True):
        assert torch.equal(found, augment(IMAGES, key))
        assert torch.equal(found[:4], augment(IMAGES[:4], key))
    assert not torch.equal(batched[0], batched[1])


def test_sgd_takes_it_in_a_loop_and_in_a_batch():
    x = torch.randint(256, (12, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays([(x, torch.arange(12) % 2), (x[:8], torch.arange(8) % 2)], test=0.0)
    task = classification(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 4)), federation)

    def trained(augment, engine):
        algorithm = FedAvg(task, SGD(lr=0.1, steps=3, batch=4, augment=augment))
        run = fit(algorithm, federation, rounds=2, setting=Setting(engine=engine))
        return torch.cat([p.flatten() for p in torch.utils._pytree.tree_leaves(run.server["model"])])

    augment = Augment((Crop(1), Flip()))
    looped, batched, plain = trained(augment, "loop"), trained(augment, "batched"), trained(None, "loop")
    # The same draws in both; sums in another order differ in float32's last digits.
    assert torch.allclose(looped, batched, atol=1e-5)
    assert not torch.allclose(looped, plain, atol=1e-3)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="padding is 0"):
        Crop(0)
    with pytest.raises(ValueError, match="rate is 2"):
        Flip(2.0)
