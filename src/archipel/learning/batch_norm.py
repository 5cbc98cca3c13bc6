"""What becomes of BatchNorm's running statistics in a federation: a stated policy instead of an accident.

``"share"``: they are averaged with the parameters, as a plain average of all that a model holds would do.
``"local"``: they stay with each client, which predicts by its own (FedBN's treatment of statistics).
``"recompute"``: nobody sends what training left; after aggregation every client passes its training data through the
aggregated model, and the weighted mean of these statistics goes with it. It costs one more exchange a round.

Parameters are trees with the statistics under ``"buffers"``; without buffers all three are the same.
"""

from __future__ import annotations

from typing import Literal

import torch

from archipel.core.examples import Examples
from archipel.core.torch_internals import BatchNormBase
from archipel.core.trees import Tree, zeros_like
from archipel.learning.networks import modules_of
from archipel.learning.sgd import Loss

BatchNorm = Literal["share", "local", "recompute"]
POLICIES = ("share", "local", "recompute")


def check(policy: str) -> None:
    """Raises ValueError for anything but the three policies."""
    if policy not in POLICIES:
        raise ValueError(f"batch_norm must be one of {', '.join(map(repr, POLICIES))}; given {policy!r}.")


def is_local(policy: BatchNorm, model: Tree) -> bool:
    """Whether clients normalise by statistics of their own, so that no two share a model."""
    return policy == "local" and "buffers" in model


def broadcast(policy: BatchNorm, model: Tree) -> Tree:
    """What the server sends: under ``"local"`` no statistics, since every client uses those it keeps."""
    return _without_statistics(model) if policy == "local" else model


def receive(policy: BatchNorm, model: Tree, client: Tree) -> Tree:
    """The model as the client uses it: under ``"local"`` with the statistics it kept."""
    if policy == "local" and "buffers" in client:
        return model | {"buffers": client["buffers"]}
    return model


def keep(policy: BatchNorm, client: Tree, model: Tree) -> Tree:
    """The client's state after training: under ``"local"`` with the statistics it found."""
    if policy == "local" and "buffers" in model:
        return client | {"buffers": model["buffers"]}
    return client


def send(policy: BatchNorm, model: Tree) -> Tree:
    """What leaves the client: the statistics go along under ``"share"`` alone."""
    return model if policy == "share" else _without_statistics(model)


def _without_statistics(model: Tree) -> Tree:
    return {name: tree for name, tree in model.items() if name != "buffers"}


def recompute(loss: Loss, holder: object, model: Tree, examples: Examples, size: int = 512) -> Tree:
    """Statistics of the model on these examples: the plain average over batches of ``size``.

    Args:
        loss: passes a batch through the model in training mode.
        holder: the task or network that holds the BatchNorm layers.
        model: parameters with ``"buffers"``.
        examples: the client's training examples, unpadded.
    """
    layers = [m for m in modules_of(holder) if isinstance(m, BatchNormBase)]
    momenta = [layer.momentum for layer in layers]
    buffers = zeros_like(model["buffers"])
    try:
        for layer in layers:
            layer.momentum = None  # torch's word for a cumulative average
        with torch.no_grad():
            for batch in examples.pieces(size):
                _, buffers = loss(model | {"buffers": buffers}, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    return buffers
