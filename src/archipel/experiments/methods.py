"""Methods as configurations describe them: a section for each algorithm, made from its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, Union, get_type_hints

from pydantic import Field, create_model, model_validator

from archipel import algorithms
from archipel.algorithm import Algorithm
from archipel.algorithms.compressed import Compressing
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.feddyn import FedDyn
from archipel.algorithms.fedprox import FedProx
from archipel.compress.compressor import Compressor
from archipel.experiments.sections import CompressorSection, Positive, RouterSection, Section
from archipel.learning.networks import Network
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Described, Supervised


class Local(Section):
    """Local SGD: :class:`archipel.SGD`, with the FedSPM paper's settings as defaults."""

    lr: float = 0.01
    steps: Annotated[int, Field(le=10**6)] | None = 10
    epochs: Annotated[int, Field(le=10**6)] | None = None
    batch: int | None = 128
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float | None = None
    keep_momentum: bool = False
    tolerance: float | None = None

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
    """The same for FedSPM's density-ratio block."""

    steps: int | None = 15
    momentum: float = 0.95


class PlainSolver(Local):
    """The same for methods that read gradients off where local steps end."""

    momentum: float = 0.0


class OneStep(PlainSolver):
    """The same for L2SGD, whose coin decides how many steps there are."""

    steps: int | None = 1


class Tuning(Local):
    """The same for fine-tuning before evaluation: one epoch, and no rounds for a schedule to run over."""

    steps: int | None = None
    epochs: int | None = 1
    schedule: Literal["constant", "cosine"] = "constant"

    @model_validator(mode="before")
    @classmethod
    def _steps_instead(cls, given: Any) -> Any:
        steps = isinstance(given, dict) and given.get("steps") is not None and "epochs" not in given
        return given | {"epochs": None} if steps else given


class MethodSection(Section):
    """What all methods' sections have: they are made of the algorithm's fields, and build it.

    A field that is a solver is a section :class:`Local`, one that is a network a section of its own; the task comes
    from the run's encoder and data.
    """

    name: str

    def build(self, task: Supervised, facts: Described) -> Algorithm:
        values: dict[str, Any] = {"task": task}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Local | CompressorSection):
                values[name] = value.build()
            elif isinstance(value, RouterSection):
                values[name] = Network(value.build(facts), facts.inputs)
            elif isinstance(value, MethodSection):
                values[name] = value.build(task, facts)
            elif name != "name":
                values[name] = tuple(value) if isinstance(value, list) else value
        kind = KINDS[self.name]
        known = {field.name for field in dataclasses.fields(kind)}
        built: Algorithm = kind(**{name: value for name, value in values.items() if name in known})
        return built


KINDS: dict[str, type[Any]] = {
    name.lower(): kind
    for name in algorithms.__all__  # type: ignore[attr-defined]
    if isinstance(kind := getattr(algorithms, name), type)
    and issubclass(kind, Algorithm)
    and "family" not in get_type_hints(kind)
}
"""Every algorithm by the name that configurations give it: its class's, in lower case. Those that fit a family of
distributions (FedEM) have no network to be configured, and `archipel em` as their command."""

SOLVERS: dict[tuple[str, str], type[Local]] = {
    ("fedspm", "routing"): RoutingSolver,
    ("fedgmm", "routing"): RoutingSolver,
    ("fedavgft", "tuning"): Tuning,
    ("fedbabu", "tuning"): Tuning,
    ("feddyn", "local"): PlainSolver,
    ("l2sgd", "local"): OneStep,
    ("proxskip", "local"): PlainSolver,
    ("scaffold", "local"): PlainSolver,
}
OTHERWISE: dict[tuple[str, str], tuple[Any, Any]] = {
    ("fedspm", "components"): (Positive, 2),
    ("fedemexperts", "components"): (Positive, 3),
    ("fedgmm", "components"): (Positive, 3),
    ("fedgmm", "gaussians"): (Positive, 3),
}
"""Fields whose type or default differs here from the algorithm's."""


def section_of(name: str) -> type[MethodSection]:
    """Return the section of a method."""
    kind = KINDS[name]
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {"name": (Literal[name], ...)}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if field.name == "task":
            continue
        if hint is SGD:
            solver = SOLVERS.get((name, field.name), Local)
            fields[field.name] = (solver, Field(default_factory=solver))
        elif hint is Network:
            fields[field.name] = (RouterSection, Field(default_factory=lambda: RouterSection.model_validate({})))
        elif hint is Compressor:
            fields[field.name] = (CompressorSection, Field(default_factory=lambda: CompressorSection(name="natural")))
        elif field.name == "inner":
            within = Inner if kind is Ditto else AnyOther
            fields[field.name] = (within, Field(default_factory=lambda: SECTIONS["fedavg"](name="fedavg")))
        else:
            default = ... if field.default is dataclasses.MISSING else field.default
            default = list(default) if isinstance(default, tuple) else default
            fields[field.name] = OTHERWISE.get((name, field.name), (_in_yaml(hint), default))
    about = (kind.__doc__ or "").split("\n", 1)[0]
    return create_model(f"{kind.__name__}Section", __base__=MethodSection, __doc__=about, **fields)


def _in_yaml(hint: Any) -> Any:
    """Return the type as YAML has it: lists for tuples and sequences."""
    text = str(hint)
    if "Sequence" in text or "tuple" in text:
        inner = list[list[int]] if text.count("Sequence") > 1 else list[str] if "str" in text else list[int]
        return inner | None if "None" in text else inner
    return hint


SECTIONS: dict[str, type[MethodSection]] = {}
for _kind in (FedAvg, FedProx, FedDyn):
    SECTIONS[_kind.__name__.lower()] = section_of(_kind.__name__.lower())

if TYPE_CHECKING:
    Inner: TypeAlias = MethodSection
    AnyOther: TypeAlias = MethodSection
    AnyMethod: TypeAlias = MethodSection
else:
    Inner = Annotated[Union[tuple(SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007 (made at run time)
    SECTIONS |= {name: section_of(name) for name in KINDS if name not in SECTIONS and KINDS[name] is not Compressing}
    AnyOther = Annotated[Union[tuple(SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007
    SECTIONS["compressing"] = section_of("compressing")
    AnyMethod = Annotated[Union[tuple(SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007

FORMS: Sequence[type[MethodSection]] = tuple(SECTIONS.values())
