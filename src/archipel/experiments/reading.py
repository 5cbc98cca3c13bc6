"""Configurations read from presets, files and the command line, with errors a person can act on."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from archipel.experiments.config import RunConfig
from archipel.experiments.methods import SECTIONS
from archipel.experiments.presets import PRESETS
from archipel.experiments.sections import Arrays, Divided, Natural

# Sections that come in several forms: which key tells the forms apart, and the forms.
FORMS: dict[str, tuple[str, tuple[type[BaseModel], ...]]] = {
    "data": ("source", (Divided, Natural, Arrays)),
    "algorithm": ("name", tuple(SECTIONS.values())),
}


class _Loader(yaml.SafeLoader):
    """YAML with numbers as YAML 1.2 and people write them (1e-3), and without keys that stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = [self.construct_object(key) for key, _ in node.value]
        twice = next((key for key in found if found.count(key) > 1), None)
        if twice is not None:
            raise yaml.MarkedYAMLError(problem=f"the key {twice!r} stands twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = copy.deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_config(what: str, overrides: Sequence[str] = ()) -> RunConfig:
    """A run's configuration.

    Args:
        what: a preset's name or a YAML file.
        overrides: ``key=value`` with dots for sections; values are YAML. Where one switches a section of a preset to
            another form (``algorithm.name=fedavg``), settings of the preset which that form doesn't have are left out.

    Raises:
        ValueError: all that is wrong, a line each.
        FileNotFoundError: there is no such file.

    >>> read_config("digits-fedspm", ["algorithm.name=fedavg", "algorithm.local.lr=5e-2"]).algorithm.local.lr
    0.05
    >>> read_config("digit-fedspm")
    Traceback (most recent call last):
    ValueError: There is no preset 'digit-fedspm'. Did you mean 'digits-fedspm'? There are: fmnist-fedavg, ...
    """
    given = [_parse_override(text) for text in overrides]
    if what in PRESETS:
        settings = _switch_forms(PRESETS[what].settings, given) | {"name": what}
    elif Path(what).suffix in (".yaml", ".yml") or Path(what).is_file():
        settings = {"name": Path(what).stem} | read_yaml(Path(what))
    else:
        hint = nearest(what, PRESETS)
        raise ValueError(
            f"There is no preset {what!r}.{hint} There are: {', '.join(PRESETS)}; or give a file that ends in .yaml."
        )
    for path, value in given:
        settings = _put(settings, path, value)
    return validate(settings, what)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. `archipel show PRESET > {path}` makes one to start from.")
    try:
        found = yaml.load(path.read_text(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read as YAML: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold settings as `key: value`; it holds {type(found).__name__}.")
    return found


def to_yaml(config: RunConfig) -> str:
    """The configuration with every default, as a file that ``read_config`` reads."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True, default_flow_style=False)


def validate(settings: dict[str, Any], what: str) -> RunConfig:
    """Checks settings; the error names everything that is wrong at once."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        lines = [_explain(dict(problem)) for problem in error.errors()]
        raise ValueError(f"{what} isn't a run that can be made:\n" + "\n".join(f"  {line}" for line in lines)) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'this'?``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(
            f"Settings are given as key=value, such as rounds=20 or algorithm.local.lr=0.05; given {text!r}."
        )
    try:
        return key.split("."), yaml.load(value, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"The value of {key} can't be read as YAML: {value!r}.") from error


def _put(settings: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Settings with one of them set; a new mapping, since sections may be shared (YAML's aliases)."""
    head, *rest = path
    if not rest:
        return settings | {head: value}
    section = settings.get(head, {})
    if not isinstance(section, dict):
        raise ValueError(f"{head}.{'.'.join(rest)} can't be set: {head} is the value {section!r}.")
    return settings | {head: _put(section, rest, value)}


def _switch_forms(settings: dict[str, Any], given: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """A preset's settings without what it says for a form of a section that the user switched away from."""
    for path, value in given:
        section = settings.get(path[0])
        if len(path) == 2 and path[0] in FORMS and isinstance(section, dict) and path[1] == FORMS[path[0]][0]:
            form = next((form for form in FORMS[path[0]][1] if value in _tags(form, path[1])), None)
            if form is not None:
                kept = {key: value for key, value in section.items() if key in form.model_fields}
                settings = settings | {path[0]: kept}
    return settings


def _tags(form: type[BaseModel], key: str) -> tuple[Any, ...]:
    return get_args(form.model_fields[key].annotation)


def _explain(problem: dict[str, Any]) -> str:
    """One line on one of pydantic's findings: where, what was given, what is allowed."""
    path, model = _place(problem["loc"])
    kind, context, given = problem["type"], problem.get("ctx", {}), problem["input"]
    if kind == "extra_forbidden":
        known = list(model.model_fields) if model else []
        return f"{path}: there is no such key.{nearest(path.rsplit('.', 1)[-1], known)} There are: {', '.join(known)}."
    if kind == "missing":
        return f"{path}: is missing; it has no default."
    if kind.startswith("union_tag"):
        key, forms = FORMS[path]
        names = [str(tag) for form in forms for tag in _tags(form, key)]
        wrong = f"is {context['tag']!r}" if "tag" in context else "is missing"
        return f"{path}.{key}: {wrong}; it is one of {', '.join(names)}.{nearest(str(context.get('tag')), names)}"
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", context["expected"])
        return f"{path}: is one of {', '.join(names)}; given {given!r}.{nearest(str(given), names)}"
    if kind == "value_error":
        return f"{path}: {context['error']}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{path}: is a section, with settings of its own; given {given!r}."
    return f"{path}: {problem['msg'].replace('Input should', 'should')}; given {given!r}."


def _place(loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None]:
    """Pydantic's location as the dotted path of a key, and the model that the last key is looked for in."""
    path: list[str] = []
    parent: type[BaseModel] | None = None
    here: type[BaseModel] | None = RunConfig
    parts = iter(loc)
    for part in parts:
        path.append(str(part))
        parent, field = here, here.model_fields.get(str(part)) if here else None
        here = None
        if len(path) == 1 and part in FORMS:
            key, forms = FORMS[str(part)]
            tag = next(parts, None)  # pydantic names the form here, which isn't a key
            here = next((form for form in forms if tag in _tags(form, key)), None)
        elif field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            here = field.annotation
    return ".".join(path), parent
