"""FedSPM's density-ratio objectives on all training data, without the data: what clients add up for the server.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; equation numbers are the paper's. Every client answers with sums over
its own examples; log-ratios and responsibilities of examples stay where they are. What a client reveals, with
L = m · C populations, is: its totals τ_i; for each of two φ = (γ, ξ, ν), by column the largest log-ratio and a log-sum
over its examples; at each Newton step a value, an L-vector and an L × L matrix; in the end three values at each φ, and
three gradients in φ. Where L comes near the number of its examples, that may be enough to tell them.
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
"""Examples a forward pass."""
NAMES = ("surrogate", "normalised", "balanced")
STILL = SGD(lr=0.0, steps=1, batch=None, momentum=0.5)
"""A step that moves nothing: the velocity that it leaves is the gradient."""


class Memory:
    """Log-ratios that clients keep from one exchange of a measurement to the next, to save passes over their data.

    Nothing depends on it: on a wire, where it isn't sent, and in batches over clients every exchange makes them anew.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def recall(self, client: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gave for this client."""
        if inside_vmap():
            return make()
        index = int(client)
        if index not in self._kept:
            self._kept[index] = make()
        return self._kept[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> Memory:
        return self  # threads have algorithms of their own, and share this

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()


@dataclass(frozen=True, eq=False)
class Witness:
    """A client's side, for one φ: steps that only ever return sums over the client's training examples.

    Args:
        algorithm: whose model it is.
        memory: of this φ.
    """

    algorithm: FedSPM
    memory: Memory = field(default_factory=Memory)

    def totals(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """τ_i of the last M-step's responsibilities, ``(C,)``; by column max_j a_jl and log Σ_j exp(a_jl)."""
        a = self._masked(client, message, data)
        w = client["responsibilities"].values.double()
        return client, {"tau": w.sum(0), "top": a.amax(0), "log_sum": torch.logsumexp(a, 0)}

    def mass(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Log Σ_j 1/Σ_l exp(offset_l + a_jl)."""
        a = self._ratios(client, message, data)
        mixed = torch.logsumexp(a + message["offset"], dim=1)
        return client, torch.logsumexp(torch.where(data.train.mask, -mixed, -torch.inf), 0)

    def dual(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """−Σ_j log*(1 + μᵀg_j) with g = (exp(a + shift) − 1) exp(−top), and what Newton's method needs of it."""
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
        """Σ_j log Σ_l exp(offset_l + a_jl), Σ_j p_j and Σ_j p_j p_jᵀ, where p_j is the softmax over populations."""
        a = self._ratios(client, message, data)[:, message["living"]] + message["offset"]
        real = data.train.mask
        norms = torch.logsumexp(a, 1)
        p = torch.where(real[:, None], (a - norms[:, None]).exp(), 0.0)
        norms = torch.where(real, norms, 0.0)
        return client, {"value": norms.sum(), "size": norms.abs().sum(), "p": p.sum(0), "pp": p.T @ p}

    def values(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """The client's terms of the three objectives, ``(3,)`` in the order of :data:`NAMES`."""
        a = self._ratios(client, message, data)
        w = client["responsibilities"].values
        terms = self._terms(a, w, client["index"], message)
        return client, torch.where(data.train.mask[:, None], terms, 0.0).sum(0)

    def gradients(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Their gradients in φ, a tree like it for each."""
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
                mean = STILL.minimise(loss, ratio, piece, key, torch.zeros(())).velocity
                total = add(total, {part: _double(tree) for part, tree in mean.items()}, piece.count.double())
            found[name] = total
        return client, found

    def _ratios(self, client: Tree, message: Tree, data: ClientData) -> Tensor:
        """``(N, L)`` float64 log-ratios, as the model in evaluation gives them."""

        def make() -> Tensor:
            ratio = batchnorm.receive(self.algorithm.batch_norm, message["ratio"], client["ratio"])
            pieces = [self.algorithm.log_ratios(ratio, batch["x"])[0] for batch in data.train.pieces(PIECE)]
            return torch.cat(pieces).flatten(1)

        kept: Tensor = self.memory.recall(client["index"], make)
        return kept.double()

    def _masked(self, client: Tree, message: Tree, data: ClientData) -> Tensor:
        return torch.where(data.train.mask[:, None], self._ratios(client, message, data), -torch.inf)

    def _terms(self, a: Tensor, w: Tensor, index: Tensor, message: Tree) -> Tensor:
        """``(N, 3)``: log z_j − Σ_c w_jc a_jc, with z of each objective; constants are the server's."""
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
class Asked:
    """The server's side, for one φ: asks every client, and gets their answers stacked along a first dimension.

    Args:
        clients: everybody.
        witness: of this φ.
        ratio: φ, with its buffers.
    """

    clients: Clients
    witness: Witness
    ratio: Tree

    def __call__(self, step: str, **message: Tensor) -> Tree:
        """Raises :class:`Incomplete` where a client's answer isn't finite."""
        replies = self.clients.evaluate(getattr(self.witness, step), {"ratio": self.ratio} | message, keys.key(0))
        if len(replies.ids) < self.clients.population:
            raise Incomplete(
                f"{self.clients.population - len(replies.ids)} clients have log-ratios that aren't finite."
            )
        return replies.value


class Incomplete(RuntimeError):  # noqa: N818 (it is what happened)
    """Not every client could answer with numbers."""
