"""The works as a user of Archipel writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedspm import FedSPM
from archipel.algorithms.fpfc import FPFC
from archipel.algorithms.pfedme import PFedMe
from archipel.core import keys
from archipel.core.sampling import Full, Sample
from archipel.core.trees import Tree, leaves
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.engines.setting import Precision, Setting
from archipel.fit import fit
from archipel.learning.criteria import CrossEntropy
from archipel.learning.networks import Network
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Whole, classification
from archipel.models.lenet import LeNet
from archipel.runs.callbacks import Moment
from speed.peers import networks, shards
from speed.work import Work

ROUTING_STEPS = 15
"""Steps of FedSPM's density ratio, and of the router that is compared with it."""


def federation(work: Work) -> Federation:
    """Return clients without test examples, whose examples are views of the rows that all contenders read."""
    x, y = shards.read(work.plain)
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)
    channels = work.shape[0]
    if work.stored == "floats":  # normalised as they are
        inputs = Inputs("image", work.shape, 1.0, (0.0,) * channels, (1.0,) * channels)
    else:
        inputs = Inputs.fit([rows], "image")
    nothing = {"x": rows[:0], "y": labels[:0]}
    clients = []
    for i, place in enumerate(shards.places(work.plain, len(rows))):
        own = torch.full((work.examples,), i) if work.method == "router" else labels[place]
        clients.append(Client(f"client-{i}", {"x": rows[place], "y": own}, nothing))
    classes = work.clients if work.method == "router" else work.classes
    return Federation("speed", tuple(clients), inputs, tuple(map(str, range(classes))))


def algorithm(work: Work, federation: Federation) -> Algorithm:
    """Return the algorithm of a work."""
    counted: dict[str, Any] = {"steps": work.steps} if work.steps else {"epochs": work.epochs}
    local = SGD(lr=work.lr, batch=work.batch, momentum=work.momentum, **counted)
    if work.method in ("fedspm-exact", "fedspm-incremental"):
        encoder, router = LeNet(work.shape, 32), LeNet(work.shape, 32, channels=(8, 16))
        return FedSPM(
            classification(encoder, federation),
            Network(router, federation.inputs),
            components=2,
            local=local,
            routing=SGD(lr=work.lr, batch=work.batch, momentum=0.95, steps=ROUTING_STEPS),
            expectation="exact" if work.method == "fedspm-exact" else "incremental",
        )
    if work.method == "router":
        return FedAvg(classification(LeNet(work.shape, 32, channels=(8, 16)), federation), local)
    if work.steps:  # FedSPM's predictive encoder, without a mixture
        return FedAvg(classification(LeNet(work.shape, 32), federation), local)
    # The weights that all contenders start from, in a module as users make it: the library chooses the memory format.
    network = networks.started(work.plain)
    network.last = False
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    task = Whole(Network(network, federation.inputs, initial="given"), CrossEntropy())
    if work.method == "ditto":
        return Ditto(FedAvg(task, local), local)
    if work.method == "pfedme":
        inner = SGD(lr=work.lr, batch=work.batch, steps=INNER_STEPS)
        return PFedMe(task, inner, penalty=PENALTY, rate=work.lr, local_rounds=work.local_steps)
    if work.method == "fpfc":
        return FPFC(task, local, penalty=1.0)
    return FedAvg(task, local)


INNER_STEPS, PENALTY = 3, 1.0
"""pFedMe's inner steps and λ."""


def run(
    work: Work,
    each: Callable[[Callable[[], float]], None],
    *,
    engine: Any = "auto",
    workers: int | None = None,
    precision: Precision = "float32",
    rounds: int = 1_000_000,
) -> None:
    """Train, round after round.

    Args:
        work: what.
        each: called after each round with a function that returns how far the shared model has moved; it ends the run
            by an exception.
        engine: of :func:`archipel.fit`.
        workers: likewise.
        precision: likewise.
        rounds: largest number of rounds.
    """
    clients = federation(work)

    def moved(moment: Moment) -> float:
        start = moment.algorithm.init_server(moment.clients, keys.fold(keys.key(0), "server"))
        return _distance(_shared(moment.server), _shared(start))

    def after(moment: Moment) -> None:
        each(lambda: moved(moment))

    cohort = Full() if work.cohort == work.clients else Sample(count=work.cohort)
    fit(
        algorithm(work, clients),
        clients,
        rounds=rounds,
        cohort=cohort,
        setting=Setting(engine=engine, workers=workers, precision=precision),
        callbacks=[after],
    )


def _shared(server: Tree) -> list[Tensor]:
    # FedSPM's totals and FPFC's differences are no models
    models = {name: part for name, part in server.items() if name not in ("tau", "pairs")}
    return [leaf for leaf in leaves(models) if leaf.is_floating_point()]


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)))
