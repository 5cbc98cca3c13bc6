"""Methods as configurations describe them: a section for each algorithm, made from its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, PlainValidator, ValidationError, create_model, model_validator
from pydantic import Field as Setting
from pydantic_core import InitErrorDetails, PydanticKnownError

from archipel.algorithm import Algorithm
from archipel.algorithms.parts.shared_model import LOCAL
from archipel.algorithms.registry import by_name
from archipel.compress.compressor import Compressor
from archipel.core.checks import check_setting, hints_of
from archipel.experiments.own_code import is_own, own_class
from archipel.experiments.sections import CompressorSection, RouterSection, Section
from archipel.learning.networks import Network
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Described, Supervised


class SolverSection(Section):
    """A local solver: the fields of :class:`archipel.SGD`, with the defaults of the method's own solver."""

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, given: Any) -> Any:
        """Let the length that is given, steps or epochs, replace the default one."""
        if isinstance(given, dict):
            for one, other in (("steps", "epochs"), ("epochs", "steps")):
                if given.get(one) is not None and other not in given:
                    return given | {other: None}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self

    def build(self) -> SGD:
        """Make the solver."""
        return SGD(**self.model_dump())


@cache
def solver_section(default: SGD = LOCAL) -> type[SolverSection]:
    """Make the section of a solver with these defaults."""
    hints: Any = hints_of(SGD)
    settings: dict[str, Any] = {f.name: (hints[f.name], getattr(default, f.name)) for f in fields(SGD)}
    del settings["augment"]  # a function, which no configuration can name
    return create_model("Solver", __base__=SolverSection, __doc__=SolverSection.__doc__, **settings)


class MethodSection(Section):
    """What all methods' sections have: they are made of the algorithm's fields, and build it.

    A field that is a solver is a section :class:`SolverSection`, one that is a network a section of its own; the task
    comes from the run's encoder and data.
    """

    name: str

    def build(self, task: Supervised, facts: Described) -> Algorithm:
        """Make the algorithm."""
        values: dict[str, Any] = {"task": task}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SolverSection | CompressorSection):
                values[name] = value.build()
            elif isinstance(value, RouterSection):
                values[name] = Network(value.build(facts), facts.inputs)
            elif isinstance(value, MethodSection):
                values[name] = value.build(task, facts)
            elif name != "name":
                values[name] = tuple(value) if isinstance(value, list) else value
        kind = kind_named(self.name)
        known = {field.name for field in fields(kind)}
        built: Algorithm = kind(**{name: value for name, value in values.items() if name in known})
        return built


KINDS: dict[str, type[Any]] = {name: kind for name, kind in by_name().items() if "family" not in hints_of(kind)}  # type: ignore[arg-type]
"""Every algorithm by the name that configurations give it: its class's, in lower case. Those that fit a family of
distributions (FedEM) have no network to be configured, and `archipel em` as their command."""


def kind_named(name: str) -> type[Any]:
    """Return the algorithm of a name: one of the library's, or one of the user's own, ``my_module:MyMethod``."""
    return own_class(name, Algorithm) if is_own(name) else KINDS[name]


@dataclass(frozen=True)
class Sections(Mapping[str, type[MethodSection]]):
    """The sections of methods by their names. The user's own are found, too, but not listed.

    Args:
        takes: whether a method is allowed here, by its class.
    """

    takes: Callable[[type[Any]], bool] = lambda kind: True

    def __getitem__(self, name: str) -> type[MethodSection]:
        if not (is_own(name) or name in KINDS) or not self.takes(kind_named(name)):
            raise KeyError(name)
        return section_of(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, kind in KINDS.items() if self.takes(kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def validate(self, given: Any) -> MethodSection:
        """Validate a section by the method that its name says.

        Errors lie where pydantic puts those of a union that is told apart by a tag: below the method's name.
        """
        if isinstance(given, MethodSection):
            return given
        if not isinstance(given, dict):
            raise PydanticKnownError("dict_type")
        if "name" not in given:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'name'"})
        name = given["name"]
        if not isinstance(name, str) or name not in self:
            tags = {"discriminator": "'name'", "tag": str(name), "expected_tags": ", ".join(self)}
            raise PydanticKnownError("union_tag_invalid", tags)
        try:
            return self[name].model_validate(given)
        except ValidationError as error:
            raise ValidationError.from_exception_data(name, [_below(name, dict(e)) for e in error.errors()]) from None

    @property
    def annotation(self) -> Any:
        """The type of a setting that holds such a section, for pydantic."""
        return Annotated[Any, PlainValidator(self.validate), self]


def _below(name: str, problem: dict[str, Any]) -> InitErrorDetails:
    where = (name, *problem["loc"])
    return InitErrorDetails(type=problem["type"], loc=where, input=problem["input"], ctx=problem.get("ctx", {}))


SECTIONS = Sections()

if TYPE_CHECKING:
    AnyMethod: TypeAlias = MethodSection
else:
    AnyMethod = SECTIONS.annotation
"""A section of any method, the user's own ones included."""


@cache
def section_of(name: str) -> type[MethodSection]:
    """Make the section of a method, from the fields of its class."""
    kind = kind_named(name)
    hints: Any = hints_of(kind)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"name": (Literal[name], ...)}
    settings |= {f.name: _setting(kind, f, hints[f.name]) for f in fields(kind) if f.name != "task"}
    about = (kind.__doc__ or "").split("\n", 1)[0]
    return create_model(f"{kind.__name__}Section", __base__=MethodSection, __doc__=about, **settings)


def _setting(kind: type[Any], field: Field[Any], hint: Any) -> tuple[Any, Any]:
    """Return the type and the default of one field as pydantic takes them."""
    if hint is SGD:
        solver = solver_section(LOCAL if field.default is MISSING else field.default)
        return solver, Setting(default_factory=solver)
    if hint is Network:
        return RouterSection, Setting(default_factory=lambda: RouterSection.model_validate({}))
    if hint is Compressor:
        return CompressorSection, Setting(default_factory=lambda: CompressorSection(name="natural"))
    if hint is Algorithm:
        inner = Sections(kind.takes) if hasattr(kind, "takes") else SECTIONS
        return inner.annotation, Setting(default_factory=lambda: section_of("fedavg")(name="fedavg"))
    default = ... if field.default is MISSING else field.default

    def checked(value: Any) -> Any:
        check_setting(kind.__name__, field.name, value, hint)
        return value

    return Annotated[_in_yaml(hint), AfterValidator(checked)], list(default) if isinstance(default, tuple) else default


def _in_yaml(hint: Any) -> Any:
    """Return the type as YAML has it: lists for tuples and sequences."""
    text = str(hint)
    if "Sequence" in text or "tuple" in text:
        inner = list[list[int]] if text.count("Sequence") > 1 else list[str] if "str" in text else list[int]
        return inner | None if "None" in text else inner
    return hint
