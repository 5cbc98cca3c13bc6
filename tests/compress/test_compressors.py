"""Compressors: unbiased, as noisy as theory says, as large as they say, and safe at the ends of the number range."""

import math

import numpy as np
import pytest
import torch

from archipel.compress import COMPRESSORS, QSGD, BlockQuantisation, Dithering, Identity, Natural, RandK, TopK
from archipel.compress.packing import pack, unpack
from archipel.core import keys
from archipel.core.trees import Compressed, decoded, decoded_rows, finite, nbytes, tree_map
from archipel.states.encoding import decode, encode

UNBIASED = [
    Identity(),
    Dithering(levels=1, norm=1),
    Dithering(levels=3, norm=2),
    Dithering(levels=2, norm=3.5),
    Dithering(levels=4, norm=math.inf),
    QSGD(levels=4),
    BlockQuantisation(block=5, norm=1),
    BlockQuantisation(block=4, norm=2),
    BlockQuantisation(block=100, norm=math.inf),
    Natural(),
    RandK(k=3),
    RandK(fraction=0.5),
]
EVERY = [*UNBIASED, TopK(k=3), TopK(fraction=0.25)]
X = np.array([0.31, -1.7, 0.0, 2.9, -0.004, 0.77, 12.5, -3.3, 0.05, -0.9, 1.0])
DRAWS = 100_000


def draws(compressor, x, count=DRAWS, seed=0):
    """``(count, q)``: independent compressions of x, in pieces."""
    compress = torch.func.vmap(compressor, (None, 0))
    pieces = torch.arange(count).split(20_000)
    return torch.cat([decoded_rows(compress(x, keys.fold(keys.key(seed), piece))) for piece in pieces]).numpy()


def expected_error(compressor, x):
    """E‖Q(x) − x‖² in closed form."""
    if isinstance(compressor, Identity):
        return 0.0
    if isinstance(compressor, RandK):
        k = compressor.k or round(compressor.fraction * len(x))
        return (len(x) / k - 1) * (x**2).sum()
    if isinstance(compressor, Natural):
        low = np.array([2.0 ** math.floor(math.log2(abs(t))) if t else 0.0 for t in x])
        return ((np.abs(x) - low) * (2 * low - np.abs(x))).sum()
    if isinstance(compressor, BlockQuantisation):
        blocks = [x[i : i + compressor.block] for i in range(0, len(x), compressor.block)]
        return sum(np.abs(b).sum() * np.linalg.norm(b, compressor.norm) - (b**2).sum() for b in blocks)
    scale = np.linalg.norm(x, getattr(compressor, "norm", 2)) / compressor.levels
    fraction = (np.abs(x) / scale) % 1
    # At |x| = ‖x‖_∞ the entry is a level, and its quotient may be rounded to either side of it.
    fraction[np.isclose(fraction, 1)] = 0
    return scale**2 * (fraction * (1 - fraction)).sum()


@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
def test_unbiased_with_the_error_in_closed_form_below_omega(compressor):
    assert compressor.unbiased
    found = draws(compressor, torch.tensor(X))
    # Five standard errors, estimated from the draws; and roundings of float64 where there is no spread.
    spread = found.std(axis=0) / math.sqrt(DRAWS)
    assert np.all(np.abs((found - X).mean(axis=0)) <= 5 * spread + 1e-12)
    errors = ((found - X) ** 2).sum(axis=1)
    expected = expected_error(compressor, X)
    assert abs(errors.mean() - expected) <= 5 * errors.std() / math.sqrt(DRAWS) + 1e-12
    assert expected <= compressor.omega(len(X)) * (X**2).sum() * (1 + 1e-12)


def flat_with_a_peak(q):
    """Where ‖x‖_1 ‖x‖_∞ / ‖x‖² is largest, by the derivation in dithering.py."""
    return np.concatenate([[1.0], np.full(q - 1, 1 / (1 + math.sqrt(q)))])


@pytest.mark.parametrize(
    ("compressor", "x"),
    [
        (BlockQuantisation(block=9, norm=1), np.ones(9)),
        (BlockQuantisation(block=9, norm=1.5), np.ones(9)),
        (BlockQuantisation(block=9, norm=2), np.ones(9)),
        (BlockQuantisation(block=9, norm=math.inf), flat_with_a_peak(9)),
        (BlockQuantisation(block=3, norm=2), np.ones(9)),
        (RandK(k=2), np.arange(9.0)),
        (Natural(), np.full(9, 4 / 3)),
        # half-way between two levels everywhere: t = 2 · 0.25 / 1
        (Dithering(levels=2, norm=1), np.full(4, 0.25)),
    ],
    ids=repr,
)
def test_omega_is_attained(compressor, x):
    assert expected_error(compressor, x) == pytest.approx(compressor.omega(len(x)) * (x**2).sum(), rel=1e-12)


@pytest.mark.parametrize("norm", [1, 1.5, 2, 3.5, math.inf])
@pytest.mark.parametrize("levels", [1, 2, 3, 7, 50])
def test_no_vector_is_noisier_than_omega(norm, levels):
    """A search over vectors of all kinds, against the bounds that were proven."""
    generator = np.random.default_rng(0)
    for q in (1, 2, 7, 40):
        dithering, block = Dithering(levels, norm), BlockQuantisation(q, norm)
        uneven = generator.normal(size=(40, q)) ** generator.choice([1, 3, 5], (40, 1))
        tried = [np.ones(q), flat_with_a_peak(q), *uneven]
        for x in tried:
            for compressor in (dithering, block):
                bound = compressor.omega(q) * (x**2).sum()
                assert expected_error(compressor, x) <= bound * (1 + 1e-9) + 1e-9
        assert Dithering(levels, 2).omega(q) <= QSGD(levels).omega(q) == min(q / levels**2, math.sqrt(q) / levels)


@pytest.mark.parametrize("compressor", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_message_is_as_large_as_it_says_and_arrives_as_it_was(compressor, dtype):
    x = torch.randn(4, 3, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    every_key = keys.fold(keys.key(0), torch.arange(4))
    together = torch.func.vmap(compressor)(x, every_key)
    for i in range(4):
        one = compressor(x[i], every_key[i])
        back = one.decode()
        assert back.shape == x[i].shape
        assert back.dtype == dtype
        # several at once are what each is by itself, in its bits
        assert all(torch.equal(packed[i], one.parts[name]) for name, packed in together.parts.items())
        assert torch.equal(decoded_rows(together)[i], back)
        assert one.nbytes == nbytes({"reply": one}) == math.ceil(one.bits / 8)
        assert one.bits == compressor.bits(15, dtype)
        assert nbytes(together) == 4 * one.nbytes
        # over a wire, in a tree and by itself
        sent = decode(encode({"a": {"x": one}, "b": torch.ones(1)}))
        assert list(sent) == ["a", "b"]
        assert sent["a"]["x"].coding == compressor
        assert torch.equal(decoded(sent)["a"]["x"], back)
        assert torch.equal(decode(encode(one)).decode(), back)


def test_bits_by_hand():
    assert Identity().bits(10) == 320
    assert Dithering(levels=1).bits(10) == 32 + 10 * 2  # 3 values
    assert Dithering(levels=3).bits(10) == 32 + 10 * 3  # 7
    assert Dithering(levels=4).bits(10) == 32 + 10 * 4  # 9
    assert QSGD(levels=127).bits(10, torch.float64) == 64 + 10 * 8  # 255
    assert BlockQuantisation(block=4).bits(10) == 3 * 32 + 10 * 2
    assert Natural().bits(10) == 10 * 9
    assert Natural().bits(10, torch.float64) == 10 * 12
    assert RandK(k=3).bits(10) == 64 + 3 * 32
    assert TopK(k=3).bits(16) == 3 * (32 + 4)
    assert TopK(k=3).bits(17) == 3 * (32 + 5)


@pytest.mark.parametrize("bits", range(1, 57))
def test_packing_is_dense_and_undone_for_every_width(bits):
    generator = torch.Generator().manual_seed(bits)
    for count in (1, 7, 8, 13):
        values = torch.randint(0, 2**bits, (count,), generator=generator)
        values[0], values[-1] = 2**bits - 1, 2**bits - 2
        packed = pack(values, bits)
        # Python's integers as witness: the values are the digits of one number, the lowest first.
        number = sum(int(value) << (bits * i) for i, value in enumerate(values))
        assert bytes(packed.tolist()) == number.to_bytes(math.ceil(count * bits / 8), "little")
        assert torch.equal(unpack(packed, bits, count), values)


def test_top_k_takes_the_largest_and_of_equal_ones_the_first():
    x = torch.tensor([1.0, -3.0, 2.0, 3.0, -1.0, 0.0])
    for k in range(1, 7):
        order = sorted(range(6), key=lambda i: (-abs(x[i].item()), i))[:k]
        expected = torch.zeros(6).index_copy(0, torch.tensor(order), x[order])
        assert torch.equal(TopK(k=k)(x, keys.key(0)).decode(), expected)
    assert not TopK(k=1).unbiased
    # ‖Q(x) − x‖² ≤ (1 − k/q) ‖x‖², equal where all entries are
    generator = np.random.default_rng(0)
    for x in generator.normal(size=(50, 8)):
        left = x - TopK(k=3)(torch.tensor(x), keys.key(0)).decode().numpy()
        assert (left**2).sum() <= TopK(k=3).omega(8) * (x**2).sum()
    left = 1 - TopK(k=3)(torch.ones(8), keys.key(0)).decode()
    assert left.square().sum() == TopK(k=3).omega(8) * 8


def test_rand_k_takes_each_entry_as_often_and_k_at_a_time():
    found = draws(RandK(k=3), torch.ones(7, dtype=torch.float64), count=20_000) != 0
    assert set(found.sum(axis=1)) == {3}
    # five standard errors of a frequency of 3/7 among 20,000
    assert found.mean(axis=0) == pytest.approx(3 / 7, abs=5 * math.sqrt(3 / 7 * 4 / 7 / 20_000))


@pytest.mark.parametrize("compressor", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_stays_zero_and_the_ends_of_the_range_stay_finite(compressor, dtype):
    info = torch.finfo(dtype)
    assert torch.equal(compressor(torch.zeros(6, dtype=dtype), keys.key(0)).decode(), torch.zeros(6, dtype=dtype))
    tiny = torch.tensor([1.0, -1.0, 3.0, 0.0, 2.0, 7.0], dtype=dtype) * info.smallest_normal * info.eps
    assert tiny[0] > 0  # the smallest number there is
    huge = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.9, 1.0], dtype=dtype) * info.max
    for x in (tiny, huge):
        for seed in range(20):
            back = compressor(x, keys.key(seed)).decode()
            if x is tiny or not isinstance(compressor, RandK):  # which multiplies by q/k
                assert finite(back)
            assert torch.equal(back.sign() * x.sign(), back.sign().abs())  # no sign was changed


@pytest.mark.parametrize("norm", [1, 2, 3, math.inf])
def test_a_norm_that_overflows_is_cut_and_the_mean_is_right(norm):
    x = torch.full((8,), 3e38)
    found = draws(Dithering(levels=2, norm=norm), x, count=20_000)
    assert np.isfinite(found).all()
    spread = found.astype(float).std(axis=0) / math.sqrt(20_000)
    # five standard errors; and, where nothing is spread, the rounding of a float32
    assert np.all(np.abs(found.astype(float).mean(axis=0) - 3e38) <= 5 * spread + 3e38 * 1e-7)


@pytest.mark.parametrize("norm", [1.0, 2.0, 2.5, 7.0, math.inf])
def test_a_single_entry_is_its_own_norm_whatever_rounding_does(norm):
    for value in torch.rand(200, generator=torch.Generator().manual_seed(0)):
        x = torch.stack([torch.zeros(()), -value])
        assert torch.equal(Dithering(levels=3, norm=norm)(x, keys.key(1)).decode(), x)


@pytest.mark.parametrize("compressor", [c for c in EVERY if not isinstance(c, RandK)], ids=repr)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_isnt_finite_is_seen(compressor, value):
    x = torch.tensor([1.0, 2.0, value, -1.0])
    assert not finite({"reply": compressor(x, keys.key(0))})


def test_the_key_decides():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for compressor in (Dithering(levels=2), BlockQuantisation(block=10), Natural(), RandK(k=5)):
        one, same, other = (compressor(x, keys.key(seed)).decode() for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dithering(levels=0), "Dithering's levels must be a whole number of at least 1; given 0"),
        (lambda: Dithering(levels=2.5), "whole number of at least 1; given 2.5"),
        (lambda: Dithering(levels=2**31), r"at most 2\^30"),
        (lambda: QSGD(levels=-1), "QSGD's levels"),
        (lambda: Dithering(levels=1, norm=0.5), "Dithering's norm is the order of a norm.*at least 1.*given 0.5"),
        (lambda: Dithering(levels=1, norm=math.nan), "given nan"),
        (lambda: BlockQuantisation(block=0), "BlockQuantisation's block"),
        (lambda: BlockQuantisation(block=3, norm="2"), "given '2'"),
        (lambda: RandK(), "RandK takes exactly one of k and fraction; given k=None and fraction=None"),
        (lambda: TopK(k=2, fraction=0.5), "TopK takes exactly one"),
        (lambda: TopK(k=0), "TopK's k must be a whole number of at least 1; given 0"),
        (lambda: RandK(fraction=0.0), "fraction must be above 0 and at most 1; given 0.0"),
        (lambda: TopK(fraction=1.5), "given 1.5"),
        (lambda: RandK(k=4)(torch.ones(3), keys.key(0)), "k = 4 is more than the 3 entries.*fraction"),
        (lambda: TopK(k=4).omega(3), "k = 4 is more than the 3 entries"),
        (lambda: Natural()(torch.ones(0), keys.key(0)), "nothing to compress"),
    ],
)
def test_what_cant_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_only_tensors_of_real_numbers_are_compressed():
    with pytest.raises(TypeError, match=r"Natural compresses float32 or float64; given torch\.int64"):
        Natural()(torch.ones(3, dtype=torch.int64), keys.key(0))
    with pytest.raises(TypeError, match="Identity compresses a tensor; given a list"):
        Identity()([1.0], keys.key(0))


class Halves(Identity):
    """A compressor of somebody's own."""


def test_a_compressor_of_ones_own_crosses_a_wire_once_both_ends_know_it(monkeypatch):
    sent = Halves()(torch.ones(2), keys.key(0))
    with pytest.raises(ValueError, match=r"does not know the compressor Halves.*COMPRESSORS"):
        encode(sent)
    monkeypatch.setitem(COMPRESSORS, "Halves", Halves)
    assert isinstance(decode(encode(sent)).coding, Halves)


def test_trees_of_packed_tensors_keep_what_they_are():
    one = Natural()(torch.ones(3, 2), keys.key(0))
    same = tree_map(lambda t: t, {"a": one})["a"]
    assert isinstance(same, Compressed)
    assert (same.coding, same.shape, same.dtype) == (one.coding, (3, 2), torch.float32)
