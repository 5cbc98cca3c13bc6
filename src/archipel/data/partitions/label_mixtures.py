"""Partitions by label mixtures: each client has its own distribution over classes, and draws its examples from it.

All return m sorted index arrays in which every index occurs exactly once, unless replication is asked for.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archipel.data.partitions.splits import (
    Indices,
    Seed,
    check_concentration,
    equal_sizes,
    hand_out,
    one_dimensional,
    shuffled_classes,
)

Floats = NDArray[np.float64]


def dirichlet_by_client(
    labels: ArrayLike, clients: int, alpha: float, seed: Seed, minimum: int = 1, replicate: bool = False
) -> list[Indices]:
    """Give every client a label distribution of its own, drawn around the pooled one.

    q_i ~ Dirichlet(α·p) with p the classes' shares in the pool, and client i draws its n/m labels from q_i. All clients
    draw at once. If they draw more of a class than there is, chance decides who gets it, and the others draw again from
    the classes that are left. Each pass exhausts a class or is the last, so there are at most K. For a small α the
    result differs from the q_i drawn, since not every client can have a class to itself.

    Args:
        labels: (n,) class of each example.
        clients: number of clients m ≥ 1, which are of equal size.
        alpha: concentration α > 0; small: a client holds few classes; large: all clients look like the pool.
        seed: what determines the draw.
        minimum: the fewest examples that a client may end with.
        replicate: clients draw as if each were alone: an example may be at several of them, never twice at one.

    Returns:
        m sorted arrays of indices into `labels`.

    Raises:
        ValueError: an argument out of range, or fewer than m · `minimum` examples.

    >>> parts = dirichlet_by_client([0, 0, 0, 1, 1, 1], clients=2, alpha=0.1, seed=0)
    >>> [len(part) for part in parts]
    [3, 3]

    Source: Hsu, Qi and Brown (2019), arXiv:1909.06335, Sec. 3, where clients draw in turn and the last gets the rest.
    """
    members, codes = shuffled_classes(labels, clients, minimum, rng := np.random.default_rng(seed))
    check_concentration("alpha", alpha)
    supply = np.array([len(rows) for rows in members])
    wishes = np.stack([_dirichlet(rng, alpha * supply / supply.sum()) for _ in range(clients)])
    sizes = equal_sizes(len(codes), clients)
    if not replicate:
        return hand_out(members, _allocate(rng, supply, sizes, wishes))
    alone = [_allocate(rng, supply, sizes[i : i + 1], wishes[i : i + 1])[0] for i in range(clients)]
    drawn = [[rng.choice(rows, n, replace=False) for rows, n in zip(members, counts, strict=True)] for counts in alone]
    return [np.sort(np.concatenate(parts)) for parts in drawn]


def pachinko(
    labels: ArrayLike,
    coarse: ArrayLike,
    clients: int,
    seed: Seed,
    alpha: float = 0.1,
    beta: float = 10.0,
    minimum: int = 1,
) -> list[Indices]:
    """Draw through two levels of labels: a client draws a superclass, then one of its classes, then an example.

    θ_i ~ Dirichlet(α) over superclasses, φ_is ~ Dirichlet(β) over the classes of s. Clients draw n/m examples in turn,
    without replacement. An exhausted class is removed from φ_is and an exhausted superclass from θ_i; the rest is
    normalised again, so that the last client gets what remains.

    Args:
        labels: (n,) class of each example.
        coarse: (n,) its superclass; every class has one.
        clients: number of clients m ≥ 1, which are of equal size.
        seed: what determines the draw.
        alpha: concentration of superclasses at a client.
        beta: concentration of classes within a superclass.
        minimum: the fewest examples that a client may end with.

    Raises:
        ValueError: an argument out of range, or a class with two superclasses.

    >>> parts = pachinko([0, 1, 2, 3] * 3, [0, 0, 1, 1] * 3, clients=3, seed=0)
    >>> [len(part) for part in parts]
    [4, 4, 4]

    Source: Reddi et al. (2021), Adaptive federated optimization, ICLR, App. F.1.
    """
    members, codes = shuffled_classes(labels, clients, minimum, rng := np.random.default_rng(seed))
    check_concentration("alpha", alpha)
    check_concentration("beta", beta)
    supers = np.unique(one_dimensional(coarse), return_inverse=True)[1]
    if len(supers) != len(codes):
        raise ValueError(f"coarse has {len(supers)} entries for {len(codes)} labels; give each example one of both.")
    parent = np.array([supers[rows[0]] for rows in members])
    if (parent[codes] != supers).any():
        lost = int(codes[parent[codes] != supers][0])
        raise ValueError(f"class number {lost} has examples of two superclasses; each class belongs to one.")
    left = np.array([len(rows) for rows in members])
    counts = np.zeros((clients, len(members)), dtype=np.int64)
    for i, size in enumerate(equal_sizes(len(codes), clients)):
        theta = _dirichlet(rng, np.full(parent.max() + 1, alpha))
        phi = np.zeros(len(members))
        for s in range(len(theta)):
            phi[parent == s] = _dirichlet(rng, np.full((parent == s).sum(), beta))
        while lacking := size - counts[i].sum():  # each pass exhausts a class or is the last
            q = _two_levels(theta, phi, parent, left > 0)
            taken = np.minimum(rng.multinomial(lacking, q), left)
            counts[i] += taken
            left -= taken
    return hand_out(members, counts)


def _two_levels(theta: Floats, phi: Floats, parent: Indices, there: NDArray[np.bool_]) -> Floats:
    """P(class) = θ_s φ_sf, both normalised over what is there."""
    inner = _restricted(phi, there, parent)
    outer = _restricted(theta, np.bincount(parent, weights=there, minlength=len(theta)) > 0, np.zeros(len(theta), int))
    return outer[parent] * inner


def _restricted(p: Floats, there: NDArray[np.bool_], group: Indices) -> Floats:
    """Normalise p within each group over what is there; uniform where underflow left no mass."""
    mass = np.bincount(group, weights=p * there)[group]
    number = np.bincount(group, weights=there)[group]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(there, np.where(mass > 0, p / mass, 1 / number), 0.0)


def _allocate(rng: np.random.Generator, supply: Indices, sizes: Indices, wishes: Floats) -> Indices:
    """Draw (m, K) counts with the given row sums from each row's wishes, never more of a class than its supply."""
    counts = np.zeros(wishes.shape, dtype=np.int64)
    left = supply.copy()
    while (lacking := sizes - counts.sum(1)).any():
        q = np.stack([_restricted(row, left > 0, np.zeros(len(row), dtype=np.int64)) for row in wishes])
        asked = rng.multinomial(lacking, q)
        for k in np.flatnonzero(asked.sum(0) > left):
            asked[:, k] = rng.multivariate_hypergeometric(asked[:, k], left[k], method="marginals")
        counts += asked
        left -= asked.sum(0)
    return counts


def _dirichlet(rng: np.random.Generator, concentration: Floats) -> Floats:
    """Draw from a Dirichlet distribution; where the draw underflows, one entry is 1, the limit for α → 0."""
    concentration = np.maximum(concentration, np.finfo(np.float64).tiny)
    drawn: Floats = rng.dirichlet(concentration)
    if np.isfinite(drawn).all():
        return drawn
    return rng.multinomial(1, concentration / concentration.sum()).astype(np.float64)
