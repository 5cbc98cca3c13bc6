"""Groups of clients: the edges of a hierarchy, such as hospitals by country or phones by region."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archipel.core.trees import Tree, tree_map

Groups = Sequence[Sequence[int | str]]
"""Clients' names or numbers, group by group."""


def numbered(groups: Groups, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Return the clients' numbers in every group, in rising order.

    Args:
        groups: names of clients, or numbers from 0; every client in exactly one group.
        names: of all clients.

    Raises:
        ValueError: an unknown client, an empty group, or a client in no group or in several.

    >>> numbered([["Lyon", 2], ["Oslo"]], ["Oslo", "Lyon", "Nice"])
    (tensor([1, 2]), tensor([0]))
    """
    if not isinstance(groups, list | tuple) or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError(
            f"groups must be a list of lists of clients, such as [['client-0', 'client-1'], …]; given {groups!r}."
        )
    found = [[_number(client, names) for client in group] for group in groups]
    if sorted(client for group in found for client in group) != list(range(len(names))) or not all(found):
        raise ValueError(
            f"groups must hold each of the {len(names)} clients, by name or by number from 0, exactly once, and none "
            f"may be empty; given {[list(group) for group in groups]}."
        )
    return tuple(torch.tensor(sorted(group)) for group in found)


def among(ids: Tensor, m: int) -> Tensor:
    """Return ``(m,)`` bool, true for the clients with these numbers.

    >>> among(torch.tensor([0, 2]), 4)
    tensor([ True, False,  True, False])
    """
    return torch.zeros(m, dtype=torch.bool).index_fill(0, ids, True)


def means_within(clusters: Tensor, rows: Tree) -> Tree:
    """Return a stacked tree with the mean of its cluster in place of each row.

    >>> means_within(torch.tensor([0, 1, 0]), {"theta": torch.tensor([[1.0], [5.0], [3.0]])})
    {'theta': tensor([[2.], [5.], [2.]])}
    """
    same = (clusters[:, None] == clusters).double()
    shares = same / same.sum(1, keepdim=True)
    return tree_map(lambda t: torch.tensordot(shares, t.double(), dims=1).to(t.dtype), rows)


def _number(client: int | str, names: Sequence[str]) -> int:
    if isinstance(client, str) and client in names:
        return list(names).index(client)
    if isinstance(client, int) and not isinstance(client, bool) and 0 <= client < len(names):
        return client
    known = ", ".join(names[:20])
    raise ValueError(f"groups names {client!r}; the clients are {known}, or 0 to {len(names) - 1}.")
