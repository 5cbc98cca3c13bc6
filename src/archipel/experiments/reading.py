"""Configurations read from presets, files and the command line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from archipel.experiments.config import SETTING, RunConfig
from archipel.experiments.explain import explain, forms, nearest
from archipel.experiments.own_code import import_own, is_own
from archipel.experiments.presets import PRESETS
from archipel.experiments.yaml_text import parse, read_yaml, shortened


def read_config(what: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read the configuration of a run.

    Args:
        what: the name of a preset, or a YAML file.
        overrides: ``key=value`` with dots for sections; values are YAML. If one switches a section of a preset to
            another form (``algorithm.name=fedavg``), settings of the preset that this form doesn't have are left out,
            with a warning; so are the options of a network whose name changes. A class of your own that is named here
            (``encoder.name=my_module:MyNet``) is imported.

    Raises:
        ValueError: lists everything that is wrong, one fault a line.
        FileNotFoundError: there is no such file.

    >>> read_config("digits-fedspm", ["rounds=5", "algorithm.local.lr=5e-2"]).algorithm.local.lr
    0.05
    >>> read_config("digit-fedspm")
    Traceback (most recent call last):
    ValueError: There is no preset 'digit-fedspm'. Did you mean 'digits-fedspm'? There are: fmnist-fedavg, ...
    """
    given = [_parse_override(text) for text in overrides]
    for path, value in given:
        if path[-1] == "name" and is_own(value):
            import_own(value.partition(":")[0])
    if what in PRESETS:
        settings = _switch_networks(_switch_forms(PRESETS[what].settings, given), given) | {"name": what}
    elif Path(what).suffix in (".yaml", ".yml") or (len(what) < 256 and Path(what).is_file()):
        settings = {"name": Path(what).stem} | read_yaml(Path(what))
    else:
        raise ValueError(
            f"There is no preset {shortened(what)!r}.{nearest(what, PRESETS)} There are: {', '.join(PRESETS)}; or give "
            "a file that ends in .yaml."
        )
    for path, value in given:
        settings = _put(settings, path, value)
    return validate(settings, what)


def to_yaml(config: RunConfig) -> str:
    """Write the configuration with every default, as a file that ``read_config`` reads."""
    values = config.model_dump()
    values |= {name: values.pop(name) for name in SETTING}  # last: how a run is carried out matters least
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False)


def validate(settings: dict[str, Any], what: str) -> RunConfig:
    """Check settings.

    Raises:
        ValueError: lists everything that is wrong, one fault a line.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        lines = "\n".join(f"  {line}" for line in explain(error, RunConfig))
        raise ValueError(f"{what} isn't a run that can be made:\n{lines}") from None


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(
            f"Settings are given as key=value, such as rounds=20 or algorithm.local.lr=0.05; given {shortened(text)!r}."
        )
    try:
        return key.split("."), parse(value)
    except ValueError as error:
        raise ValueError(
            f"The value of {shortened(key)} can't be read as YAML: {shortened(value)!r}: {error}."
        ) from error


def _put(settings: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return settings with one of them set, as a new mapping: sections may be shared by aliases."""
    head, *rest = path
    if not rest:
        return settings | {head: value}
    section = settings.get(head, {})
    if not isinstance(section, dict):
        raise ValueError(f"{head}.{'.'.join(rest)} can't be set: {head} is the value {shortened(repr(section))}.")
    return settings | {head: _put(section, rest, value)}


def _switch_forms(settings: dict[str, Any], given: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return a preset's settings without those that the form of a section that the user chose doesn't have."""
    for path, value in given:
        field = RunConfig.model_fields.get(path[0])
        section, key = settings.get(path[0]), (field and field.discriminator) or "name"
        if len(path) != 2 or path[1] != key or not isinstance(section, dict):
            continue
        form = forms(field).get(str(value))
        if form:
            kept = {name: setting for name, setting in section.items() if name in form.model_fields}
            if section.get(key) != value:
                _tell_switch(path[0], str(value), section, form)
            settings = settings | {path[0]: kept}
    return settings


def _switch_networks(settings: dict[str, Any], given: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return a preset's settings without the options of networks that the user replaced by others."""
    for path, value in given:
        section: Any = settings
        for key in path[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if path[-1] != "name" or not isinstance(section, dict) or not section.get("options"):
            continue
        if section.get("name") != value:
            place = ".".join(path[:-1])
            lost = ", ".join(section["options"])
            warnings.warn(f"The preset's {place}.options are another network's and are left out: {lost}.", stacklevel=3)
            settings = _put(settings, [*path[:-1], "options"], {})
    return settings


def _tell_switch(place: str, value: str, section: dict[str, Any], form: type[BaseModel]) -> None:
    """Warn of what a switch to another form changes beside it: settings left out, and solvers with other defaults."""
    left_out = [key for key in section if key not in form.model_fields]
    defaults = [
        key
        for key, field in form.model_fields.items()
        if key not in section and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    ]
    if left_out:
        said = f"{value} has no {' and no '.join(left_out)}, so the preset's settings for these are left out"
        rest = f"; {', '.join(f'{place}.{key}' for key in defaults)} keep their defaults" if defaults else ""
        warnings.warn(f"{said}{rest}.", stacklevel=4)
    elif defaults:
        keys = ", ".join(f"{place}.{key}" for key in defaults)
        warnings.warn(f"The preset sets nothing for {keys} of {value}: the defaults are used.", stacklevel=4)
