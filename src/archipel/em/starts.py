"""Starts of EM: k-means++ over clients, and random responsibilities. Both are functions ``(clients, key) → θ_0``.

D. Arthur, S. Vassilvitskii: k-means++: the advantages of careful seeding. SODA 2007.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithm import Clients
from archipel.core import checks, keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree
from archipel.em.splitting import split_coinciding
from archipel.families.mixture import Mixture


@dataclass(frozen=True)
class KMeansPlusPlus:
    """Centres by k-means++, refined by Lloyd's iterations, and parameters from the clusters.

    Let D(x) be the distance of x to the nearest centre so far. The next centre is drawn with probability ∝ D(x)²: the
    server draws a client ∝ its Σ D², and that client draws one of its points. This is the distribution of k-means++ on
    the pooled data, however they are divided. Lloyd's iterations are means over clients. So are the statistics of the
    final clusters, s(x, nearest centre), whose T is θ_0.

    Clients reveal sums over all their examples in every round. For each of the K centres one client also reveals a
    point: the mean of the ``neighbours`` of its examples that are nearest to the drawn one, itself included. With
    ``neighbours=1`` this is an example itself, exactly as in k-means++. A client with fewer examples reveals their
    mean. If centres coincide nevertheless, their examples are divided (:mod:`archipel.em.splitting`).

    Points are the family's ``points``: x; (x, y) for regressions; indicators of the answers for categories. Columns
    should be of comparable scale.

    Args:
        family: the mixture whose parameters are sought.
        neighbours: how many examples are averaged into a revealed point.
        refinements: the number of Lloyd's iterations.

    Raises:
        ValueError: a family that isn't a mixture, or counts out of range.

    >>> import torch
    >>> from archipel.data.federation import Federation
    >>> from archipel.algorithms.fedem import FedEM
    >>> from archipel.fit import fit
    >>> from archipel.families.gaussian import GaussianMixture
    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> islands = Federation.from_arrays([(x[:3], torch.zeros(3)), (x[1:], torch.zeros(3))], test=0.0)
    >>> family = GaussianMixture(2, 1)
    >>> run = fit(FedEM(family, start=KMeansPlusPlus(family)), islands, rounds=1)
    >>> run.server["theta"]["mean"].flatten().sort().values  # 0, 1, 1 and 10, 10, 11
    tensor([ 0.6667, 10.3333], dtype=torch.float64)
    """

    family: Mixture
    neighbours: int = 5
    refinements: int = 10

    def __post_init__(self) -> None:
        _check_family("KMeansPlusPlus", self.family)
        checks.positive_int("KMeansPlusPlus", neighbours=self.neighbours)
        if isinstance(self.refinements, bool) or not isinstance(self.refinements, int) or self.refinements < 0:
            raise ValueError(
                f"KMeansPlusPlus's refinements must be a whole number of at least 0; given {self.refinements!r}."
            )

    def __call__(self, clients: Clients, key: Tensor) -> Tree:
        clients, K = clients.everyone, self.family.components
        message = self._first(clients, keys.fold(key, "first"))
        for k in range(1, K):
            message = self._next(clients, message, k, keys.fold(key, k))
        for _ in range(self.refinements):
            found = clients.mean(self.assign, message, key)
            occupied = found["weight"][:, None] > 0
            message = {"centres": torch.where(occupied, found["sum"] / found["weight"][:, None], message["centres"])}
        statistics, _ = self.family.project(clients.mean(self.cluster, message, key))
        return split_coinciding(self.family, self.family.maximise(statistics), clients, keys.fold(key, "split"))

    def _first(self, clients: Clients, key: Tensor) -> Tree:
        """Place all centres at a point drawn uniformly."""
        point = self._drawn(clients, {}, clients.ids, clients.sizes[clients.ids].double(), key)
        return {"centres": point.expand(self.family.components, -1).contiguous()}

    def _next(self, clients: Clients, message: Tree, k: int, key: Tensor) -> Tree:
        """Move centre k, which is where the first is, to a point drawn ∝ D²."""
        told = clients.collect(self.inertia, message, key)
        point = self._drawn(clients, message, told.ids, told.value, key)
        return {"centres": message["centres"].index_copy(0, torch.tensor([k]), point)}

    def _drawn(self, clients: Clients, message: Tree, ids: Tensor, mass: Tensor, key: Tensor) -> Tensor:
        """Draw a client ∝ mass, or uniformly if there is none, and one of its points, ``(1, d)``."""
        mass = mass if bool(mass.sum() > 0) else torch.ones_like(mass)
        u = keys.uniform(keys.fold(key, "client"), dtype=torch.float64)
        who = torch.searchsorted(torch.cumsum(mass, 0), u * mass.sum(), right=True).clamp(max=len(ids) - 1)
        told: Tensor = clients.only(ids[who][None]).collect(self.propose, message, key).value
        return told

    # The clients

    def inertia(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return Σ D² over the client's examples, ``()``."""
        return client, self._squares(message, data.train).sum()

    def propose(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the mean of the examples around one that is drawn ∝ D², or uniformly without centres, ``(d,)``."""
        points, mask = self.family.points(data.train.columns), data.train.mask
        mass = self._squares(message, data.train) if message else mask.to(torch.float64)
        mass = torch.where(mass.sum() > 0, mass, mask.to(torch.float64))
        u = keys.uniform(keys.fold(key, "point"), dtype=torch.float64)
        edges = torch.cumsum(mass, 0)
        # The first edge above u. Rows without mass, such as padding, have empty intervals.
        drawn = points.index_select(0, (edges <= u * edges[-1]).sum().clamp(max=len(points) - 1)[None])
        gaps = torch.where(mask, (points - drawn).square().sum(-1), torch.inf)
        near = torch.argsort(torch.argsort(gaps, stable=True), stable=True) < self.neighbours
        weights = (near & mask).to(torch.float64)
        return client, weights @ points / weights.sum()

    def assign(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the weights and sums of the clusters, per example."""
        r = self._nearest(message, data.train) / data.train.count
        return client, {"weight": r.sum(0), "sum": r.T @ self.family.points(data.train.columns)}

    def cluster(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the family's statistics with every example assigned to its nearest centre."""
        nearest = self._nearest(message, data.train)
        return client, self.family.complete(nearest, data.train.columns, data.train.mask)

    def _gaps(self, message: Tree, examples: Examples) -> Tensor:
        """Return squared distances to all centres, ``(N, K)``."""
        points = self.family.points(examples.columns)
        return torch.stack([(points - centre).square().sum(-1) for centre in message["centres"].unbind(0)], dim=-1)

    def _squares(self, message: Tree, examples: Examples) -> Tensor:
        """Return D², ``(N,)``; zero for padding."""
        return torch.where(examples.mask, self._gaps(message, examples).amin(-1), 0.0)

    def _nearest(self, message: Tree, examples: Examples) -> Tensor:
        """Mark the nearest centre, ``(N, K)`` of zeros and ones; zeros for padding."""
        nearest = self._gaps(message, examples).argmin(-1, keepdim=True)
        chosen = nearest == torch.arange(self.family.components)
        return (chosen & examples.mask[:, None]).to(torch.float64)


@dataclass(frozen=True)
class RandomResponsibilities:
    """Parameters from random responsibilities: for mixtures of regressions, whose clusters aren't clusters in space.

    Each example draws K exponential numbers and divides them by their sum. All components start near the pooled data,
    slightly different; a ``sharpness`` above 1 moves them farther apart.

    Args:
        family: the mixture whose parameters are sought.
        sharpness: above 0; responsibilities are raised to this power and then divided by their sum.

    Raises:
        ValueError: a family that isn't a mixture, or a sharpness out of range.
    """

    family: Mixture
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        _check_family("RandomResponsibilities", self.family)
        checks.above_zero("RandomResponsibilities", sharpness=self.sharpness)

    def __call__(self, clients: Clients, key: Tensor) -> Tree:
        statistics, _ = self.family.project(clients.everyone.mean(self.scatter, {}, key))
        return split_coinciding(self.family, self.family.maximise(statistics), clients, keys.fold(key, "split"))

    def scatter(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the family's statistics with random responsibilities."""
        u = keys.uniform(key, data.train.length, self.family.components, dtype=torch.float64)
        logs = self.sharpness * torch.log(-torch.log1p(-u))
        return client, self.family.complete(torch.softmax(logs, -1), data.train.columns, data.train.mask)


def _check_family(owner: str, family: object) -> None:
    if not isinstance(family, Mixture):
        raise ValueError(
            f"{owner} is for a mixture, such as GaussianMixture(components, dimension); given {checks.kind_of(family)}."
        )
