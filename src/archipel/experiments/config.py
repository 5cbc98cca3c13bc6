"""What a run is made of, as a YAML file says it: every setting with its type, range and default."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from archipel.algorithm import Algorithm
from archipel.engines.setting import Setting
from archipel.experiments.methods import AnyMethod
from archipel.experiments.sections import Arrays, CohortSection, Divided, EncoderSection, Natural, Positive, Section
from archipel.learning.tasks import Described, classification, regression


class RunConfig(Section):
    """One run. See :func:`archipel.fit` for what stands at the top.

    >>> config = RunConfig.model_validate({"rounds": 5, "data": {"source": "digits"}, "algorithm": {"name": "fedavg"}})
    >>> config.algorithm.local.lr
    0.01
    """

    name: str = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Positive
    evaluate_every: Positive | None = 10
    engine: Literal["auto", "loop", "threads", "batched", "processes", "wire"] = "auto"
    workers: Positive | None = None
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    compile: Literal["default", "reduce-overhead"] | None = None
    states: Literal["auto", "memory", "disk"] = "auto"
    checkpoint_every: Positive = 10
    data: Annotated[Divided | Natural | Arrays, Field(discriminator="source")]
    cohort: CohortSection = Field(default_factory=CohortSection)
    groups: list[list[int | str]] | None = None
    encoder: EncoderSection = Field(default_factory=EncoderSection)
    algorithm: AnyMethod

    @property
    def setting(self) -> Setting:
        """How the run is carried out."""
        return Setting(**{field.name: getattr(self, field.name) for field in fields(Setting)})

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if not name or Path(name).name != name:
            raise ValueError(f"names the run's folder, so it is a word without slashes; given {name!r}.")
        return name


def algorithm_from(config: RunConfig, facts: Described) -> Algorithm:
    """The configured algorithm, for a federation or for what a run's folder knows of it.

    Args:
        config: of the run.
        facts: a :class:`archipel.Federation` or :class:`archipel.runs.facts.Facts`.
    """
    make = regression if facts.classes is None else classification
    return config.algorithm.build(make(config.encoder.build(facts), facts), facts)
