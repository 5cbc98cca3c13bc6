"""The interface: an algorithm, the steps it sends to clients, and the handle by which the server reaches clients.

An algorithm is a frozen dataclass. Its fields are hyper-parameters; its ``round`` is written in plain Python like the
paper's pseudo-code, at the server; its *steps* are pure functions that run at the clients. The handle ``clients`` is
the only way from one to the other, so the same object runs in one process, in many, and over a network.

A complete algorithm, federated averaging of means::

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from archipel.algorithm import Algorithm
    >>> from archipel.data.federation import Federation
    >>> from archipel.fit import fit
    >>> @dataclass(frozen=True)
    ... class MeanOfMeans(Algorithm):
    ...     rate: float = 1.0
    ...
    ...     def init_server(self, clients, key):
    ...         return {"mean": torch.zeros(2)}
    ...
    ...     def round(self, server, clients, key):
    ...         mean = clients.mean(self.local_mean, {"mean": server["mean"]}, key)
    ...         return {"mean": mean}, {}
    ...
    ...     def local_mean(self, client, message, data, key):
    ...         x = data.train["x"]
    ...         return client, message["mean"] + self.rate * (x.mean(0) - message["mean"])
    >>> zeros, ones = torch.zeros(10, 2), torch.ones(30, 2)
    >>> islands = Federation.from_arrays([(zeros, zeros), (ones, ones)], test=0.0)
    >>> fit(MeanOfMeans(), islands, rounds=1).server["mean"]
    tensor([0.7500, 0.7500])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from archipel.core.checks import check_settings, setting
from archipel.core.examples import ClientData
from archipel.core.trees import Tree

Info = dict[str, Any]
Weights = Literal["examples", "uniform"]
Step = Callable[[Tree, Tree, ClientData, Tensor], tuple[Tree, Tree]]
"""``(client state, message, data, key) → (client state, reply)``: pure, and all that it may look at."""


@dataclass(frozen=True)
class Replies:
    """The replies to a step.

    Args:
        ids: ``(k,)`` int64, who answered, in rising order.
        weights: ``(k,)`` float64, training examples each of them holds.
        value: the replies, stacked along a first dimension of length k.
    """

    ids: Tensor
    weights: Tensor
    value: Tree


class NoReplyError(RuntimeError):
    """No client's reply could be used, so that there is no mean."""


class DivergenceError(RuntimeError):
    """Values are no longer finite, or are about to overflow; the last good state was kept."""


class Clients(Protocol):
    """The clients as the server sees them: who they are, how many examples they hold, and what they reply.

    Every operation runs one step at each client that takes part. A key is folded with the client's id, so each client
    draws its own numbers; two operations that must draw the same share a key. A client whose reply or new state holds
    NaN or infinities, or whose reply never comes, is dropped and named, and keeps the state it had.
    """

    @property
    def ids(self) -> Tensor:
        """``(k,)`` int64, who takes part in this round, in rising order."""

    @property
    def population(self) -> int:
        """m, everybody enrolled."""

    @property
    def sizes(self) -> Tensor:
        """``(m,)`` int64, training examples held."""

    @property
    def round(self) -> int:
        """The round's number, from 0."""

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""

    @property
    def stateful(self) -> bool:
        """Whether clients keep anything between steps."""

    @property
    def everyone(self) -> Clients:
        """All enrolled clients, sampled or not."""

    @property
    def groups(self) -> Sequence[Clients]:
        """The edges of a hierarchy; empty if :func:`archipel.fit` was given no groups.

        Each is a handle on those of its clients who take part; its ``everyone`` are all of them.
        """

    def only(self, ids: Tensor) -> Clients:
        """Return a handle on these clients alone."""

    def collect(self, step: Step, message: Tree, key: Tensor) -> Replies:
        """Return every reply, stacked."""

    def sum(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        """Return Σ w_i · reply_i over those who answered; memory does not grow with the number of clients."""

    def mean(self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples") -> Tree:
        """Return Σ w_i · reply_i / Σ w_i over those who answered; raise :class:`NoReplyError` if nobody did."""

    def mean_and_share(
        self, step: Step, message: Tree, key: Tensor, weights: Weights = "examples"
    ) -> tuple[Tree, float]:
        """Return the mean, and the share of all weights that those who answered have.

        The share is Σ w_i over those who answered / Σ w_i over all enrolled. By it an average over everybody follows
        from the changes of those who took part (SCAFFOLD's |S|/N).
        """

    def apply(self, step: Step, message: Tree, key: Tensor) -> None:
        """Change the clients' states; nothing comes back."""

    def evaluate(self, step: Step, message: Tree, key: Tensor) -> Replies:
        """Return replies to a step that reads states and held-out data; nothing is written or counted as traffic."""


@setting("an algorithm, FedAvg(task, SGD(lr=0.01, epochs=1)), say")
class Algorithm(ABC):
    """A federated algorithm: a frozen dataclass of hyper-parameters with a server-side round and client steps.

    State is what the next round needs, as a tree; info is diagnostics, and the two never mix. Beside the methods here
    an algorithm has, by choice, those of :class:`Predicts`, :class:`PredictsGlobally`, :class:`Adapts` and
    :class:`Routes`, and for a fast evaluation those of :class:`Embeds`, :class:`RoutesEmbedded` and
    :class:`Personalises`.
    """

    def __post_init__(self) -> None:
        """Check the settings by their annotations; a method that overrides this calls it first."""
        check_settings(self)

    @abstractmethod
    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        """Return the server's state before the first round."""

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        """Return the client's state at enrolment; by default it keeps nothing.

        Args:
            message: ``{"server": the initial server state, "index": the client's number, int64 of shape ()}``.
            data: the client's examples.
            key: of whatever is drawn, the client's own.
        """
        return {}

    def enrol(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Run the step of each client before the first round; methods override ``init_client`` instead."""
        return self.init_client(message, data, key), {}

    @abstractmethod
    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        """Run one round, which ends at a communication: return the server's new state, and diagnostics."""


@runtime_checkable
class Predicts(Protocol):
    """A method with a model for each client, which may be the same for all."""

    def predict(self, server: Tree, client: Tree, x: Tensor) -> Tensor:
        """``(n, K)`` log-probabilities, or ``(n, outputs)`` values, of the client's own model."""


@runtime_checkable
class Embeds(Protocol):
    """A method that predicts in two parts, the first of which is the same for all clients; predict composes them.

    An evaluation embeds all queries once, for all clients' models. What clients don't share is no part of ``embed``: an
    encoder under batch statistics of each client's own isn't shared. Of models without anything in common the embedding
    is x itself.
    """

    def embed(self, server: Tree, x: Tensor) -> Tree:
        """Tensors of shape ``(n, …)``, all that ``predict_embedded`` needs of x: shared features, or shared answers."""

    def predict_embedded(self, server: Tree, client: Tree, embedded: Tree) -> Tensor:
        """As ``predict``, of the client's own model."""


@runtime_checkable
class PredictsGlobally(Protocol):
    """A method with one model for everybody."""

    def predict_global(self, server: Tree, x: Tensor) -> Tensor:
        """As ``predict``, by the server's model."""


@runtime_checkable
class Personalises(Protocol):
    """A method with a global model that says whether clients' models may differ from it.

    Without this, they are taken to differ if clients keep or adapt anything.
    """

    def personalises(self, server: Tree) -> bool:
        """Whether a client's model may be another than the global one."""


@runtime_checkable
class Adapts(Protocol):
    """A method that tunes the personal model on the client's own data before it is used."""

    def adapt(self, server: Tree, client: Tree, data: ClientData, key: Tensor) -> Tree:
        """Return the client's state with entries to predict with, which training never sees and a run keeps."""


@runtime_checkable
class Routes(Protocol):
    """A method that says which client a query from outside belongs to."""

    def route(self, server: Tree, x: Tensor) -> Tensor:
        """``(n, m)`` log-posterior over clients."""


@runtime_checkable
class HasRoutingPrior(Protocol):
    """Routes by a prior of its own; of other routers the prior over clients is n_i/n."""

    def routing_prior(self, server: Tree) -> Tensor:
        """Return ``(m,)`` shares of the clients among queries, which the posterior of ``route`` contains."""


@runtime_checkable
class RoutesEmbedded(Protocol):
    """A method that routes by its embedding, so that one pass serves routing and answers."""

    def route_embedded(self, server: Tree, embedded: Tree) -> Tensor:
        """As ``route``."""
