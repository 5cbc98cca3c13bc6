"""Which engine carries the steps, chosen by the model or by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from archipel.algorithm import Algorithm
from archipel.clients.batched import Batched
from archipel.clients.carrier import Carrier
from archipel.clients.loop import Loop
from archipel.clients.wire import Wire
from archipel.data.federation import Federation
from archipel.task import modules_of

Engine = Literal["auto", "loop", "batched", "wire"] | Callable[[Algorithm, Federation], Carrier]
NAMES = ("auto", "loop", "batched", "wire")


def choose(engine: Engine, algorithm: Algorithm, federation: Federation, workers: int | None) -> tuple[Carrier, str]:
    """A carrier, and one line that says why it was chosen.

    On CPUs convolutions gain nothing from batching over clients and run fastest one client a core; small dense models
    are bound by overhead, which batching shares. BatchNorm must not see padding, recurrent layers batch slowly.

    Args:
        engine: a name, or a function that makes a carrier.
        workers: threads for the loop; ``None``: one a core.
    """
    if callable(engine):
        return engine(algorithm, federation), "given by hand"
    if engine not in NAMES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, NAMES))}, or a function; given {engine!r}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(workers or cores, len(federation.clients))
    if engine == "loop":
        return Loop(algorithm, federation, threads if workers else 1), "given by hand"
    if engine == "batched":
        return Batched(algorithm, federation), "given by hand"
    if engine == "wire":
        return Wire(algorithm, federation), "given by hand"
    found = list(modules_of(algorithm))
    if any(isinstance(m, _ConvNd) for m in found):
        return Loop(algorithm, federation, threads), f"convolutions: clients one by one on {threads} threads"
    if any(isinstance(m, _BatchNorm | nn.RNNBase) for m in found):
        return Loop(algorithm, federation), "BatchNorm or recurrent layers: clients one by one"
    counts = [len(client.train["y"]) for client in federation.clients]
    if max(counts) * len(counts) > 4 * sum(counts):
        return Loop(algorithm, federation), "sizes too uneven to pad: clients one by one"
    return Batched(algorithm, federation), "a small dense model: clients in batches"
