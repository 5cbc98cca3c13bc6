"""Partitions into few classes per client, into unequal sizes, and by owner.

All return m sorted index arrays in which every index occurs exactly once.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from archipel.data.partitions.splits import (
    Indices,
    Seed,
    check_clients,
    equal_sizes,
    hand_out,
    one_dimensional,
    shuffled_classes,
    top_up,
)


def pathological(labels: ArrayLike, clients: int, classes: int, seed: Seed, minimum: int = 1) -> list[Indices]:
    """Give every client exactly k classes; each class is divided evenly over the clients that have it.

    Clients choose in turn, at random among the classes that the fewest have, so that holders differ by one at most.

    Args:
        labels: (n,) class of each example.
        clients: number of clients m ≥ 1.
        classes: k, how many classes a client has.
        seed: what determines the draw.
        minimum: the fewest examples that a client may end with.

    Returns:
        m sorted arrays of indices into `labels`.

    Raises:
        ValueError: a class that would be left over (m·k < K), one too small for its holders, or a client that would
            end below `minimum`, since there are no more examples of its k classes.

    >>> parts = pathological([0, 0, 1, 1, 2, 2], clients=3, classes=2, seed=0)
    >>> [len(part) for part in parts]
    [2, 2, 2]
    """
    members, _ = shuffled_classes(labels, clients, minimum, rng := np.random.default_rng(seed))
    if not 1 <= classes <= len(members):
        raise ValueError(f"classes is {classes}; a client has between 1 and all {len(members)} classes of the data.")
    if clients * classes < len(members):
        raise ValueError(
            f"{clients} clients with {classes} of {len(members)} classes each leave classes that nobody has. "
            f"Take classes={math.ceil(len(members) / clients)} or more, or more clients."
        )
    has = np.zeros((clients, len(members)), dtype=np.int64)
    for i in range(clients):
        has[i, np.lexsort((rng.random(len(members)), has.sum(0)))[:classes]] = 1
    for k, (rows, holders) in enumerate(zip(members, has.sum(0), strict=True)):
        if len(rows) < holders:
            raise ValueError(
                f"class number {k} has {len(rows)} examples for {holders} clients, fewer than one each. "
                "Take fewer clients or fewer classes per client."
            )
    counts = np.zeros_like(has)
    for k, rows in enumerate(members):
        counts[rng.permutation(np.flatnonzero(has[:, k])), k] = equal_sizes(len(rows), int(has[:, k].sum()))
    if (least := int(counts.sum(1).min())) < minimum:
        raise ValueError(
            f"a client would hold {least} examples, fewer than minimum={minimum}, and has no claim to other classes. "
            "Take fewer clients, more classes per client, or a smaller minimum."
        )
    return hand_out(members, counts)


def shards(labels: ArrayLike, clients: int, per_client: int, seed: Seed, minimum: int = 1) -> list[Indices]:
    """Sort by label, cut into m·s shards of equal size, deal s shards to each client.

    A shard may lie across the border between two classes. For exactly k classes per client, see `pathological`.

    Args:
        labels: (n,) class of each example; examples of a class are in random order.
        clients: number of clients m ≥ 1.
        per_client: s, shards per client, 2 in the paper.
        seed: what determines the draw.
        minimum: the fewest examples that a client may end with.

    Raises:
        ValueError: an argument out of range, or fewer examples than shards or than m · `minimum`.

    >>> [len(part) for part in shards(range(12), clients=3, per_client=2, seed=0)]
    [4, 4, 4]

    Source: McMahan et al. (2017), AISTATS, Sec. 3: 200 shards of 300 MNIST digits, two a client.
    """
    members, codes = shuffled_classes(labels, clients, minimum, rng := np.random.default_rng(seed))
    if not 1 <= per_client <= len(codes) // clients:
        raise ValueError(
            f"per_client is {per_client}; {len(codes)} examples make between 1 and {len(codes) // clients} shards "
            f"for each of {clients} clients."
        )
    cut = np.array_split(np.concatenate(members), clients * per_client)
    dealt = rng.permutation(len(cut)).reshape(clients, per_client)
    parts = [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]
    return [np.sort(part) for part in top_up(parts, minimum, rng)]


def quantity(labels: ArrayLike, clients: int, exponent: float, seed: Seed, minimum: int = 1) -> list[Indices]:
    """Deal all examples out at random, in sizes that fall by a power law: n_i ∝ i^(−exponent), i = 1 … m.

    Args:
        labels: (n,) one entry for each example; only their number matters.
        clients: number of clients m ≥ 1; the first holds the most.
        exponent: 0 for equal sizes, 1 for Zipf's law.
        seed: what determines the draw.
        minimum: the fewest examples that a client may end with; the largest clients give what lacks.

    Raises:
        ValueError: an argument out of range, or fewer than m · `minimum` examples.

    >>> [len(part) for part in quantity(range(11), clients=3, exponent=1.0, seed=0)]
    [6, 3, 2]
    """
    count = len(one_dimensional(labels))
    check_clients(count, clients, minimum)
    if not (math.isfinite(exponent) and exponent >= 0):
        raise ValueError(f"exponent is {exponent}; sizes fall as rank^−exponent, so it is a finite number, 0 or more.")
    shares = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    cuts = np.rint(np.cumsum(shares)[:-1] / shares.sum() * count).astype(np.int64)
    rng = np.random.default_rng(seed)
    return [np.sort(part) for part in top_up(np.split(rng.permutation(count), cuts), minimum, rng)]


def by_owner(owners: ArrayLike, minimum: int = 1) -> list[Indices]:
    """Give every owner's examples to one client, as real data come: by writer, person, hospital.

    Args:
        owners: (n,) the owner of each example, numbers or text; clients are in the owners' sorted order.
        minimum: the fewest examples that an owner may have.

    Raises:
        ValueError: an owner with fewer than `minimum`, by name: other owners' examples can't replace them.

    >>> [part.tolist() for part in by_owner(["b", "a", "b"])]
    [[1], [0, 2]]
    """
    owners = one_dimensional(owners)
    check_clients(len(owners), 1, minimum)
    names, codes, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    if (sizes < minimum).any():
        poor = names[sizes < minimum]
        raise ValueError(
            f"{len(poor)} of {len(names)} owners have fewer than minimum={minimum} examples (the first: {poor[0]!s}). "
            "Leave them out, or take a smaller minimum."
        )
    return [np.sort(part) for part in np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])]
