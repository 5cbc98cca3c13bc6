"""Input of estimators, one matrix or one for each client, read into checked tables and a federation of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from archipel.core.trees import Tree
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.families.family import Family
from archipel_serve.arrays import as_text, has_masks, stacked, unmasked
from archipel_serve.columns import check_same_features, column_names

Table = NDArray[np.float64]
Tables = dict[str, Table]
ONE = "X"
"""The name of a single matrix, which is one client without a name."""


def by_client(X: Any) -> dict[str, Any]:
    """Clients' matrices by name, from a mapping, from a list of them, or from one matrix, which is one client.

    A list is one of clients if its entries have two axes.

    Raises:
        ValueError: nothing, or a list of one-dimensional arrays, which could be meant either way.

    >>> list(by_client([np.zeros((2, 3)), np.zeros((5, 3))])), list(by_client([[1.0, 2.0], [3.0, 4.0]]))
    (['client 0', 'client 1'], ['X'])
    """
    if isinstance(X, Sequence | Mapping) and not hasattr(X, "shape") and not len(X):
        raise ValueError("There are no clients; give each one's examples, (n, d), in a list or a dict.")
    mapping = isinstance(X, Mapping) and not hasattr(X, "shape")  # a sparse matrix may be a dict of its entries
    if mapping or (isinstance(X, list | tuple) and any(_axes(part) == 2 for part in X)):
        parts = X if mapping else {f"client {i}": part for i, part in enumerate(X)}
        return by_name(parts)
    if isinstance(X, list | tuple) and any(hasattr(part, "ndim") and part.ndim == 1 for part in X):
        raise ValueError(
            "A list of one-dimensional arrays could be rows of a matrix, or clients with one column. For a matrix give "
            "np.stack(X), for clients [x[:, None] for x in X]. Reshape your data."
        )
    return {ONE: X}


def by_name(parts: Mapping[Any, Any]) -> dict[str, Any]:
    """Index clients' parts by their names as strings.

    Raises:
        ValueError: two names that are written alike, 1 and "1".
    """
    named = {as_text(name): part for name, part in parts.items()}
    if len(named) < len(parts):
        raise ValueError(f"Clients need names that differ as strings; given are {', '.join(map(repr, parts))}.")
    return named


def read(estimator: BaseEstimator, X: Any, *, reset: bool, missing: bool) -> Tables:
    """Every client's examples, ``(n_i, d)`` float64.

    Args:
        estimator: whose ``n_features_in_`` and ``feature_names_in_`` they set (``reset``) or are compared with.
        X: as :func:`by_client` takes it.
        reset: reads training data.
        missing: NaN may be there.

    Raises:
        ValueError: what isn't a matrix of numbers, other columns than expected, NaN or infinity; client and column are
            named.
    """
    tables: Tables = {}
    columns: tuple[str, ...] | None = None if reset else getattr(estimator, "_columns", None)
    for name, part in by_client(X).items():
        try:
            table = validate_data(
                estimator,
                plain(part, name),
                reset=reset and not tables,
                dtype=np.float64,
                ensure_all_finite=False,
                order="C",
            )
            given = column_names(part)
        except ValueError as error:
            raise error if name == ONE else ValueError(f"{name}: {error}") from error
        # scikit-learn compares names of text alone, and lets arrays stand beside them.
        if (tables and reset) or (columns and given):
            check_same_features(given, columns or (), name, next(iter(tables)) if reset else "the fit's data")
        columns = given if columns is None else columns
        _refuse(estimator, name, table, np.isinf(table), "infinity", "remove or clip those values.")
        if not missing:
            remedy = "leave those rows out, or impute them (FederatedFactorModel takes NaN as missing)."
            _refuse(estimator, name, table, np.isnan(table), "NaN, and this model has no missing values", remedy)
        tables[name] = table
    if reset:
        estimator._columns = columns
    return tables


def read_targets(y: Any, tables: Tables) -> Tables:
    """Every client's targets, ``(n_i,)`` float64, in the order and under the names of its examples.

    Raises:
        ValueError: none, others than there are clients or examples, or not finite.
    """
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None: one number for each example.")
    if list(tables) == [ONE]:
        parts: dict[str, Any] = {ONE: y}
    elif isinstance(y, Mapping):
        parts = by_name(y)
    else:
        parts = dict(zip(tables, y, strict=False)) if hasattr(y, "__len__") and len(y) == len(tables) else {}
    if parts.keys() != tables.keys():
        raise ValueError(f"There are {len(tables)} clients in X; y must have the targets of the same, in their order.")
    read = {}
    for name, table in tables.items():
        values = check_array(plain(parts[name], name), ensure_2d=False, dtype=np.float64, input_name="y")
        if values.shape not in ((len(table),), (len(table), 1)):
            raise ValueError(f"{name}: X has {len(table)} examples, and y the shape {values.shape}; give one y each.")
        read[name] = values.reshape(-1)
    return read


def batch_of(table: Table, targets: Table | None = None) -> dict[str, Tensor]:
    """Make the batch that families take."""
    batch = {"x": torch.from_numpy(np.array(table))}  # a copy: what was given may be read-only
    return batch if targets is None else batch | {"y": torch.from_numpy(np.array(targets))}


def federation_of(tables: Tables, targets: Tables | None = None) -> Federation:
    """Clients that train on all they hold; without targets y is zero, and nothing reads it."""
    clients = []
    for name, table in tables.items():
        y = np.zeros(len(table)) if targets is None else targets[name]
        train = batch_of(table, y)
        clients.append(Client(name, train, {column: values[:0] for column, values in train.items()}))
    inputs = Inputs.fit([client.train["x"] for client in clients], "table")
    return Federation("tables", tuple(clients), inputs, None)


def check_domain(family: Family, name: str, batch: Tree) -> None:
    """Raise ValueError, with the client's name, for data that the family has no density for."""
    try:
        family.check(batch)
    except ValueError as error:
        raise error if name == ONE else ValueError(f"{name}: {error}") from error


def whole(value: Any) -> Any:
    """NumPy's whole numbers as Python's; anything else as it is, for a check to complain of."""
    return int(value) if isinstance(value, np.integer) else value


def plain(part: Any, name: str) -> Any:
    """NaN where values are masked; scikit-learn would read what lies behind the mask."""
    whole = stacked(part) if has_masks(part) else part
    return unmasked(whole, name) if isinstance(whole, np.ma.MaskedArray) else part


def _axes(part: object) -> int:
    """Count the axes of an array, or of a list of lists of numbers; 0 for anything else."""
    if hasattr(part, "ndim"):
        return int(part.ndim)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return 1 + max((_axes(item) for item in part[:1]), default=0)
    return 0


def _refuse(
    estimator: BaseEstimator, name: str, table: Table, where: NDArray[np.bool_], what: str, remedy: str
) -> None:
    if not where.any():
        return
    row, column = np.argwhere(where)[0]
    names = getattr(estimator, "feature_names_in_", None)
    called = f"column {column}" if names is None else f"column {names[column]!r}"
    raise ValueError(
        f"{name} contains {what}: first in row {row}, {called}; {int(where.any(1).sum())} of {len(table)} rows have "
        f"such values. {type(estimator).__name__} can't read them: {remedy}"
    )
