"""Splitting of components that coincide, which EM doesn't separate.

Parameters with equal components are a saddle of EM: its iterations leave components equal, and near it they separate
them slowly, while the likelihood hardly changes. Two starts lead there. Points of k-means++ over clients are means of a
client's examples: if all clients have the same examples, all points are equal. And from random responsibilities all
components start near the pooled data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Clients
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree
from archipel.families.mixture import FLOOR, Mixture

SAME = 1e-9
"""Components coincide if their coefficients differ by less than this share of the largest one."""
NEAR = 0.1
"""Fitted components are similar if ∫|p_k − p_l| is less than this share of ∫(p_k + p_l)."""


def split_coinciding(family: Mixture, theta: Tree, clients: Clients, key: Tensor) -> Tree:
    """Split components whose parameters coincide, and the largest component if others are empty.

    Args:
        family: the mixture.
        theta: θ_0.
        clients: all clients.
        key: int64 of shape ``()``.

    Returns:
        θ_0 itself if all components differ, or :func:`split`, up to K times.
    """
    for attempt in range(len(theta["weight"])):  # a random cone may hold nobody, and its component is then empty
        groups = coinciding(family, theta)
        if len(groups.unique()) == len(groups):
            break
        theta = split(family, theta, groups, clients, keys.fold(key, "split", attempt) if attempt else key)
    return theta


def split(family: Mixture, theta: Tree, groups: Tensor, clients: Clients, key: Tensor) -> Tree:
    """Divide the examples of each group of components by random cones, and return T of the new statistics.

    An example x of a group (by responsibilities) goes to its component k with the largest u_kᵀ(x − mean), where u_k is
    random and the mean is that of the group. Clients reveal sums over their examples.

    Args:
        family: the mixture.
        theta: θ.
        groups: ``(K,)`` int64, equal for components of a group.
        clients: all clients.
        key: int64 of shape ``()``.
    """
    halves = _Halves(family)
    message = {"theta": theta, "groups": groups}
    found = clients.everyone.mean(halves.centre, message, key)
    centres = found["sum"] / found["weight"].clamp(min=FLOOR)[:, None]
    directions = keys.normal(keys.fold(key, "directions"), *centres.shape, dtype=torch.float64)
    message |= {"centres": centres, "directions": directions}
    statistics, _ = family.project(clients.everyone.mean(halves.divide, message, key))
    return family.maximise(statistics)


def similar(family: Mixture, theta: Tree, clients: Clients) -> Tensor:
    """Return the group of each component, ``(K,)`` int64: the first component that hardly differs from it.

    Empty components belong to the largest one's group, as they do for :func:`coinciding`.

    Two components differ by ∫|p_k − p_l| / ∫(p_k + p_l): 0 if they coincide, 1 if they share no example. The integrals
    are over the clients' examples, with p_k = r_k/π_k; each client reveals 2 K² sums.
    """
    replies = clients.everyone.evaluate(_Halves(family).compare, {"theta": theta}, keys.key(0))
    shares = (replies.weights / replies.weights.sum()).to(torch.float64)
    apart, mass = (torch.tensordot(shares, replies.value[name], 1) for name in ("apart", "mass"))
    empty = theta["weight"] <= 10 * FLOOR
    near = (apart < NEAR * mass.clamp(min=FLOOR)) & ~empty  # nothing differs from an empty component
    return _with_empty(near.to(torch.int64).argmax(1), theta)


def coinciding(family: Mixture, theta: Tree) -> Tensor:
    """Return the group of each component, ``(K,)`` int64: the first component of those that coincide.

    >>> from archipel.families.discrete import BernoulliMixture
    >>> half = {"weight": torch.tensor([0.4, 0.3, 0.3]), "probability": torch.tensor([[0.5], [0.9], [0.5]])}
    >>> coinciding(BernoulliMixture(3, 1), half)
    tensor([0, 1, 0])
    """
    even = torch.full_like(theta["weight"], 1 / len(theta["weight"]))
    W = family.natural(theta | {"weight": even})
    apart = (W[:, None] - W[None]).abs() > SAME * W.abs().amax(0)
    groups = (~apart.any(-1)).to(torch.int64).argmax(1)  # the first that coincides
    return _with_empty(groups, theta)


def _with_empty(groups: Tensor, theta: Tree) -> Tensor:
    """Put empty components into the group of the largest one."""
    return torch.where(theta["weight"] <= 10 * FLOOR, groups[theta["weight"].argmax()], groups)


@dataclass(frozen=True)
class _Halves:
    """The clients' steps."""

    family: Mixture

    def centre(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the weight, ``(K,)``, and the summed points, ``(K, p)``, of each component's group, per example."""
        r = self._groups(message, data) / data.train.count
        return client, {"weight": r.sum(0), "sum": r.T @ self.family.points(data.train.columns)}

    def divide(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the family's statistics with the responsibilities of groups divided."""
        points = self.family.points(data.train.columns)
        sides = torch.stack(
            [(points - c) @ u for c, u in zip(message["centres"], message["directions"], strict=True)], dim=-1
        )
        groups = message["groups"]
        together = groups[:, None] == groups  # (K, K)
        rivals = torch.where(together, sides[:, None, :], -torch.inf)  # (N, K, K)
        first = rivals.argmax(-1) == torch.arange(len(groups))
        r = self._groups(message, data) * first
        return client, self.family.complete(r, data.train.columns, data.train.mask)

    def compare(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the means of |π_l r_k − π_k r_l| and π_l r_k + π_k r_l over examples, ``(K, K)`` each."""
        weights = message["theta"]["weight"]
        r = self.family.posterior(message["theta"], data.train.columns).exp()
        r = torch.where(data.train.mask[:, None], r, 0.0) / data.train.count
        rows = [r[:, k : k + 1] * weights for k in range(len(weights))]  # π_l r_k for all l
        apart = torch.stack([(row - weights[k] * r).abs().sum(0) for k, row in enumerate(rows)])
        mass = torch.stack([(row + weights[k] * r).sum(0) for k, row in enumerate(rows)])
        return client, {"apart": apart, "mass": mass}

    def _groups(self, message: Tree, data: ClientData) -> Tensor:
        """Return the responsibility of each component's group, ``(N, K)``; 0 for padding."""
        r = self.family.posterior(message["theta"], data.train.columns).exp()
        together = (message["groups"][:, None] == message["groups"]).to(torch.float64)
        return torch.where(data.train.mask[:, None], r @ together, 0.0)
