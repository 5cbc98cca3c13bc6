"""An algorithm inside another: the inner one's rounds run on its own part of the server's and the clients' states."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Replies, Step, Weights
from archipel.core.examples import ClientData
from archipel.core.trees import Tree


class Within:
    """A step of an algorithm that is a field of another, on the entry of the client's state that has the field's name.

    Args:
        algorithm: the outer one, by which steps travel.
        part: the field.
        step: a method of the inner one, or an object like this one that holds it.
    """

    def __init__(self, algorithm: Algorithm, part: str, step: Step) -> None:
        self.algorithm, self.part, self.step = algorithm, part, unbound(step)
        # Carriers know steps by their names.
        self.__name__, self.__qualname__ = step.__name__, f"{type(algorithm).__qualname__}.{part}.{step.__qualname__}"

    def __call__(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        step = bound(self.step, getattr(self.algorithm, self.part))
        state, reply = step(client[self.part], message, data, key)
        return client | {self.part: state}, reply


def unbound(step: Step) -> str | Step:
    """A step without its algorithm, which travels as part of the outer one: a name, or an object such as the above."""
    if inspect.ismethod(step):
        return step.__name__
    step = copy.copy(step)
    step.algorithm = None  # type: ignore[attr-defined]
    return step


def bound(step: str | Step, algorithm: Algorithm) -> Step:
    """The step of this algorithm."""
    if isinstance(step, str):
        method: Step = getattr(algorithm, step)
        return method
    step = copy.copy(step)
    step.algorithm = algorithm  # type: ignore[attr-defined]
    return step


@dataclass(frozen=True)
class Seen(ABC):
    """What stays as it is of :class:`archipel.algorithm.Clients` that an inner algorithm sees through an outer one.

    Args:
        clients: as the outer one sees them.
    """

    clients: Clients

    @abstractmethod
    def _with(self, clients: Clients) -> Clients:
        """Other clients, seen in the same way."""

    @property
    def ids(self) -> Tensor:
        return self.clients.ids

    @property
    def population(self) -> int:
        return self.clients.population

    @property
    def sizes(self) -> Tensor:
        return self.clients.sizes

    @property
    def round(self) -> int:
        return self.clients.round

    @property
    def rounds(self) -> int:
        return self.clients.rounds

    @property
    def stateful(self) -> bool:
        return self.clients.stateful

    @property
    def everyone(self) -> Clients:
        return self._with(self.clients.everyone)

    @property
    def groups(self) -> tuple[Clients, ...]:
        return tuple(self._with(group) for group in self.clients.groups)

    def only(self, ids: Tensor) -> Clients:
        return self._with(self.clients.only(ids))


@dataclass(frozen=True)
class Inside(Seen):
    """:class:`archipel.algorithm.Clients` as an inner algorithm sees them: with its own part of their states.

    Args:
        clients: as the outer one sees them.
        algorithm: the outer one.
        part: the field that holds the inner one.
    """

    algorithm: Algorithm
    part: str

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self.clients.collect(self._within(step), message, key)

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return self.clients.sum(self._within(step), message, key, weights)

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return self.clients.mean(self._within(step), message, key, weights)

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        return self.clients.mean_and_share(self._within(step), message, key, weights)

    def apply(self, step: Step, message: Tree, key: Tensor) -> None:
        self.clients.apply(self._within(step), message, key)

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self.clients.evaluate(self._within(step), message, key)

    def _with(self, clients: Clients) -> Clients:
        return Inside(clients, self.algorithm, self.part)

    def _within(self, step: Step) -> Step:
        return Within(self.algorithm, self.part, step)
