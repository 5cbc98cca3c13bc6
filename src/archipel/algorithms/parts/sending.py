"""Compressed replies: which tensors of a reply are compressed, at the clients, and how the server restores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Replies, Step, Weights
from archipel.algorithms.parts.composition import View, bound, unbound
from archipel.compress.compressor import DTYPES, Compressor
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, decoded, flatten, map_named, unflatten

ERRORS = "errors"
"""The entry of a client's state that holds what was left out."""


@dataclass(frozen=True)
class Packing:
    """What of a reply is compressed, and how.

    Args:
        compressor: Q.
        entries: names of the entries that are compressed; ``None``: all tensors that the message holds too.
        feedback: whether a biased Q gets error feedback.
    """

    compressor: Compressor
    entries: Sequence[str] | None
    feedback: bool

    @property
    def remembers(self) -> bool:
        """Whether clients keep what is left out."""
        return self.feedback and not self.compressor.unbiased

    def covers(self, name: str, value: Any, known: dict[str, Tensor], stacked: bool = False) -> bool:
        """Whether this part of a reply is to be compressed, by its name and type; both ends must agree."""
        if not isinstance(value, Tensor) or value.dim() == int(stacked) or value.dtype not in DTYPES:
            return False
        if "buffers" in name.split("/"):
            return False
        if self.entries is not None:
            return name.split("/")[0] in self.entries
        return alike(value, known.get(name), stacked)

    def pays(self, value: Tensor) -> bool:
        """Whether it is smaller when compressed."""
        size = value.numel()
        return size > 0 and self.compressor.bits(size, value.dtype) < size * value.element_size() * 8

    def no_errors(self, server: Tree) -> Tree:
        """E = 0 for every tensor of the server's state that a client may have to send."""
        named = {name: value for name, value in flatten(server).items() if self.covers(name, value, {name: value})}
        return unflatten({name: torch.zeros_like(value) for name, value in named.items() if self.pays(value)})

    def pack(self, reply: Tree, known: dict[str, Tensor], errors: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Compress a reply: return it as it is sent, and what is left out now."""
        left = flatten(errors)

        def send(name: str, value: Any) -> Any:
            if not self.covers(name, value, known) or not self.pays(value):
                return value
            if self.remembers and name not in left:
                raise ValueError(
                    f"{type(self.compressor).__name__} needs error feedback, and {name!r} isn't in the server's state, "
                    "from which a client knows what it will have to keep. Name other entries, use an unbiased "
                    "compressor such as RandK, or set feedback=False."
                )
            change = value - known[name] if alike(value, known.get(name)) else value
            change = change + left[name] if self.remembers else change
            packed = self.compressor(change, keys.fold(key, name))
            if self.remembers:
                left[name] = change - packed.decode()
            return packed

        reply = map_named(send, reply)
        return reply, unflatten(left) if left else errors


class PackedStep:
    """A step of the inner algorithm whose reply is compressed.

    Args:
        algorithm: the outer one, which holds the inner one; a step travels as a name and its algorithm.
        step: of the inner one.
        packing: what is compressed.
        shared: names of the tensors in the message that all clients get alike; ``None``: compress nothing.
    """

    def __init__(self, algorithm: Algorithm, step: Step, packing: Packing, shared: Sequence[str] | None) -> None:
        self.algorithm, self.step, self.packing, self.shared = algorithm, unbound(step), packing, shared
        # Carriers know steps by their names.
        self.__name__, self.__qualname__ = step.__name__, f"{type(algorithm).__qualname__}.{step.__qualname__}"

    def __call__(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        own = {name: value for name, value in client.items() if name != ERRORS}
        inner: Algorithm = self.algorithm.inner  # type: ignore[attr-defined]
        state, reply = bound(self.step, inner)(own, message, data, key)
        errors = client.get(ERRORS, {})
        if self.shared is not None:
            known = {name: value for name, value in _named(message).items() if name in self.shared}
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
        known = _named(decoded(message))
        replies = self.clients.collect(self.outer(step, known), message, key)
        return Replies(replies.ids, replies.weights, self._restored(replies.value, known, stacked=True))

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        total = super().sum(step, message, key, weights)
        map_named(lambda name, _: self.other.add(f"{name or 'a bare tensor'} (summed)"), total)
        return total

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        known = _named(decoded(message))
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


def _named(message: Tree) -> dict[str, Tensor]:
    """Find the tensors that all clients are sent alike, by name: a client's own rows can't be added to a mean."""
    found: dict[str, Tensor] = {}
    map_named(lambda name, value: found.update({name: value}) if isinstance(value, Tensor) else None, message)
    return found


def alike(value: Tensor, other: Tensor | None, stacked: bool = False) -> bool:
    """Whether a tensor of the message has the shape and dtype of one reply."""
    shape = value.shape[1:] if stacked else value.shape
    return other is not None and other.shape == shape and other.dtype == value.dtype
