"""Compressed replies: how steps run inside a compressing algorithm, and how the server restores what they send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from archipel.algorithm import Algorithm, Replies, Step, Weights
from archipel.algorithm.composition import PartStep, View
from archipel.compress.replies import Packing, alike, named
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, decoded, map_named

ERRORS = "errors"
"""The entry of a client's state that holds what was left out."""


class PackedStep(PartStep):
    """A step of the inner algorithm whose reply is compressed.

    Args:
        algorithm: the outer one, which holds the inner one; a step travels as a name and its algorithm.
        step: of the inner one.
        packing: what is compressed.
        shared: names of the tensors in the message that all clients get alike; ``None``: compress nothing.
    """

    def __init__(self, algorithm: Algorithm, step: Step, packing: Packing, shared: Sequence[str] | None) -> None:
        super().__init__(algorithm, "inner", step)
        self.packing, self.shared = packing, shared

    def __call__(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        own = {name: value for name, value in client.items() if name != ERRORS}
        state, reply = self.inner(own, message, data, key)
        errors = client.get(ERRORS, {})
        if self.shared is not None:
            known = {name: value for name, value in named(message).items() if name in self.shared}
            reply, errors = self.packing.pack(reply, known, errors, keys.fold(key, "compression", self.__name__))
        return state | {ERRORS: errors} if ERRORS in client else state, reply


@dataclass(frozen=True)
class Sending(View):
    """The clients whose replies travel compressed, and arrive restored.

    Args:
        clients: as the outer algorithm sees them.
        algorithm: the outer one.
        packing: what is compressed.
        plain: compress nothing, as before the first round, when clients have no place for errors yet.
        compressed: names of what was compressed, collected as replies arrive.
        other: names of what was not.
    """

    algorithm: Algorithm
    packing: Packing
    plain: bool = False
    compressed: set[str] = field(default_factory=set)
    other: set[str] = field(default_factory=set)

    def outer(self, step: Step, known: dict[str, Tensor] | None = None) -> Step:
        return PackedStep(self.algorithm, step, self.packing, None if known is None or self.plain else tuple(known))

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        known = named(decoded(message))
        replies = self.clients.collect(self.outer(step, known), message, key)
        return Replies(replies.ids, replies.weights, self._restored(replies.value, known, stacked=True))

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        total = super().sum(step, message, key, weights)
        map_named(lambda name, _: self.other.add(f"{name or 'a bare tensor'} (summed)"), total)
        return total

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        known = named(decoded(message))
        mean, share = self.clients.mean_and_share(self.outer(step, known), message, key, weights)
        return self._restored(mean, known), share

    def _restored(self, replies: Tree, known: dict[str, Tensor], stacked: bool = False) -> Tree:
        """θ + Q(θ_i − θ), or its mean, in place of Q(θ_i − θ)."""

        def restore(name: str, value: Any) -> Any:
            if self.plain or not self.packing.covers(name, value, known, stacked):
                self.other.add(name or "a bare tensor")
                return value
            self.compressed.add(name)
            one = value[0] if stacked else value
            return value + known[name] if self.packing.pays(one) and alike(one, known.get(name)) else value

        return map_named(restore, replies)
