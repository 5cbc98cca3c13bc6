"""Policies for BatchNorm's running statistics in a federation.

``"share"``: the server averages them like parameters.
``"local"``: each client keeps its own and predicts with them (FedBN's treatment of statistics).
``"recompute"``: clients don't send the statistics of training. After aggregation every client passes its training data
through the aggregated model, and the weighted mean of these statistics belongs to it. This costs one more exchange in
each round.

A model is a tree with the statistics under ``"buffers"``. Without buffers the three policies are the same.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from archipel.core.examples import Examples
from archipel.core.torch_internals import BatchNormBase
from archipel.core.trees import Tree, zeros_like
from archipel.learning.contents import find_modules
from archipel.learning.sgd import Loss

BatchNorm = Literal["share", "local", "recompute"]
POLICIES = get_args(BatchNorm)


def is_local(policy: BatchNorm, model: Tree) -> bool:
    """Whether clients normalise with their own statistics, so that no two share a model."""
    return policy == "local" and "buffers" in model


def broadcast(policy: BatchNorm, model: Tree) -> Tree:
    """Return what the server sends: under ``"local"`` no statistics, since every client uses its own."""
    return _without_statistics(model) if policy == "local" else model


def receive(policy: BatchNorm, model: Tree, client: Tree) -> Tree:
    """Return the model as the client uses it: under ``"local"`` with the client's own statistics."""
    if policy == "local" and "buffers" in client:
        return model | {"buffers": client["buffers"]}
    return model


def keep(policy: BatchNorm, client: Tree, model: Tree) -> Tree:
    """Return the client's state after training: under ``"local"`` with the new statistics."""
    if policy == "local" and "buffers" in model:
        return client | {"buffers": model["buffers"]}
    return client


def send(policy: BatchNorm, model: Tree) -> Tree:
    """Return what the client sends: statistics under ``"share"`` only."""
    return model if policy == "share" else _without_statistics(model)


def _without_statistics(model: Tree) -> Tree:
    return {name: tree for name, tree in model.items() if name != "buffers"}


def recompute(loss: Loss, holder: object, model: Tree, examples: Examples, size: int = 512) -> Tree:
    """Compute the model's statistics on these examples: the plain average over batches.

    Args:
        loss: passes a batch through the model in training mode.
        holder: the task or network that contains the BatchNorm layers.
        model: parameters with ``"buffers"``.
        examples: the client's training examples, unpadded.
        size: examples in a batch.
    """
    layers = [m for m in find_modules(holder) if isinstance(m, BatchNormBase)]
    momenta = [layer.momentum for layer in layers]
    buffers = zeros_like(model["buffers"])
    try:
        for layer in layers:
            layer.momentum = None  # torch then takes a cumulative average
        with torch.no_grad():
            for batch in examples.pieces(size):
                _, buffers = loss(model | {"buffers": buffers}, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    return buffers
