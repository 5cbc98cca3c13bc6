"""The objects that an algorithm contains, found through its fields: networks, tasks, torch modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TypeVar

from torch import nn

T = TypeVar("T")


def find_all(value: object, kind: type[T]) -> Iterator[T]:
    """Yield the objects of a type in an algorithm's fields, at any depth; an object that is found isn't searched.

    >>> from archipel.learning.networks import Network
    >>> [type(found).__name__ for found in find_all([Network(nn.Linear(2, 2)), 3], Network)]
    ['Network']
    """
    if isinstance(value, kind):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from find_all(getattr(value, field.name), kind)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from find_all(item, kind)


def find_modules(value: object) -> Iterator[nn.Module]:
    """Yield the torch modules in an algorithm's fields, and all their submodules."""
    for module in find_all(value, nn.Module):
        yield from module.modules()
