"""The configuration of a run: every setting with its type, range and default, as in a YAML file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, get_type_hints

from pydantic import Field, create_model, field_validator, model_validator

from archipel.algorithm import Algorithm
from archipel.engines.setting import EngineName, Setting
from archipel.experiments.data_sections import DividedData, NaturalData, OwnData
from archipel.experiments.methods import AnyMethod
from archipel.experiments.sections import CohortSection, EncoderSection, Positive, Section, Seed, StoppingSection
from archipel.experiments.yaml_text import shortened
from archipel.learning.tasks import Described, classification, regression

SETTING = tuple(field.name for field in fields(Setting))
"""The keys that say how a run is carried out."""


def _setting_keys() -> dict[str, Any]:
    """Return the fields of Setting as pydantic takes them; an engine is a name here, and no function."""
    hints = get_type_hints(Setting) | {"engine": EngineName}
    return {field.name: (hints[field.name], field.default) for field in fields(Setting)}


if TYPE_CHECKING:
    _SettingKeys: TypeAlias = Section
else:
    _SettingKeys = create_model("_SettingKeys", __base__=Section, **_setting_keys())


class RunConfig(_SettingKeys):
    """The configuration of one run.

    The keys of :class:`archipel.engines.setting.Setting` stand beside these, as in ``engine: threads``.

    Args:
        name: of the run's folder.
        seed: of everything random.
        rounds: their number.
        evaluate_every: rounds between evaluations; ``None``: only after the last round.
        checkpoint_every: rounds between checkpoints.
        data: what the clients hold.
        cohort: which clients take part in a round.
        groups: for methods of three tiers, the clients of each edge, by name or number.
        encoder: the network from inputs to features.
        algorithm: the method.
        refit: ``"end"``: after the last round, FedSPM's tilts are fitted exactly (:func:`archipel.refitted`), which
            local SGD only approaches. The features of all training examples are gathered for it.
        stopping: end early by validation, as in ``{patience: 5}``, and keep the best round in the run's subfolder
            ``best``; ``None``: run all rounds.
        track: write each round to a tracker as well: ``tensorboard``, ``mlflow`` or ``wandb``.

    >>> config = RunConfig.model_validate({"rounds": 5, "data": {"source": "digits"}, "algorithm": {"name": "fedavg"}})
    >>> config.algorithm.local.lr
    0.01
    >>> config.setting.engine
    'auto'
    """

    name: str = "run"
    seed: Seed = 0
    rounds: Positive
    evaluate_every: Positive | None = 10
    checkpoint_every: Positive = 10
    data: Annotated[DividedData | NaturalData | OwnData, Field(discriminator="source")]
    cohort: CohortSection = Field(default_factory=CohortSection)
    groups: list[list[int | str]] | None = None
    encoder: EncoderSection = Field(default_factory=EncoderSection)
    algorithm: AnyMethod
    refit: Literal["never", "end"] = "never"
    stopping: StoppingSection | None = None
    track: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"

    @property
    def setting(self) -> Setting:
        """How the run is carried out."""
        return Setting(**{name: getattr(self, name) for name in SETTING})

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.setting  # noqa: B018 (checks its values)
        if self.stopping is not None and not self.data.validation:
            raise ValueError("stopping needs validation examples: set data.validation, to 0.2 say.")
        if self.refit == "end" and (self.algorithm.name, getattr(self.algorithm, "encoders", "")) != (
            "fedspm",
            "shared",
        ):
            raise ValueError(
                "refit: end fits the tilts of FedSPM whose components share their encoder: set algorithm.name=fedspm "
                "and algorithm.encoders=shared, or refit: never."
            )
        return self

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if not name or Path(name).name != name or len(name) > 200:
            raise ValueError(
                "names the folder of the run, so it is a word without slashes, of at most 200 letters; given "
                f"{shortened(name)!r}."
            )
        return name


def algorithm_from(config: RunConfig, facts: Described) -> Algorithm:
    """Build the configured algorithm, for a federation or for the facts about it in the folder of a run.

    Args:
        config: of the run.
        facts: a :class:`archipel.Federation`, or the :class:`archipel.runs.facts.Facts` of a run.
    """
    make = regression if facts.classes is None else classification
    return config.algorithm.build(make(config.encoder.build(facts), facts), facts)
