"""Sections of a configuration that describe networks."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator
from torch import nn

from archipel.experiments.own_code import build_own, check_own_options, is_own, own_class
from archipel.experiments.sections import Positive, Section
from archipel.learning.tasks import Described
from archipel.models.registry import build as build_encoder
from archipel.models.registry import check_options

FILLED_IN = ("shape", "features")
"""Parameters of an encoder that Archipel fills in: the shape of an example, and the ``features`` of the section."""


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
