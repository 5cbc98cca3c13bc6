"""An algorithm inside another: the inner one sees the clients through a :class:`View` of the outer one's."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Replies, Step, Weights
from archipel.core.examples import ClientData
from archipel.core.trees import Tree


class PartStep:
    """A step of an inner algorithm, run on the entry of the client's state that has the name of the inner one's field.

    Args:
        algorithm: the outer one; a step travels as a name and its algorithm.
        part: the field that holds the inner one.
        step: a method of the inner one, or an object such as this one.
    """

    def __init__(self, algorithm: Algorithm, part: str, step: Step) -> None:
        self.algorithm, self.part, self.step = algorithm, part, unbound(step)
        # Carriers know steps by their names.
        self.__name__, self.__qualname__ = step.__name__, f"{type(algorithm).__qualname__}.{part}.{step.__qualname__}"

    @property
    def inner(self) -> Step:
        """The inner algorithm's step."""
        return bound(self.step, getattr(self.algorithm, self.part))

    def __call__(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        state, reply = self.inner(client[self.part], message, data, key)
        return client | {self.part: state}, reply


def unbound(step: Step) -> str | Step:
    """Take the algorithm away from a step, because it travels within the outer one: return a name or a step object."""
    if inspect.ismethod(step):
        return step.__name__
    step = copy.copy(step)
    step.algorithm = None  # type: ignore[attr-defined]
    return step


def bound(step: str | Step, algorithm: Algorithm) -> Step:
    """Give a step its algorithm back: the inverse of :func:`unbound`."""
    if isinstance(step, str):
        method: Step = getattr(algorithm, step)
        return method
    step = copy.copy(step)
    step.algorithm = algorithm  # type: ignore[attr-defined]
    return step


@dataclass(frozen=True)
class View(ABC):
    """:class:`archipel.algorithm.Clients` as an inner algorithm sees them: operations go to the outer one's clients.

    Args:
        clients: as the outer algorithm sees them.
    """

    clients: Clients

    @abstractmethod
    def outer(self, step: Step) -> Step:
        """Return the outer algorithm's step that runs this one of the inner algorithm."""

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self.clients.collect(self.outer(step), message, key)

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return self.clients.sum(self.outer(step), message, key, weights)

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        return self.mean_and_share(step, message, key, weights)[0]

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        return self.clients.mean_and_share(self.outer(step), message, key, weights)

    def apply(self, step: Step, message: Tree, key: Tensor) -> None:
        self.clients.apply(self.outer(step), message, key)

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        return self.clients.evaluate(self.outer(step), message, key)

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
        return replace(self, clients=self.clients.everyone)

    @property
    def groups(self) -> tuple[Clients, ...]:
        return tuple(replace(self, clients=group) for group in self.clients.groups)

    def only(self, ids: Tensor) -> Clients:
        return replace(self, clients=self.clients.only(ids))


@dataclass(frozen=True)
class PartClients(View):
    """The clients with the inner algorithm's own part of their states.

    Args:
        clients: as the outer algorithm sees them.
        algorithm: the outer one.
        part: the field that holds the inner one.
    """

    algorithm: Algorithm
    part: str

    def outer(self, step: Step) -> Step:
        return PartStep(self.algorithm, self.part, step)
