"""Partitions of one pooled data set over clients, and splits within a client."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]
Seed = int | np.random.SeedSequence | np.random.Generator


def dirichlet_by_class(labels: ArrayLike, clients: int, alpha: float, seed: Seed, minimum: int = 1) -> list[Indices]:
    """Divide every class over the clients in proportions drawn from a symmetric Dirichlet distribution.

    For each class k, p_k ~ Dirichlet(α, …, α) and client i receives n_ik examples of it with |n_ik − n_k p_ki| < 1.
    The counts come from systematic rounding, n_ik = ⌊n_k P_ki + u⌋ − ⌊n_k P_k,i−1 + u⌋ with cumulated P and one uniform
    u a class, so that E n_ik = n_k p_ki also where a class has fewer examples than there are clients.
    Every index is handed out exactly once, for any α. Clients left with fewer than `minimum` examples receive random
    ones of the largest clients, in one pass; nothing is ever drawn anew.

    Args:
        labels: (n,) class of each example.
        clients: number of clients m ≥ 1.
        alpha: concentration α > 0; small: each class sits at few clients; large: all clients alike.
        seed: what determines the draw: a whole number, a seed sequence or a generator.
        minimum: the fewest examples that a client may end with.

    Returns:
        m sorted arrays of indices into `labels`.

    Raises:
        ValueError: an argument out of range, or fewer than m · `minimum` examples.

    >>> parts = dirichlet_by_class([0, 0, 0, 1, 1, 1, 2], clients=3, alpha=0.5, seed=0)
    >>> sorted(int(i) for part in parts for i in part)
    [0, 1, 2, 3, 4, 5, 6]
    >>> min(len(part) for part in parts)
    1

    Source: Yurochkin et al. (2019), Bayesian nonparametric federated learning of neural networks, ICML, Sec. 4.
    """
    labels = one_dimensional(labels)
    check_clients(len(labels), clients, minimum)
    check_concentration("alpha", alpha)
    rng = np.random.default_rng(seed)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    by_class = np.argsort(labels, kind="stable")
    first_of_class = np.unique(labels[by_class], return_index=True)[1]
    for one_class in np.split(by_class, first_of_class[1:]):
        members = rng.permutation(one_class)
        proportions = _symmetric_dirichlet(rng, clients, alpha)
        cuts = np.floor(np.cumsum(proportions)[:-1] * len(members) + rng.random()).astype(np.int64)
        for part, share in zip(parts, np.split(members, np.minimum(cuts, len(members))), strict=True):
            part.append(share)
    held = top_up([np.concatenate(part) for part in parts], minimum, rng)
    return [np.sort(part) for part in held]


def iid(labels: ArrayLike, clients: int, seed: Seed, minimum: int = 1) -> list[Indices]:
    """Deal all examples out at random, in parts whose sizes differ by one at most.

    Args:
        labels: (n,) one entry for each example; only their number matters.
        clients: number of clients m ≥ 1.
        seed: what determines the draw.
        minimum: the fewest examples that a client may end with.

    Returns:
        m sorted arrays of indices into `labels`.

    Raises:
        ValueError: an argument out of range, or fewer than m · `minimum` examples.

    >>> [len(part) for part in iid(range(10), clients=3, seed=0)]
    [4, 3, 3]
    """
    labels = one_dimensional(labels)
    check_clients(len(labels), clients, minimum)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def train_test_split(
    count: int, test: float, validation: float, seed: Seed, name: str = "the data"
) -> dict[str, Indices]:
    """Divide the examples of one client into training, validation and test parts, each at random.

    Both parts are fractions of all the client's examples. The test part is cut first, so that it stays the same
    whatever `validation` is. Training gets at least one example, as does each part whose fraction is above 0.

    Args:
        count: number of examples n.
        test: fraction of the examples kept for testing, 0 ≤ test < 1.
        validation: fraction kept for validation; test + validation < 1.
        seed: what determines the draw.
        name: the client's name, for error messages.

    Returns:
        Index arrays "train" and "test", and "validation" where its fraction is above 0.

    Raises:
        ValueError: fractions out of range, or too few examples for the parts asked for.

    >>> {part: len(rows) for part, rows in train_test_split(10, test=0.3, validation=0.2, seed=0).items()}
    {'train': 5, 'test': 3, 'validation': 2}
    """
    check_fractions(test, validation)
    needed = 1 + (test > 0) + (validation > 0)
    if count < needed:
        raise ValueError(
            f"{name} holds {count} example{'s' * (count != 1)}, too few to be split with test={test} and "
            f"validation={validation}: {needed} are needed. Give it more, leave the client out, or set fractions to 0."
        )
    # In tiny clients, rounding must leave an example to every other part.
    tests = min(max(round(count * test), 1), count - needed + 1) if test > 0 else 0
    validations = min(max(round(count * validation), 1), count - 1 - tests) if validation > 0 else 0
    order = np.random.default_rng(seed).permutation(count)
    parts = {"train": order[tests + validations :], "test": order[:tests]}
    return parts | ({"validation": order[tests : tests + validations]} if validation > 0 else {})


def check_fractions(test: float, validation: float) -> None:
    """Refuse fractions of a split that are negative or leave nothing to train on."""
    for name, value in (("test", test), ("validation", validation)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}; it is a fraction of each client's examples, from 0 up to but not 1.")
    if test + validation >= 1:
        raise ValueError(
            f"test + validation is {test + validation}, which leaves nothing to train on; keep it below 1."
        )


def _symmetric_dirichlet(rng: np.random.Generator, size: int, alpha: float) -> NDArray[np.float64]:
    proportions: NDArray[np.float64] = rng.dirichlet(np.full(size, alpha))
    if np.isfinite(proportions).all():
        return proportions
    # The limit α → 0, where the draw underflows: one client holds the whole class.
    proportions = np.zeros(size)
    proportions[rng.integers(size)] = 1
    return proportions


def top_up(parts: list[Indices], minimum: int, rng: np.random.Generator) -> list[Indices]:
    """Bring every part to `minimum` by levelling the largest ones down to a common height, no further than needed."""
    sizes = np.array([len(part) for part in parts])
    lacking = np.maximum(minimum - sizes, 0)
    if not lacking.any():
        return parts
    low, high = minimum, int(sizes.max())
    while low < high:  # the highest level that frees enough examples
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= lacking.sum() else (low, level - 1)
    given = np.maximum(sizes - low, 0)
    given[np.flatnonzero(given)[: given.sum() - lacking.sum()]] -= 1
    # Shuffled first, so that what a client gives away has the class proportions of what it holds.
    parts = [rng.permutation(part) if gives else part for part, gives in zip(parts, given, strict=True)]
    pool = np.concatenate([part[len(part) - gives :] for part, gives in zip(parts, given, strict=True)])
    kept = [part[: len(part) - gives] for part, gives in zip(parts, given, strict=True)]
    received = np.split(rng.permutation(pool), np.cumsum(lacking)[:-1])
    return [np.concatenate(pair) for pair in zip(kept, received, strict=True)]


def one_dimensional(labels: ArrayLike) -> NDArray[np.generic]:
    """Read one entry for each example, (n,)."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels have shape {array.shape}; give one label for each example, shape (n,).")
    return array


def check_clients(examples: int, clients: int, minimum: int) -> None:
    """Refuse a number of clients and a minimum that the examples can't give."""
    if clients < 1:
        raise ValueError(f"clients is {clients}; a federation has 1 client or more.")
    if minimum < 0:
        raise ValueError(f"minimum is {minimum}; it is the fewest examples a client may hold, 0 or more.")
    if examples < clients * minimum:
        raise ValueError(
            f"{examples} examples can't give {clients} clients {minimum} each, which takes {clients * minimum}. "
            "Take fewer clients, a smaller minimum or more data."
        )


def check_concentration(name: str, alpha: float) -> None:
    """Refuse what isn't a Dirichlet distribution's concentration."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"{name} is {alpha}; a Dirichlet concentration is a finite number above 0, such as 1.0.")


def equal_sizes(count: int, clients: int) -> Indices:
    """Divide a count into sizes that differ by at most one, the larger ones first."""
    return np.full(clients, count // clients) + (np.arange(clients) < count % clients)


def shuffled_classes(
    labels: ArrayLike, clients: int, minimum: int, rng: np.random.Generator
) -> tuple[list[Indices], Indices]:
    """Shuffle the rows of each class; return them and each example's class as a code 0 … K−1."""
    codes = np.unique(one_dimensional(labels), return_inverse=True)[1]
    check_clients(len(codes), clients, minimum)
    if not len(codes):
        raise ValueError("labels is empty; there is nothing to divide.")
    order = np.argsort(codes, kind="stable")
    return [rng.permutation(rows) for rows in np.split(order, np.cumsum(np.bincount(codes))[:-1])], codes


def hand_out(members: Sequence[Indices], counts: Indices) -> list[Indices]:
    """Give client i the next counts[i, k] rows of each class k."""
    piles = [np.split(rows, np.cumsum(column)) for rows, column in zip(members, counts.T, strict=True)]
    return [np.sort(np.concatenate([pile[i] for pile in piles])) for i in range(len(counts))]
