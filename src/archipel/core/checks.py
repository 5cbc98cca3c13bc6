"""Checks of settings where they enter: what was given, what is allowed.

A dataclass of settings says by its annotations what each may be, and :func:`check_settings` checks them all:
``penalty: NonNegative``, ``local_rounds: PositiveInt``, ``participants: Literal["sampled", "all"]``, ``local: SGD``.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

Kind = TypeVar("Kind", bound=type)
# C0 except \t and \n, DEL, C1, and the characters that reorder text (bidirectional overrides and isolates).
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    r"""Leave out control characters: in a terminal they could hide text, move the cursor or set the window's title.

    >>> clean("Lyon\x1b[31m\r")
    'Lyon[31m'
    """
    return CONTROL.sub("", text)


@dataclass(frozen=True)
class Interval:
    """The numbers that a setting may take.

    Args:
        low: the lower end.
        high: the upper end; infinity is never allowed itself.
        ends: which ends are allowed: brackets as in ``"[)"``.
    """

    low: float
    high: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[)"

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        return above and (value <= self.high if self.ends[1] == "]" else value < self.high)

    def __str__(self) -> str:
        """Return what is required of a number, as a sentence about it goes on."""
        if self.high == math.inf:
            return f"be {f'{self.low:g} or above' if self.ends[0] == '[' else f'above {self.low:g}'} and finite"
        return f"lie in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"


Positive = Annotated[float, Interval(0, ends="()")]
NonNegative = Annotated[float, Interval(0)]
Fraction = Annotated[float, Interval(0, 1, "[]")]
PositiveInt = Annotated[int, Interval(1)]

_DESCRIBED: dict[type, tuple[str, Callable[[Any], bool]]] = {}


def setting(described: str, check: Callable[[Any], bool] | None = None) -> Callable[[Kind], Kind]:
    """Register a class as the type of settings.

    Args:
        described: what a setting of this type is, for the error about anything else: ``"a solver, SGD(…), say"``.
        check: whether a value is one; default: whether it is an instance.
    """

    def register(kind: Kind) -> Kind:
        _DESCRIBED[kind] = described, check or (lambda value: isinstance(value, kind))
        return kind

    return register


def check_settings(settings: Any) -> None:
    """Check the fields of a dataclass against their annotations; a class that nobody registered isn't checked.

    Raises:
        TypeError: a value that isn't of the registered class, or no list of names.
        ValueError: a number out of its interval, or a word that isn't among the allowed.

    >>> @dataclass(frozen=True)
    ... class Method:
    ...     penalty: NonNegative = 0.1
    >>> check_settings(Method(penalty=-1.0))
    Traceback (most recent call last):
    ValueError: Method's penalty must be 0 or above and finite; given -1.0.
    """
    kind = type(settings)
    hints = hints_of(kind)  # type: ignore[arg-type]  # mypy does not see that classes are hashable
    for field in fields(settings):
        if field.name in hints:
            check_setting(kind.__name__, field.name, getattr(settings, field.name), hints[field.name])


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases, ``Annotated`` and all; without those that can't be resolved."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        names = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, hint in get_annotations(base).items():
            found.pop(name, None)
            try:
                found[name] = eval(hint, dict(names), dict(vars(base))) if isinstance(hint, str) else hint
            except NameError:  # a class that was made within a function
                continue
    return found


def check_setting(owner: str, name: str, value: object, hint: Any, or_none: str = "") -> None:
    """Check one value against an annotation; see :func:`check_settings`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        others = [one for one in inner if one is not NoneType]
        if len(others) == 1 and not (value is None and NoneType in inner):
            check_setting(owner, name, value, others[0], ", or None" if NoneType in inner else "")
    elif hint is PositiveInt:
        positive_int(owner, **{name: value})
    elif origin is Annotated:
        check_setting(owner, name, value, inner[0])
        for interval in inner[1:]:
            if isinstance(interval, Interval) and value not in interval:  # type: ignore[operator]
                raise ValueError(f"{owner}'s {name} must {interval}{or_none}; given {value}.")
    elif origin is Literal:
        one_of(owner, name, value, *inner)
    elif origin is Sequence and inner == (str,):
        names(owner, **{name: value})
    elif hint is bool:
        one_of(owner, name, value, True, False)
    elif hint is float:
        number(owner, **{name: value})
    elif hint is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{owner}'s {name} must be a whole number; given {value!r}.")
    elif hint in _DESCRIBED:
        described, is_one = _DESCRIBED[hint]
        if not is_one(value):
            raise TypeError(f"{owner}'s {name} must be {described}; given {kind_of(value)}.")


def number(owner: str, **values: object) -> None:
    """Raise ValueError for anything but a number.

    >>> number("L2SGD", p="0.5")
    Traceback (most recent call last):
    ValueError: L2SGD's p must be a number; given '0.5'.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{owner}'s {name} must be a number; given {value!r}.")


def at_least_zero(owner: str, **values: object) -> None:
    """Raise ValueError for a value below 0, infinite or NaN.

    >>> at_least_zero("FedProx", penalty=-1.0)
    Traceback (most recent call last):
    ValueError: FedProx's penalty must be 0 or above and finite; given -1.0.
    """
    for name, value in values.items():
        check_setting(owner, name, value, NonNegative)


def above_zero(owner: str, **values: object) -> None:
    """Raise ValueError for a value that is not above 0, or infinite."""
    for name, value in values.items():
        check_setting(owner, name, value, Positive)


def positive_int(owner: str, **values: object) -> None:
    """Raise ValueError for anything but a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{owner}'s {name} must be a whole number of at least 1; given {value!r}.")


def one_of(owner: str, name: str, value: object, *allowed: object) -> None:
    """Raise ValueError for anything that isn't among the allowed values.

    >>> one_of("FedAvg", "batch_norm", "off", "share", "local", "recompute")
    Traceback (most recent call last):
    ValueError: FedAvg's batch_norm must be 'share', 'local' or 'recompute'; given 'off'.
    """
    if value not in allowed:
        *first, last = map(repr, allowed)
        choices = f"{', '.join(first)} or {last}" if first else last
        raise ValueError(f"{owner}'s {name} must be {choices}; given {value!r}.")


def names(owner: str, **values: object) -> None:
    """Raise TypeError for anything but a list or tuple of names.

    >>> names("FedRep", personal="head")
    Traceback (most recent call last):
    TypeError: FedRep's personal must be a list of names, ["head"], say; given a str.
    """
    for field, given in values.items():
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
            raise TypeError(f'{owner}\'s {field} must be a list of names, ["head"], say; given {kind_of(given)}.')


def kind_of(value: object) -> str:
    """Return what was given, by its type: for arguments of the wrong one.

    >>> kind_of([1]), kind_of(dict)
    ('a list', 'the class dict')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
