"""Names of columns: those that data come with, and those that a model was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def column_names(values: Any) -> tuple[str, ...]:
    """Read the names of a data frame's columns (pandas, polars, pyarrow) or of a dict of columns.

    Args:
        values: what a user gave. One row of pandas, a Series, has names as well, and so has a list of such rows.

    Returns:
        The names, as text; () where columns have none, as in an array, or the numbers 0, 1, … that pandas gives.

    Raises:
        ValueError: two columns of one name, names of which only some are text, or rows with different names.

    >>> column_names({"age": [63, 67], "sbp": [145, 160]}), column_names([[63, 145]])
    (('age', 'sbp'), ())
    """
    if isinstance(values, list | tuple):
        return _names_of_rows(values)
    if isinstance(values, Mapping):
        names = list(values)
    elif hasattr(values, "column_names"):
        names = list(values.column_names)
    elif hasattr(values, "columns"):
        names = list(values.columns)
    elif hasattr(values, "index") and not callable(values.index) and np.ndim(values) == 1:
        names = list(values.index)
    else:
        return ()
    text = [name for name in names if isinstance(name, str)]
    if not text and all(isinstance(name, int | np.integer) for name in names) and names == list(range(len(names))):
        return ()
    if text and len(text) < len(names):
        other = next(name for name in names if not isinstance(name, str))
        raise ValueError(f"columns are called {text[0]!r} and {other!r}; give all of them names of text, or none.")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called {next(name for name in names if names.count(name) > 1)!r}.")
    return tuple(map(str, names))


def _names_of_rows(rows: Sequence[Any]) -> tuple[str, ...]:
    """Read the names of a list's rows, where these are Series of pandas."""
    if not any(hasattr(row, "index") and not callable(row.index) for row in rows):
        return ()
    found = [column_names(row) for row in rows]
    for i, names in enumerate(found):
        check_same_features(names, found[0], f"row {i}", "row 0")
    return found[0]


def check_same_features(given: Sequence[str], known: Sequence[str], whose: str, others: str) -> None:
    """Refuse columns whose names aren't those known, in their order: by position they would be mistaken for others.

    Args:
        given: names of columns.
        known: what they should be.
        whose: the owner of the columns given, for the message.
        others: the owner of those known.

    Raises:
        ValueError: what differs, and what to do.

    >>> check_same_features(("sbp", "age"), ("age", "sbp"), "client 'Lyon'", "client 'Nice'")
    Traceback (most recent call last):
    ValueError: client 'Lyon' has the columns sbp, age, and client 'Nice' has age, sbp, in another order. Put them ...
    """
    if tuple(given) == tuple(known):
        return
    if not given or not known:
        named, bare = (whose, others) if given else (others, whose)
        raise ValueError(
            f"{named} has names of columns ({_some(given or known)}), and {bare} has none. Give all clients data with "
            "the same names, or all of them arrays, as by x.to_numpy()."
        )
    if set(given) == set(known):
        raise ValueError(
            f"{whose} has the columns {_some(given)}, and {others} has {_some(known)}, in another order. Put them in "
            f"that order, as by x[{_some(known, quoted=True)}]."
        )
    lacking, more = [n for n in known if n not in given], [n for n in given if n not in known]
    what = " and ".join(
        part
        for part in (f"lacks {_some(lacking)}" if lacking else "", f"also has {_some(more)}" if more else "")
        if part
    )
    raise ValueError(f"{whose} {what}. Its columns must be those of {others}: {_some(known)}.")


def _some(names: Sequence[str], shown: int = 10, quoted: bool = False) -> str:
    if quoted:
        return f"[{', '.join(map(repr, names[:shown]))}{', …' * (len(names) > shown)}]"
    return ", ".join(names[:shown]) + ", …" * (len(names) > shown)
