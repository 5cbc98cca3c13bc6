"""A vector for each pair i < j of m clients: ``(m(m − 1)/2, d)``, in the order of ``torch.triu_indices``.

What a vector is for (i, j) its opposite is for (j, i), so each pair is kept once. The pairs (i, i + 1), …, (i, m − 1)
lie together, and all here goes by these rows: a row stays in the processor's cache while it is worked on, and nothing
is made that is as large as all pairs. Moving them through the memory is what costs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from archipel.core.trees import Tree, leaves, tree_map

Places = slice | Tensor

log = logging.getLogger("archipel")


def rows(active: Tensor, *, both: bool) -> Iterator[tuple[int, Places, Places]]:
    """Pairs with a member in ``active``, or with both, by rows: i, the j > i, and where the pairs (i, j) lie.

    Places are slices where they are the whole row, so that tensors indexed by them are views.

    >>> list(rows(torch.tensor([True, True, False]), both=True))
    [(0, tensor([1]), tensor([0]))]
    >>> list(rows(torch.tensor([True, False, False]), both=False))
    [(0, slice(1, 3, None), slice(0, 2, None))]
    """
    m, end, there = len(active), 0, active.numpy()
    for i in range(m - 1):
        start, end = end, end + m - 1 - i
        due = there[i] & there[i + 1 :] if both else there[i] | there[i + 1 :]
        if due.all():
            yield i, slice(i + 1, m), slice(start, end)
        elif due.any():
            found = torch.from_numpy(due.nonzero()[0])
            yield i, found + i + 1, found + start


def lengths(delta: Tensor) -> Tensor:
    """Return the norm of each vector, in one pass that keeps nothing else."""
    norms: Tensor = torch.linalg.vector_norm(delta, dim=1)
    return norms


def ascend(
    delta: Tensor, length: Tensor, kept: Tensor, omega: Tensor, active: Tensor, *, both: bool
) -> tuple[Tensor, Tensor]:
    """δ_ij ← ω_i − ω_j + k_ij δ_ij for the pairs of :func:`rows`, others as they are; and all lengths ‖δ_ij‖.

    Args:
        delta: ``(pairs, d)``.
        length: ``(pairs,)``, the lengths before.
        kept: ``(pairs,)``, k.
        omega: ``(m, d)``.
        active: ``(m,)``, bool.
        both: whether both members must be active.

    >>> zero, omega = torch.zeros(1, 1), torch.tensor([[5.0], [2.0]])
    >>> ascend(zero, zero[0], zero[0], omega, torch.tensor([True, True]), both=True)
    (tensor([[3.]]), tensor([3.]))
    """
    new, length = torch.empty_like(delta) if active.all() else delta.clone(), length.clone()
    for i, j, at in rows(active, both=both):
        new[at] = row = torch.addcmul(omega[i] - omega[j], kept[at, None], delta[at])
        length[at] = lengths(row)
    return new, length


def pulls(delta: Tensor, factor: Tensor, active: Tensor) -> Tensor:
    """Σ_j f_ij δ_ij, with δ_ji = −δ_ij, for each client that is active: ``(m, d)``. Others' rows lack terms.

    Args:
        delta: ``(pairs, d)``.
        factor: ``(pairs,)``, f.
        active: ``(m,)``, bool.

    >>> pulls(torch.tensor([[1.0], [2.0], [4.0]]), torch.ones(3), torch.tensor([True, True, True]))
    tensor([[ 3.],
            [ 3.],
            [-6.]])
    """
    total = delta.new_zeros(len(active), delta.shape[1])
    for i, j, at in rows(active, both=False):
        row, f = delta[at], factor[at]
        total[i] += f @ row
        total[j] = total[j].addcmul_(f[:, None], row, value=-1)
    return total


def flat(stacked: Tree) -> Tensor:
    """Each row of a stacked tree as one vector: ``(m, d)``.

    >>> flat({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0, 4.0], [5.0, 6.0]])})
    tensor([[1., 3., 4.],
            [2., 5., 6.]])
    """
    return torch.cat([t.flatten(1) if t.dim() > 1 else t[:, None] for t in leaves(stacked)], dim=1)


def parted(vectors: Tensor, like: Tree) -> Tree:
    """Return the inverse of :func:`flat`: a stacked tree with the shapes and dtypes of another.

    >>> parted(torch.tensor([[1.0, 3.0, 4.0]]), {"a": torch.zeros(1), "b": torch.zeros(1, 2)})
    {'a': tensor([1.]), 'b': tensor([[3., 4.]])}
    """
    parts = iter(vectors.split([t[0].numel() for t in leaves(like)], dim=1))
    return tree_map(lambda t: next(parts).reshape(t.shape).to(t.dtype), like)


def joined(close: Tensor, m: int) -> Tensor:
    """Return cluster numbers of m clients, int64 of shape ``(m,)``: clients are in one if close pairs join them.

    Args:
        close: ``(pairs,)``, bool.
        m: how many clients.

    >>> joined(torch.tensor([True, False, False]), 3)
    tensor([0, 0, 1])
    """
    i, j = torch.triu_indices(m, m, 1)
    graph = coo_array((close[close].numpy(), (i[close].numpy(), j[close].numpy())), shape=(m, m))
    return torch.from_numpy(connected_components(graph, directed=False)[1].astype("int64"))


def say_memory(owner: str, m: int, model: int) -> None:
    """Log how much memory a model for each pair takes.

    Args:
        owner: the method, for messages.
        m: how many clients.
        model: bytes of a model.

    Raises:
        MemoryError: the machine has less.
    """
    count = m * (m - 1) // 2
    needed, there = (count + m) * model, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{owner} keeps a model for each of {count} pairs of {m} clients: {needed / 1e6:.1f} MB, twice that"
    log.info("%s during a round.", text)
    if needed > there:
        raise MemoryError(
            f"{text} during a round; the machine has {there / 1e6:.0f} MB. Take fewer clients or a smaller model."
        )
