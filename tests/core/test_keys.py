"""Keyed randomness: distributions against scipy, streams against each other, vmap against plain calls.

All keys are fixed, so a test of a true hypothesis either passes for ever or fails for ever; the level 1e-3 says how
surprised one would have to be at a failure on the day it was written.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from archipel.core import keys

LEVEL = 1e-3


def test_the_generator_is_splitmix64():
    # Vigna's reference splitmix64.c gives these first words for the seed 1234567.
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    words = keys.bits(torch.tensor(1234567), 4).tolist()
    assert [word % 2**64 for word in words] == reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_is_uniform(dtype):
    u = keys.uniform(keys.key(0), 100_000, dtype=dtype)
    assert u.dtype == dtype
    assert stats.kstest(u.double().numpy(), "uniform").pvalue > LEVEL
    counts = torch.histc(u.double(), 256, 0, 1).numpy()
    assert stats.chisquare(counts).pvalue > LEVEL


def test_every_bit_is_fair():
    words = keys.bits(keys.key(3), 20_000).numpy().view(np.uint64)
    ones = np.array([((words >> np.uint64(b)) & np.uint64(1)).sum() for b in range(64)], dtype=float)
    # 64 squared standardised binomials add up to a chi-square of 64 degrees of freedom.
    assert stats.chi2.sf((((ones - 10_000) ** 2) / 5_000).sum(), 64) > LEVEL


def test_a_uniform_never_rounds_up_to_one():
    # The largest word that can be drawn; (2**53 - 1) / 2**53 rounds to 1 in float32, 24 bits don't.
    u = keys.uniform(keys.key(1), 2_000_000)
    assert float(u.max()) <= 1 - 2**-24
    assert float(u.min()) >= 0


def test_normal_is_normal():
    z = keys.normal(keys.key(0), 100_000, dtype=torch.float64).numpy()
    assert stats.kstest(z, "norm").pvalue > LEVEL
    # Standard errors of the first four moments of a standard normal: 1, √2, √15, √96 over √n.
    for power, (expected, spread) in enumerate([(0, 1), (1, 2**0.5), (0, 15**0.5), (3, 96**0.5)], start=1):
        assert abs((z**power).mean() - expected) < 4 * spread / len(z) ** 0.5


def test_integers_are_uniform():
    drawn = keys.integers(keys.key(2), 7, 70_000)
    assert drawn.dtype == torch.int64
    assert stats.chisquare(torch.bincount(drawn, minlength=7).numpy()).pvalue > LEVEL


def test_neighbouring_keys_and_purposes_are_independent():
    root = keys.key(0)
    neighbours = torch.func.vmap(lambda k: keys.uniform(k, 1000))(keys.fold(root, torch.arange(200)))
    # 199 correlations of 1000 uniform pairs: each times √1000 is about standard normal.
    centred = (neighbours - 0.5) / (1 / 12) ** 0.5
    correlations = (centred[1:] * centred[:-1]).mean(1) * 1000**0.5
    assert stats.kstest(correlations.numpy(), "norm").pvalue > LEVEL
    # and the first number of every key is uniform over keys
    assert (
        stats.kstest(torch.func.vmap(lambda k: keys.uniform(k))(keys.fold(root, torch.arange(20_000))), "uniform")[1]
        > LEVEL
    )
    batches, augment = (keys.uniform(keys.fold(root, name), 10_000) for name in ("batches", "augment"))
    assert stats.pearsonr(batches, augment).pvalue > LEVEL


def test_children_do_not_meet_their_parent_or_each_other():
    root = keys.key(0)
    streams = [keys.bits(k, 5000) for k in (root, keys.fold(root, 0), keys.fold(root, 1), keys.fold(root, 0, 0))]
    # Of 20 000 words of 64 bits two are equal with probability 1e-11.
    assert len(torch.cat(streams).unique()) == 20_000


def test_the_order_of_folding_matters():
    root = keys.key(0)
    assert int(keys.fold(root, 1, 2)) != int(keys.fold(root, 2, 1))
    assert int(keys.fold(root, "a", "b")) != int(keys.fold(root, "b", "a"))
    assert int(keys.fold(root, 3)) == int(keys.fold(root, torch.tensor(3)))
    grid = keys.fold(root, torch.arange(300)[:, None], torch.arange(300))
    assert len(grid.unique()) == 90_000


def test_vmap_draws_what_a_plain_call_draws():
    batch = keys.fold(keys.key(7), torch.arange(5))
    draws = {
        "uniform": lambda k: keys.uniform(k, 4, 2),
        "normal": lambda k: keys.normal(k, 3),
        "integers": lambda k: keys.integers(k, 10, 6),
        "permutation": lambda k: keys.permutation(k, 8),
        "fold": lambda k: keys.fold(k, 3, "name"),
    }
    for name, draw in draws.items():
        assert torch.equal(torch.func.vmap(draw)(batch), torch.stack([draw(k) for k in batch])), name


def test_permutations_are_uniform_and_do_not_see_padding():
    batch = keys.fold(keys.key(0), torch.arange(24_000))
    orders = torch.func.vmap(lambda k: keys.permutation(k, 4))(batch)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > LEVEL
    for count in (1, 3, 10):
        alone = keys.permutation(keys.key(1), count)
        for length in (count, count + 1, 50):
            padded = keys.permutation(keys.key(1), length, torch.tensor(count))
            assert torch.equal(padded[:count], alone)
            assert sorted(padded.tolist()) == list(range(length))


def test_several_keys_at_once_are_each_by_itself():
    batch = keys.fold(keys.key(3), torch.arange(6)).reshape(2, 3)
    folded, orders = keys.fold(batch, -5, "name", torch.tensor([1, 2, -3])), keys.permutation(batch, 9, 5)
    for i in range(2):
        for j, number in enumerate((1, 2, -3)):
            assert int(folded[i, j]) == int(keys.fold(batch[i, j], -5, "name", number))
            assert torch.equal(orders[i, j], keys.permutation(batch[i, j], 9, 5))


@pytest.mark.parametrize(
    ("length", "count"),
    # one piece of 8192 words, several, pieces that end exactly, and counts that many pieces are needed for
    [(1, 1), (7, 3), (7, 7), (8192, 5), (8193, 8193), (16_384, 100), (50_000, 1), (50_000, 300), (50_000, 40_000)],
)
def test_the_largest_words_are_those_that_sorting_finds(length, count):
    for seed in range(3):
        key = keys.key(seed)
        words = keys.bits(key, length).numpy().view(np.uint64)
        expected = np.sort(np.argsort(words)[length - count :])
        assert keys.largest(key, length, count).tolist() == expected.tolist()
    stacked = keys.fold(keys.key(0), torch.arange(2))
    together = torch.func.vmap(lambda k: keys.largest(k, length, count))(stacked)
    assert torch.equal(together, torch.stack([keys.largest(k, length, count) for k in stacked]))


def test_torch_generator_is_keyed_inside_and_untouched_outside():
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    with keys.torch_generator(keys.key(1)):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), undisturbed)
    with keys.torch_generator(keys.key(1)):
        assert torch.equal(torch.rand(3), first)
    with keys.torch_generator(keys.key(2)):
        assert not torch.equal(torch.rand(3), first)
    torch.manual_seed(5)
    with pytest.raises(KeyError), keys.torch_generator(keys.key(1)):
        raise KeyError
    assert torch.equal(torch.rand(3), undisturbed)
