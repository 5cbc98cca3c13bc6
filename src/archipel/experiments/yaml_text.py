"""YAML as configurations use it: plain values, within limits, with every fault told in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1_000_000
"""The largest file that is read."""
MAX_DEPTH = 32
"""How deep sections may lie in one another."""
MAX_VALUES = 10_000
"""How many values a file may stand for, aliases written out. PyYAML reads some 10,000 in a second."""


class _Loader(yaml.SafeLoader):
    """YAML with the numbers and truth values of YAML 1.2, without tags and without keys that stand twice.

    ``1e-3`` is a number; ``yes``, ``no``, ``on``, ``off`` and dates are text.
    """

    depth = 0
    values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the tag {event.tag!r} is not allowed: write the value alone", problem_mark=event.start_mark
            )
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"sections lie deeper than {MAX_DEPTH}", problem_mark=event.start_mark)
        self.values += 1
        if self.values > MAX_VALUES:  # before the rest is read
            raise yaml.MarkedYAMLError(
                problem=f"it holds more than {MAX_VALUES:,} values", problem_mark=event.start_mark
            )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is not a word", problem_mark=key.start_mark)
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=node.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for with its aliases written out; a few lines can stand for billions."""
    if known.get(id(node)) == 0:
        raise yaml.MarkedYAMLError(problem="an alias names a section that it lies in", problem_mark=node.start_mark)
    if id(node) not in known:
        known[id(node)] = 0  # under way
        inner = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count(part, known) for part in inner)
        if known[id(node)] > MAX_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"it stands for more than {MAX_VALUES:,} values", problem_mark=node.start_mark
            )
    return known[id(node)]


# YAML 1.1's words for truth and its dates are left out, and numbers such as 1e-3 added.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith((":bool", ":timestamp"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse(text: str) -> Any:
    """Read one YAML document.

    Raises:
        ValueError: says what is wrong, and where.

    >>> parse("{lr: 1e-3, classes: [no, yes]}")
    {'lr': 0.001, 'classes': ['no', 'yes']}
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise ValueError(f"{shortened(error.problem or error.context or 'it is malformed')}{where}") from error
    except yaml.YAMLError as error:  # of characters that YAML has no place for
        raise ValueError(shortened(str(error).splitlines()[0])) from error
    except (ValueError, OverflowError) as error:  # of numbers, such as one of 5,000 digits
        raise ValueError(shortened(str(error))) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no YAML, is larger than 1 MB, or holds something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. `archipel show PRESET > {path}` makes one to start from.")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES // 10**6} MB, which no configuration is.")
    try:
        found = parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} can't be read as YAML: it is not UTF-8 text.") from error
    except ValueError as error:
        raise ValueError(f"{path} can't be read as YAML: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold settings as `key: value`; it holds {type(found).__name__}.")
    return found


def shortened(text: str, most: int = 200) -> str:
    """Cut a text that is long.

    >>> shortened("a" * 300, most=10)
    'aaaaaaaaaa…'
    """
    return text if len(text) <= most else f"{text[:most]}…"
