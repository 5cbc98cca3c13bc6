"""Sections of a configuration that belong to no folder of their own: cohorts and compressors; and their base."""

from __future__ import annotations

import inspect
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from archipel.compress.compressor import Compressor
from archipel.compress.registry import COMPRESSORS
from archipel.core.sampling import Cohort, Full, Sample

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors, and ``"3"`` or ``true`` is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
