"""Between an algorithm and its clients: what they send is compressed on their side and restored on the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from archipel.algorithm import Clients, Replies, Step, Weights
from archipel.algorithms.parts.composition import Seen, bound, unbound
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, decoded, map_named

if TYPE_CHECKING:
    from archipel.algorithms.compressed import Compressing

ERRORS = "errors"
"""The entry of a client's state that holds what was left out."""


class Packed:
    """A step of the inner algorithm whose reply is compressed.

    Args:
        algorithm: the outer one, by which steps travel.
        step: of the inner one.
        shared: names of the tensors in the message that the server, too, knows to be the client's; ``None``: nothing is
            compressed.
    """

    def __init__(self, algorithm: Compressing, step: Step, shared: Sequence[str] | None) -> None:
        self.algorithm, self.step, self.shared = algorithm, unbound(step), shared
        # Carriers know steps by their names.
        self.__name__, self.__qualname__ = step.__name__, f"{type(algorithm).__qualname__}.{step.__qualname__}"

    def __call__(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        outer = self.algorithm
        own = {name: value for name, value in client.items() if name != ERRORS}
        state, reply = bound(self.step, outer.inner)(own, message, data, key)
        errors = client.get(ERRORS, {})
        if self.shared is not None:
            known = {name: value for name, value in _named(message).items() if name in self.shared}
            reply, errors = outer.pack(reply, known, errors, keys.fold(key, "compression", self.__name__))
        return state | {ERRORS: errors} if ERRORS in client else state, reply


@dataclass(frozen=True)
class Sending(Seen):
    """:class:`archipel.algorithm.Clients` as the inner algorithm sees them: what they send has been restored.

    Args:
        clients: as the outer one sees them.
        algorithm: the outer one.
        plain: whether nothing is compressed: before the first round clients have nothing to keep errors in.
        compressed: names of what was compressed, as it is found out.
        other: names of what was not.
    """

    algorithm: Compressing
    plain: bool = False
    compressed: set[str] = field(default_factory=set)
    other: set[str] = field(default_factory=set)

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        known = self._known(message)
        replies = self.clients.collect(self._packed(step, known), message, key)
        return Replies(replies.ids, replies.weights, self._restored(replies.value, known, stacked=True))

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        total = self.clients.sum(self._packed(step, None), message, key, weights)
        map_named(lambda name, _: self.other.add(f"{name or 'a bare tensor'} (summed)"), total)
        return total

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        known = self._known(message)
        return self._restored(self.clients.mean(self._packed(step, known), message, key, weights), known)

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        known = self._known(message)
        mean, share = self.clients.mean_and_share(self._packed(step, known), message, key, weights)
        return self._restored(mean, known), share

    def apply(self, step: Step, message: Tree, key: Tensor) -> None:
        self.clients.apply(self._packed(step, None), message, key)

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self.clients.evaluate(self._packed(step, None), message, key)

    def _with(self, clients: Clients) -> Clients:
        return Sending(clients, self.algorithm, self.plain, self.compressed, self.other)

    def _known(self, message: Tree) -> dict[str, Tensor]:
        """What every client was sent alike. Rows of their own can't be put back on a mean."""
        return _named(decoded(message))

    def _packed(self, step: Step, known: dict[str, Tensor] | None) -> Step:
        return Packed(self.algorithm, step, None if known is None or self.plain else tuple(known))

    def _restored(self, replies: Tree, known: dict[str, Tensor], stacked: bool = False) -> Tree:
        """θ + Q(θ_i − θ), or its mean, in place of Q(θ_i − θ)."""

        def restore(name: str, value: Any) -> Any:
            if self.plain or not self.algorithm.meant(name, value, known, stacked):
                self.other.add(name or "a bare tensor")
                return value
            self.compressed.add(name)
            one = value[0] if stacked else value
            return value + known[name] if self.algorithm.pays(one) and same(one, known.get(name)) else value

        return map_named(restore, replies)


def _named(message: Tree) -> dict[str, Tensor]:
    """The tensors of a message that are broadcast, by name."""
    found: dict[str, Tensor] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            found[name] = value

    map_named(note, message)
    return found


def same(value: Tensor, other: Tensor | None, stacked: bool = False) -> bool:
    """Whether the message holds the like of it."""
    shape = value.shape[1:] if stacked else value.shape
    return other is not None and other.shape == shape and other.dtype == value.dtype
