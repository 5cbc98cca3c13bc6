"""What is wrong with a configuration, in sentences: where, what was given, what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from archipel.experiments.yaml_text import shortened

MOST = 20
"""How many faults are told at once."""

Form = type[BaseModel]


def explain(error: ValidationError, model: Form) -> list[str]:
    """Return a line for each fault, the first 20 of them.

    Args:
        error: that pydantic raised.
        model: the model that was validated.
    """
    problems = error.errors()
    lines = [_explain(dict(problem), model) for problem in problems[:MOST]]
    return lines + ([f"and {len(problems) - MOST:,} more."] if len(problems) > MOST else [])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'this'?``, or nothing."""
    near = difflib.get_close_matches(word[:100], list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def forms(field: FieldInfo | None) -> Mapping[str, Form]:
    """Return the forms that a section comes in, by the value that tells them apart; empty if it has one form only."""
    if field is None:
        return {}
    if not isinstance(field.discriminator, str):  # methods: made when they are asked for, by their annotation
        return next((found for found in field.metadata if isinstance(found, Mapping)), {})
    return {
        str(tag): form
        for form in get_args(field.annotation)
        if isinstance(form, type) and issubclass(form, BaseModel)
        for tag in get_args(form.model_fields[field.discriminator].annotation)
    }


def _explain(problem: Mapping[str, Any], model: Form) -> str:
    """Return one line on one of pydantic's findings."""
    path, parent, field = _place(problem["loc"], model)
    kind, context, given = problem["type"], problem.get("ctx", {}), shortened(repr(problem["input"]))
    if kind == "extra_forbidden":
        known = list(parent.model_fields) if parent else []
        return f"{path}: there is no such key.{nearest(path.rsplit('.', 1)[-1], known)} There are: {', '.join(known)}."
    if kind == "missing":
        return f"{path}: is missing; it has no default."
    if kind.startswith("union_tag"):
        names, tag = list(forms(field)), str(context.get("tag", ""))
        wrong = f"is {shortened(repr(tag))}" if "tag" in context else "is missing"
        key = (field.discriminator if field is not None else None) or "name"
        return f"{path}.{key}: {wrong}; it is one of {', '.join(names)}.{nearest(tag, names)}"
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", context["expected"])
        return f"{path}: is one of {', '.join(names)}; given {given}.{nearest(str(problem['input']), names)}"
    if kind == "value_error":
        said = shortened(str(context["error"]), 600)
        return f"{path}: {said}" if problem["loc"] else said  # a fault of several keys names them itself
    if kind == "invalid_key":
        return f"{path}: keys are words; given {given}."
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{path}: is a section, with settings of its own; given {given}."
    return f"{path}: {problem['msg'].replace('Input should', 'should')}; given {given}."


def _place(loc: tuple[int | str, ...], model: Form) -> tuple[str, Form | None, FieldInfo | None]:
    """Return pydantic's location as a dotted path of keys, the model that holds the last key, and the key's field."""
    path: list[str] = []
    parent: Form | None = None
    here: Form | None = model
    field: FieldInfo | None = None
    parts = iter(loc)
    for part in parts:
        path.append(shortened(str(part), 60))
        parent, field = here, here.model_fields.get(str(part)) if here else None
        known = forms(field)
        if known:
            here = known.get(str(next(parts, None)))  # pydantic names the form here, which is not a key
        else:
            annotation = None if field is None else field.annotation
            here = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return ".".join(path) or "the whole", parent, field
