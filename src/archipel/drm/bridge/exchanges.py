"""FedSPM's density-ratio objectives on all training data, from sums that clients compute.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; equation numbers are the paper's, see docs/methods/fedspm.md. Every
client replies with sums over its own examples; it keeps their log-ratios and responsibilities. With L = m · C
populations, a client reveals its totals τ_i; for each of two φ = (γ, ξ, ν), the largest log-ratio and a log-sum over
its examples of each column; at each Newton step a value, an L-vector and an L × L matrix; at the end three values for
each φ, and three gradients in φ. If L is near the number of its examples, these may determine them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, add, zeros_like
from archipel.core.vmap import inside_vmap
from archipel.drm.multipliers import log_star, scaled
from archipel.learning import batch_norm as batchnorm
from archipel.learning.sgd import SGD, Batch, trained

if TYPE_CHECKING:
    from archipel.algorithm import Clients
    from archipel.algorithms.fedspm import FedSPM

PIECE = 512
"""Examples of a forward pass."""
NAMES = ("surrogate", "normalised", "balanced")
ZERO_STEP = SGD(lr=0.0, steps=1, batch=None, momentum=0.5)
"""A step that moves nothing: its velocity is the gradient."""


class RatioCache:
    """Log-ratios that clients keep between the exchanges of a measurement, to save passes over their data.

    No result depends on it. Over a wire, where it isn't sent, and in batches over clients, every exchange recomputes
    them.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def recall(self, client: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Return what ``make`` returned for this client, and call it the first time."""
        if inside_vmap():
            return make()
        index = int(client)
        if index not in self._kept:
            self._kept[index] = make()
        return self._kept[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> RatioCache:
        return self  # each thread has its own algorithm; they share this cache

    def __reduce__(self) -> tuple[type[RatioCache], tuple[()]]:
        return RatioCache, ()


@dataclass(frozen=True, eq=False)
class ClientSums:
    """The client's side for one φ: steps that return nothing but sums over the client's training examples.

    Args:
        algorithm: the FedSPM whose model is evaluated.
        cache: log-ratios at this φ.
    """

    algorithm: FedSPM
    cache: RatioCache = field(default_factory=RatioCache, repr=False)

    def totals(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return τ_i of the last M-step's responsibilities, ``(C,)``; max_j a_jl and log Σ_j exp(a_jl) by column."""
        a = self._masked(client, message, data)
        w = client["responsibilities"].values.double()
        return client, {"tau": w.sum(0), "top": a.amax(0), "log_sum": torch.logsumexp(a, 0)}

    def mass(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return log Σ_j 1/Σ_l exp(offset_l + a_jl)."""
        a = self._ratios(client, message, data)
        mixed = torch.logsumexp(a + message["offset"], dim=1)
        return client, torch.logsumexp(torch.where(data.train.mask, -mixed, -torch.inf), 0)

    def dual(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return −Σ_j log*(1 + μᵀg_j), g = (exp(a + shift) − 1) exp(−top), and its terms of Newton's method."""
        a = self._ratios(client, message, data)[:, message["living"]]
        g = torch.where(data.train.mask[:, None], scaled(a + message["shift"], message["top"]), 0.0)  # log 1 = 0
        t = g @ message["mu"]
        value, slope, curvature = log_star(1 + t, message["least"])
        rows = g * curvature.sqrt()[:, None]
        size = slope.abs() @ g.abs()
        return client, {
            "value": -value.sum(),
            "gradient": -(slope @ g),
            "hessian": rows.T @ rows,
            "size": size,
            "noise": torch.where(data.train.mask, slope.abs() + value.abs(), 0.0).sum() + size @ message["mu"].abs(),
            "low": t.amin(),
            "high": t.amax(),
        }

    def masses(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return Σ_j log Σ_l exp(offset_l + a_jl), Σ_j p_j and Σ_j p_j p_jᵀ; p_j is the softmax over populations."""
        a = self._ratios(client, message, data)[:, message["living"]] + message["offset"]
        real = data.train.mask
        norms = torch.logsumexp(a, 1)
        p = torch.where(real[:, None], (a - norms[:, None]).exp(), 0.0)
        norms = torch.where(real, norms, 0.0)
        return client, {"value": norms.sum(), "size": norms.abs().sum(), "p": p.sum(0), "pp": p.T @ p}

    def values(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return the client's terms of the three objectives, ``(3,)`` in the order of :data:`NAMES`."""
        a = self._ratios(client, message, data)
        w = client["responsibilities"].values
        terms = self._terms(a, w, client["index"], message)
        return client, torch.where(data.train.mask[:, None], terms, 0.0).sum(0)

    def gradients(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Return their gradients in φ, a tree like φ for each."""
        ratio = batchnorm.receive(self.algorithm.batch_norm, message["ratio"], client["ratio"])
        examples = data.train.adding(w=client["responsibilities"].values)
        found = {}
        for k, name in enumerate(NAMES):

            def loss(params: Tree, batch: Batch, k: int = k) -> tuple[Tensor, Tree]:
                a, _ = self.algorithm.log_ratios(params, batch["x"])
                terms = self._terms(a.flatten(1).double(), batch["w"], client["index"], message)
                return terms[:, k], params.get("buffers", {})

            total = zeros_like({part: _double(tree) for part, tree in trained(ratio).items()})
            for piece in _parts(examples):
                mean = ZERO_STEP.minimise(loss, ratio, piece, key, torch.zeros(())).velocity
                total = add(total, {part: _double(tree) for part, tree in mean.items()}, piece.count.double())
            found[name] = total
        return client, found

    def _ratios(self, client: Tree, message: Tree, data: ClientData) -> Tensor:
        """Return ``(N, L)`` float64 log-ratios of the model in evaluation mode."""

        def make() -> Tensor:
            ratio = batchnorm.receive(self.algorithm.batch_norm, message["ratio"], client["ratio"])
            pieces = [self.algorithm.log_ratios(ratio, batch["x"])[0] for batch in data.train.pieces(PIECE)]
            return torch.cat(pieces).flatten(1)

        kept: Tensor = self.cache.recall(client["index"], make)
        return kept.double()

    def _masked(self, client: Tree, message: Tree, data: ClientData) -> Tensor:
        return torch.where(data.train.mask[:, None], self._ratios(client, message, data), -torch.inf)

    def _terms(self, a: Tensor, w: Tensor, index: Tensor, message: Tree) -> Tensor:
        """Return log z_j − Σ_c w_jc a_jc, ``(N, 3)``, with each objective's z; the server adds constants."""
        own = a.unflatten(1, (-1, w.shape[1])).index_select(1, index[None])[:, 0]
        shifted = a + message["shift"]
        top = shifted.detach().amax(1, keepdim=True).clamp(min=0)
        log_z = [
            torch.logsumexp(message["log_tau"] + a, 1),
            top[:, 0] + ((-top[:, 0]).exp() + scaled(shifted, top) @ message["lambda"]).log(),
            torch.logsumexp(message["balance"] + a, 1),
        ]
        terms: Tensor = torch.stack(log_z, 1) - (w.double() * own).sum(1, keepdim=True)
        return terms


def _parts(examples: Examples) -> Iterator[Examples]:
    for start, columns in zip(range(0, examples.length, PIECE), examples.pieces(PIECE), strict=True):
        length = len(columns["x"])
        count = (examples.count - start).clamp(0, length)
        yield Examples(columns, count, min(max(examples.min_count - start, 0), length))


def _double(tree: Tree) -> Tree:
    return {name: _double(child) for name, child in tree.items()} if isinstance(tree, dict) else tree.double()


@dataclass(frozen=True)
class Exchange:
    """The server's side for one φ: asks every client, and stacks the replies along a first dimension.

    Args:
        clients: all clients.
        steps: the clients' side for this φ.
        ratio: φ, with its buffers.
    """

    clients: Clients
    steps: ClientSums
    ratio: Tree = field(repr=False)

    def __call__(self, step: str, **message: Tensor) -> Tree:
        """Run a step at all clients; raise :class:`Incomplete` if a reply isn't finite."""
        replies = self.clients.evaluate(getattr(self.steps, step), {"ratio": self.ratio} | message, keys.key(0))
        if len(replies.ids) < self.clients.population:
            raise Incomplete(
                f"{self.clients.population - len(replies.ids)} clients have log-ratios that aren't finite."
            )
        return replies.value


class Incomplete(RuntimeError):  # noqa: N818 (caught, never shown as an error)
    """Not every client replied with finite numbers."""
