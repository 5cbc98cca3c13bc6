"""Sections of a configuration that several methods share: cohorts, compressors, networks; and the base of all."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from torch import nn

from archipel.compress.compressor import Compressor
from archipel.compress.registry import COMPRESSORS
from archipel.core.sampling import Cohort, Full, Sample
from archipel.experiments.own_code import build_own, check_own_options, is_own, own_class
from archipel.experiments.yaml_text import shortened
from archipel.learning.tasks import Described
from archipel.models.registry import build as build_encoder
from archipel.models.registry import check_options
from archipel.runs.stopping import EarlyStopping

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


MOST_COUNT, MOST_SIZE = 10**6, 1e30
"""Beyond these a count, or another number, is a slip: it takes all memory, or overflows float32."""


def _check_size(value: Any) -> None:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_size(inner)
    elif isinstance(value, int) and abs(value) > MOST_COUNT:
        raise ValueError(f"is at most {MOST_COUNT:,}; given {shortened(str(value), 50)}.")
    elif isinstance(value, float) and MOST_SIZE < abs(value) < float("inf"):
        raise ValueError(f"is at most {MOST_SIZE:g}; given {value}.")


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors, and ``"3"`` or ``true`` is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @field_validator("*")
    @classmethod
    def _not_too_large(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name != "seed":
            _check_size(value)
        return value

    @model_validator(mode="after")
    def _options_not_too_large(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            try:
                _check_size(value)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        return self


class CompressorSection(Section):
    """How the clients' replies are compressed: :mod:`archipel.compress`.

    Args:
        name: of the compressor's class, in lower case; all other keys are its fields, as in ``{name: dithering,
            levels: 4}``.
    """

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> Compressor:
        known = {name.lower(): kind for name, kind in COMPRESSORS.items()}
        if self.name not in known:
            raise ValueError(f"There is no compressor {self.name!r}; there are {', '.join(known)}.")
        given = self.model_extra or {}
        try:
            return known[self.name](**given)
        except TypeError as error:  # an unknown field, or a missing one
            has = ", ".join(inspect.signature(known[self.name]).parameters) or "none"
            raise ValueError(f"{self.name}'s settings are {has}; given {', '.join(given) or 'none'}.") from error


class CohortSection(Section):
    """Which clients take part in a round: all of them, or a sample drawn by :class:`archipel.Sample`.

    Args:
        fraction: of the clients.
        count: number of clients.
        weighted: draw clients with probabilities proportional to their numbers of examples.
    """

    fraction: float | None = None
    count: int | None = None
    weighted: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weighted and self.fraction is None and self.count is None:
            raise ValueError("weighted needs a fraction or a count of clients to draw.")
        self.build()
        return self

    def build(self) -> Cohort:
        everybody = self.fraction is None and self.count is None
        return Full() if everybody else Sample(self.fraction, self.count, self.weighted)


FILLED_IN = ("shape", "features")
"""Parameters of an encoder that Archipel fills in: the shape of an example, and the ``features`` of the section."""


class StoppingSection(Section):
    """When a run ends early: the fields of :class:`archipel.EarlyStopping`; needs validation examples.

    Args:
        patience: validations without improvement after which the run ends.
        every: rounds between validations.
        metric: what is validated; ``None``: the Brier score, or RMSE.
        least: an improvement is larger than this.
    """

    patience: Positive = 5
    every: Positive = 1
    metric: Literal["accuracy", "balanced_accuracy", "auc", "f1", "brier", "r2", "mae", "rmse"] | None = None
    least: Annotated[float, Field(ge=0)] = 0.0

    def build(self, folder: Path) -> EarlyStopping:
        """Make the callback of a run in a folder."""
        return EarlyStopping(self.patience, self.every, self.metric, self.least, folder)


class EncoderSection(Section):
    """A network from inputs to features: :func:`archipel.models.build`, or a module of your own.

    Args:
        name: of the encoder, or ``my_module:MyNet``, a ``torch.nn.Module`` of your own.
        features: width of its output. A module of your own is told if its constructor has a parameter ``features``,
            and the shape of an example if it has a parameter ``shape``.
        options: its other parameters, as in ``{channels: [8, 16]}`` for a LeNet.
    """

    name: str = "lenet"
    features: Positive = 32
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if is_own(name):
            own_class(name, nn.Module)
        else:
            check_options(name, ())
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if is_own(self.name):
            check_own_options(own_class(self.name, nn.Module), self.options, FILLED_IN)
        else:
            check_options(self.name, self.options)
        return self

    def build(self, facts: Described) -> nn.Module:
        """Build the network for the examples of a federation."""
        shape = facts.inputs.shape
        if is_own(self.name):
            kind = own_class(self.name, nn.Module)
            own: nn.Module = build_own(kind, self.options, shape=shape, features=self.features)
            return own
        try:
            return build_encoder(self.name, shape, self.features, **self.options)
        except TypeError as error:
            raise ValueError(f"{self.name} can't be built with the options {self.options}: {error}.") from error


class RouterSection(EncoderSection):
    """The network of a router; a LeNet has half the width by default.

    Telling clients apart by their images is easier than telling labels.
    """

    @model_validator(mode="before")
    @classmethod
    def _light(cls, given: Any) -> Any:
        lenet = isinstance(given, dict) and given.get("name", "lenet") == "lenet"
        return {"options": {"channels": [8, 16]}} | given if lenet else given
