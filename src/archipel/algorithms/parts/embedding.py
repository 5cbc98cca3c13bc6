"""A shared encoder is run once for all heads on it: prediction in two parts (:class:`archipel.Embeds`)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from archipel.core.trees import Tree
from archipel.learning.batch_norm import BatchNorm, is_local, receive
from archipel.learning.networks import linear
from archipel.learning.tasks import Supervised, Task


def is_shared(task: Task, model: Tree, policy: BatchNorm = "share") -> bool:
    """Whether all clients' models have one encoder, and normalise by the same statistics.

    Args:
        task: of known parts or not.
        model: what the server holds of it.
        policy: what becomes of BatchNorm's statistics.

    >>> import torch
    >>> from archipel.learning.criteria import CrossEntropy
    >>> from archipel.learning.networks import Network
    >>> task = Supervised(Network(torch.nn.Identity()), 2, 2, CrossEntropy())
    >>> is_shared(task, {"encoder": {}}), is_shared(task, {"head": {}})  # the encoders stay with their clients
    (True, False)
    """
    return isinstance(task, Supervised) and "encoder" in model and not is_local(policy, model)


def embed(task: Task, model: Tree, x: Tensor, shared: bool) -> Tensor:
    """The features of a shared encoder; where it isn't, x."""
    if not shared:
        return x
    assert isinstance(task, Supervised)
    return task.encoder(model["encoder"], model.get("buffers", {}), x)[0]


def answer(task: Task, model: Tree, embedded: Tensor, shared: bool) -> Tensor:
    """What a client's complete model says of them, as :meth:`archipel.learning.tasks.Task.predict` does of x."""
    if not shared:
        return task.predict(model, embedded)
    assert isinstance(task, Supervised)
    return task.criterion.report(linear(model["head"], embedded))


class HasBodyAndHeads(Protocol):
    """An algorithm whose clients share ``server["model"]`` and keep the rest of theirs under ``"head"``."""

    @property
    def task(self) -> Task: ...

    @property
    def batch_norm(self) -> BatchNorm: ...


def embed_body(algorithm: HasBodyAndHeads, server: Tree, x: Tensor) -> Tensor:
    """What the shared body makes of x; where it isn't the same at all clients, statistics included, x itself."""
    return embed(algorithm.task, server["model"], x, _has_one_body(algorithm, server))


def answer_head(algorithm: HasBodyAndHeads, server: Tree, client: Tree, embedded: Tensor) -> Tensor:
    """What a client's own head says of it."""
    model = receive(algorithm.batch_norm, server["model"], client) | client["head"]
    return answer(algorithm.task, model, embedded, _has_one_body(algorithm, server))


def _has_one_body(algorithm: HasBodyAndHeads, server: Tree) -> bool:
    return is_shared(algorithm.task, server["model"], algorithm.batch_norm)
