"""Checks of hyper-parameters where they enter: what was given, what is allowed."""

from __future__ import annotations

import math


def number(owner: str, **values: object) -> None:
    """Raises ValueError for anything but a number.

    >>> number("L2SGD", p="0.5")
    Traceback (most recent call last):
    ValueError: L2SGD's p must be a number; given '0.5'.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{owner}'s {name} must be a number; given {value!r}.")


def at_least_zero(owner: str, **values: float) -> None:
    """Raises ValueError for a value below 0, infinite or NaN.

    >>> at_least_zero("FedProx", penalty=-1.0)
    Traceback (most recent call last):
    ValueError: FedProx's penalty must be 0 or above and finite; given -1.0.
    """
    number(owner, **values)
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{owner}'s {name} must be 0 or above and finite; given {value}.")


def above_zero(owner: str, **values: float) -> None:
    """Raises ValueError for a value that is not above 0, or infinite."""
    number(owner, **values)
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{owner}'s {name} must be above 0 and finite; given {value}.")


def positive_int(owner: str, **values: int) -> None:
    """Raises ValueError for anything but a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{owner}'s {name} must be a whole number of at least 1; given {value!r}.")


def one_of(owner: str, name: str, value: object, *allowed: object) -> None:
    """Raises ValueError for anything that isn't among the allowed."""
    if value not in allowed:
        raise ValueError(f"{owner}'s {name} must be {' or '.join(map(repr, allowed))}; given {value!r}.")


def names(owner: str, **values: object) -> None:
    """Raises TypeError for anything but a list or tuple of names.

    >>> names("FedRep", personal="head")
    Traceback (most recent call last):
    TypeError: FedRep's personal is a list of names, ["head"], say; given a str.
    """
    for field, given in values.items():
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
            raise TypeError(f'{owner}\'s {field} is a list of names, ["head"], say; given {kind_of(given)}.')


def kind_of(value: object) -> str:
    """What was given, by its type: for arguments of the wrong one.

    >>> kind_of([1]), kind_of(dict)
    ('a list', 'the class dict')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
