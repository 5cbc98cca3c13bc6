"""Counter-based randomness: a key is an int64 tensor, and every draw is a pure function of a key.

Looped, batched, multi-process and networked runs draw the same numbers, because the key alone determines them. An
evaluation can't disturb training, because there is no hidden generator state. All functions consist of tensor
operations without branches, so they work inside ``torch.func.vmap`` on batches of keys. Outside of ``vmap`` Python and
NumPy compute the same words, since for a key or a minibatch's indices calling torch takes longer than the computation.

The generator is SplitMix64 [1]: the i-th 64-bit word of a stream is ``mix(key + i * 0x9E3779B97F4A7C15)``, where
``mix`` is its finaliser. :func:`fold` makes child keys. The same key gives the same numbers again: two steps that must
see the same minibatches share a key, and everything else folds in its own name.

[1] G. L. Steele, D. Lea, C. H. Flood: Fast splittable pseudorandom number generators. OOPSLA 2014.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.core.vmap import inside_vmap

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_LARGEST = 2**63 - 1
# Arrays without dimensions: with a NumPy scalar or a Python integer, an operation on a short array takes twice as long.
_BY_30, _BY_27, _BY_31, _TIMES_1, _TIMES_2 = (np.array(n, np.uint64) for n in (30, 27, 31, _MIX_1, _MIX_2))
Words = Any
"""Unsigned 64-bit words outside of torch: a Python integer below 2⁶⁴, or a NumPy array of uint64."""


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's shift of an int64 copies the sign bit."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    mixed: Tensor = z ^ _shift(z, 31)
    return mixed


def _mix_words(z: Words) -> Words:
    """Mix words outside of torch, an array in place."""
    if isinstance(z, int):
        z = (z ^ (z >> 30)) * _MIX_1 & _WORD
        z = (z ^ (z >> 27)) * _MIX_2 & _WORD
        return z ^ (z >> 31)
    z ^= z >> _BY_30
    z *= _TIMES_1
    z ^= z >> _BY_27
    z *= _TIMES_2
    z ^= z >> _BY_31
    return z


def _signed(word: int) -> int:
    return word - 2**64 if word > _LARGEST else word


def _plain(item: Tensor | int | str) -> bool:
    """Whether values may be read: outside of vmap, and in the CPU's memory, where nothing has to be waited for."""
    return not isinstance(item, Tensor) or (item.is_cpu and not inside_vmap())


def _words(item: Tensor | int | str) -> Words:
    if isinstance(item, Tensor) and item.dim():
        return item.long().numpy().view(np.uint64)
    return (_number(item) if isinstance(item, str) else int(item)) & _WORD


def _tensor(words: Words) -> Tensor:
    # Through NumPy this takes a third of the time, and the tensor is on the CPU for any default device.
    return torch.from_numpy(np.array(_signed(words)) if isinstance(words, int) else words.view(np.int64))


@lru_cache(maxsize=256)
def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def key(seed: int) -> Tensor:
    """Return the root key of a run.

    Args:
        seed: a Python integer of at most 64 bits.

    Returns:
        An int64 tensor of shape ``()``.

    >>> key(0) == key(0), key(0) == key(1)
    (tensor(True), tensor(False))
    """
    return _mix(torch.tensor(seed, dtype=torch.int64) + _signed(_GOLDEN))


def fold(key: Tensor, *data: int | str | Tensor) -> Tensor:
    """Return a child key: a round, a client or the name of a purpose is folded in, one after another.

    Args:
        key: int64, any shape (one key or a batch of keys).
        data: integers, names, or int64 tensors that broadcast against ``key``.

    Returns:
        int64 of the broadcast shape.

    >>> root = key(0)
    >>> bool(fold(root, 3, "batches") == fold(fold(root, 3), "batches"))
    True
    >>> fold(root, torch.arange(4)).shape
    torch.Size([4])
    """
    if _plain(key) and all(map(_plain, data)):
        words = _words(key)
        for item in data:
            words = _mix_words(_mix_words(_words(item) + _GOLDEN & _WORD) ^ (words * _MIX_2 + _GOLDEN & _WORD))
        return _tensor(words)
    for item in data:
        word = _number(item) if isinstance(item, str) else item
        word = word if isinstance(word, Tensor) else torch.tensor(word, dtype=torch.int64, device=key.device)
        key = _mix(_mix(word + _signed(_GOLDEN)) ^ (key * _signed(_MIX_2) + _signed(_GOLDEN)))
    return key


def bits(key: Tensor, *shape: int) -> Tensor:
    """Draw 64 random bits for each element, as int64: the first words of the key's stream."""
    return _stream(key, math.prod(shape)).reshape(shape)


def _stream(key: Tensor, count: int) -> Tensor:
    """Return the first words of each key's stream, ``(…, count)``."""
    if _plain(key):
        return _tensor(_stream_words(key, count))
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    return _mix(key[..., None] + counter * _signed(_GOLDEN))


def _counted(first: int, last: int) -> Words:
    return np.arange(first, last + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


_PIECE = 8192
"""Number of words that fit into the processor's cache while they are mixed."""
_COUNTED = _counted(1, _PIECE)
"""What a stream adds to its key, kept for short streams such as minibatches."""


def _stream_words(key: Tensor, count: int) -> Words:
    steps = _COUNTED[:count] if count <= _PIECE else _counted(1, count)
    words = steps + key.numpy().view(np.uint64)[..., None]
    return _mix_words(words)


def uniform(key: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw uniform numbers in [0, 1), of 53 random bits in float64 and 24 in other dtypes, so that none rounds to 1.

    >>> u = uniform(key(1), 1000)
    >>> bool((u >= 0).all() and (u < 1).all())
    True
    """
    digits = 53 if dtype == torch.float64 else 24
    return (_shift(bits(key, *shape), 64 - digits).to(torch.float64) * 2.0**-digits).to(dtype)


def normal(key: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers by Box and Muller's transform of two float64 uniforms.

    >>> normal(key(1), 2, 3).shape
    torch.Size([2, 3])
    """
    u = uniform(key, 2, *shape, dtype=torch.float64)
    return _box_muller(u[0], u[1]).to(dtype)


def normal_rows(key: Tensor, rows: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers, ``(rows, *shape)``, so that a row doesn't depend on the number of rows.

    This is for noise on a batch of examples: a padded batch gets the same noise as one that is cut to size.

    >>> bool((normal_rows(key(1), 2, 3) == normal_rows(key(1), 5, 3)[:2]).all())
    True
    """
    u = uniform(key, rows, 2, *shape, dtype=torch.float64)
    return _box_muller(u[:, 0], u[:, 1]).to(dtype)


def _box_muller(u: Tensor, v: Tensor) -> Tensor:
    return torch.sqrt(-2.0 * torch.log1p(-u)) * torch.cos(2.0 * math.pi * v)


def integers(key: Tensor, high: int, *shape: int) -> Tensor:
    """Draw uniform integers in [0, high) by scaling a 53-bit uniform, with a bias below ``high`` · 2⁻⁵³."""
    return (uniform(key, *shape, dtype=torch.float64) * high).to(torch.int64)


def permutation(key: Tensor, length: int, count: Tensor | int | None = None) -> Tensor:
    """Draw a random order of 0 … length − 1 whose first ``count`` entries are an order of 0 … count − 1.

    The first ``count`` entries don't depend on ``length``, so padding doesn't change a client's order.

    Args:
        key: int64, shape ``()``, or ``(…)`` for one order for each of several keys.
        length: number of entries of the result; a Python integer.
        count: number of real entries; default: all.

    Returns:
        int64 of shape ``(…, length)``.

    >>> order = permutation(key(5), 6, 4)
    >>> sorted(order[:4].tolist())
    [0, 1, 2, 3]
    >>> bool((permutation(key(5), 4) == order[:4]).all())
    True
    """
    if _plain(key) and (count is None or _plain(count)):
        words = _stream_words(key, length).view(np.int64)
        if count is not None and count < length:
            words[..., int(count) :] = _LARGEST
        return torch.from_numpy(words.argsort(kind="stable"))
    order = _stream(key, length)
    if count is not None:
        order = torch.where(torch.arange(length, device=key.device) < count, order, _LARGEST)
    return torch.argsort(order, stable=True)


def largest(key: Tensor, length: int, count: int) -> Tensor:
    """Draw ``count`` of the numbers 0 … length − 1 at random: the positions of the largest of the key's first words.

    Words are processed in pieces that fit into the cache, so that drawing a few of very many is fast.

    Args:
        key: int64, shape ``()``.
        length: size of the population.
        count: size of the sample, from 1 to ``length``.

    Returns:
        int64 of shape ``(count,)``, in ascending order.

    >>> largest(key(5), 6, 2).shape, largest(key(5), 3, 3)
    (torch.Size([2]), tensor([0, 1, 2]))
    """
    if not _plain(key):
        # torch compares signed numbers, so words with the first bit set would come last without the flip.
        return torch.topk(_stream(key, length) ^ -(2**63), count).indices.sort().values
    least, words, places = np.uint64(0), [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    held = 0
    for start in range(0, length, _PIECE):
        piece = _stream_words(key + _signed(start * _GOLDEN & _WORD), min(_PIECE, length - start))
        among = np.flatnonzero(piece >= least)
        words.append(piece[among])
        places.append(among + start)
        held += len(among)
        if held >= 2 * count or start + _PIECE >= length:
            best, where = np.concatenate(words), np.concatenate(places)
            kept = np.argpartition(best, held - count)[held - count :]
            words, places, held, least = [best[kept]], [where[kept]], count, best[kept].min()
    return torch.from_numpy(np.sort(places[0]))


@contextmanager
def torch_generator(key: Tensor) -> Iterator[None]:
    """Seed torch's CPU generator from a key inside the context, and restore its state afterwards.

    This is for operations that draw from that generator only: dropout, ``nn.Module.reset_parameters``.
    """
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(int(key))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
