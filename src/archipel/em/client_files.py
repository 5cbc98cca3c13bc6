"""A folder of clients' files for ``archipel em``, one file for each client, named as the client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipel.data.files.arrays import read_npz
from archipel.data.files.clients import client_files_in, read_examples
from archipel_serve.columns import check_same_features

Matrix = NDArray[np.float64]


def read_files(
    folder: Path, *, regresses: bool, target: str | None = None
) -> tuple[dict[str, Matrix], dict[str, Matrix] | None, tuple[str, ...]]:
    """Read clients' matrices by name, their targets where the model regresses, and the columns' names.

    Args:
        folder: holds .npz files with arrays x (and y), .npy files with x, or tables as .csv, .tsv or .parquet.
        regresses: targets are y of a .npz, and a column of the other types.
        target: that column's name, or its number from 0; default: the last one.

    Raises:
        FileNotFoundError: no such folder, or no file in it.
        ValueError: a file can't be read, or doesn't fit the first; the message names it.
    """
    files = client_files_in(folder)
    if target is not None and not regresses:
        raise ValueError(f"--target {target} is for --family regression, which has a target.")
    first = next(iter(files.values()))
    tables: dict[str, Matrix] = {}
    targets: dict[str, Matrix] = {}
    names: tuple[str, ...] = ()
    for client, file in files.items():
        x, y, columns = _read(file, regresses)
        if regresses and y is None:
            x, y, columns = _split(file, x, columns, target)
        if tables and columns != names:
            check_same_features(columns, names, f"{file}", f"{first}")
        names, tables[client] = columns, x
        if regresses and y is not None:
            targets[client] = y
    return tables, targets if regresses else None, names


def _read(file: Path, regresses: bool) -> tuple[Matrix, Matrix | None, tuple[str, ...]]:
    y, columns = None, tuple[str, ...]()
    if file.suffix.lower() == ".npz" and regresses:
        found = read_npz(file, ("x",), also=("y",))
        x, y = found["x"], found.get("y")
    else:
        examples = read_examples(file)
        x, columns = examples.x, examples.features
    if x.ndim != 2 or x.dtype.kind not in "buif" or not len(x):
        raise ValueError(f"{file} holds {x.dtype} of shape {x.shape}; needed are numbers, (n, d), and n above 0.")
    if y is not None and (y.dtype.kind not in "buif" or y.shape != x.shape[:1]):
        raise ValueError(f"{file}: y holds {y.dtype} of shape {y.shape}; needed is a number for each of {len(x)} rows.")
    columns = columns or tuple(f"x{j}" for j in range(x.shape[1]))
    return x.astype(np.float64), None if y is None else y.astype(np.float64), columns


def _split(
    file: Path, x: Matrix, columns: tuple[str, ...], target: str | None
) -> tuple[Matrix, Matrix, tuple[str, ...]]:
    if target is not None and target.isdigit() and target not in columns and int(target) < len(columns):
        target = columns[int(target)]
    wanted = columns[-1] if target is None else target
    if wanted not in columns or len(columns) < 2:
        raise ValueError(f"{file} has no column {wanted!r} beside others; it has {', '.join(columns)}.")
    place = columns.index(wanted)
    return np.delete(x, place, axis=1), x[:, place], columns[:place] + columns[place + 1 :]
