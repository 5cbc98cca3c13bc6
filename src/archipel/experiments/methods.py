"""Methods as configurations describe them, one section each."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from archipel.algorithms import FedAvg, FedSPM
from archipel.batchnorm import BatchNorm
from archipel.experiments.sections import Positive, RouterSection, Section
from archipel.local import SGD
from archipel.task import Described, Network, Supervised


class Local(Section):
    """Local SGD: :class:`archipel.SGD`, with the FedSPM paper's settings as defaults."""

    lr: float = 0.01
    steps: int | None = 10
    epochs: int | None = None
    batch: int | None = 128
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float | None = None
    keep_momentum: bool = False

    @model_validator(mode="before")
    @classmethod
    def _epochs_instead(cls, given: Any) -> Any:
        epochs = isinstance(given, dict) and given.get("epochs") is not None and "steps" not in given
        return given | {"steps": None} if epochs else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> SGD:
        return SGD(**self.model_dump())


class RoutingSolver(Local):
    """The same for the density-ratio block."""

    steps: int | None = 15
    momentum: float = 0.95


class FedAvgSection(Section):
    """Federated averaging: :class:`archipel.FedAvg`."""

    name: Literal["fedavg"]
    local: Local = Field(default_factory=Local)
    weights: Literal["examples", "uniform"] = "examples"
    batch_norm: BatchNorm = "share"

    def build(self, task: Supervised, facts: Described) -> FedAvg:
        return FedAvg(task, self.local.build(), self.weights, self.batch_norm)


class FedSPMSection(Section):
    """Semiparametric mixture with routing: :class:`archipel.FedSPM`."""

    name: Literal["fedspm"]
    components: Positive = 2
    router: RouterSection = Field(default_factory=lambda: RouterSection.model_validate({}))
    local: Local = Field(default_factory=Local)
    routing: RoutingSolver = Field(default_factory=RoutingSolver)
    encoders: Literal["shared", "own"] = "shared"
    expectation: Literal["exact", "incremental"] = "exact"
    batch_norm: BatchNorm = "share"

    def build(self, task: Supervised, facts: Described) -> FedSPM:
        return FedSPM(
            task,
            Network(self.router.build(facts), facts.inputs),
            self.components,
            self.local.build(),
            self.routing.build(),
            self.encoders,
            self.expectation,
            self.batch_norm,
        )
