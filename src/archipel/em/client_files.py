"""A folder of clients' files for ``archipel em``: .npz, .npy or .csv, one a client, named as the client."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
GAPS = ("", "na", "nan", "null", "?")
"""What a missing value is written as in .csv, in any case."""


def read_files(
    folder: Path, *, regresses: bool, target: str | None = None
) -> tuple[dict[str, Matrix], dict[str, Matrix] | None, tuple[str, ...]]:
    """Clients' matrices by name, their targets where the model regresses, and the columns' names.

    Args:
        folder: holds .npz files with arrays x (and y), .npy files with x, or .csv files, with a line of names or none.
        regresses: targets are y of a .npz, and a column of a .npy or .csv.
        target: that column's name, or its number from 0; default: the last one.

    Raises:
        FileNotFoundError: no such folder, or no file in it.
        ValueError: a file can't be read, or doesn't fit the first; the message names it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}. Give one with a .npz, .npy or .csv file for every client."
        )
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in (".npz", ".npy", ".csv"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no .npz, .npy or .csv files; put one there for every client.")
    if target is not None and not regresses:
        raise ValueError(f"--target {target} is for --family regression, which has a target.")
    tables: dict[str, Matrix] = {}
    targets: dict[str, Matrix] = {}
    names: tuple[str, ...] = ()
    for file in files:
        if file.stem in tables:
            raise ValueError(f"{folder} holds two files of a client {file.stem!r}. Keep one.")
        x, y, columns = _read(file)
        if regresses and y is None:
            x, y, columns = _split(file, x, columns, target)
        if tables and columns != names:
            raise ValueError(
                f"{file} has the columns {', '.join(columns)}, but {files[0]} has {', '.join(names)}. Give all the "
                "same."
            )
        names, tables[file.stem] = columns, x
        if regresses and y is not None:
            targets[file.stem] = y
    return tables, targets if regresses else None, names


def _read(file: Path) -> tuple[Matrix, Matrix | None, tuple[str, ...]]:
    if file.suffix.lower() == ".csv":
        return _read_csv(file)
    try:
        found: Any = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{file} can't be read: {error}. Write it with np.save or np.savez.") from error
    y = None
    if file.suffix.lower() == ".npz":
        if "x" not in found:
            raise ValueError(f"{file} has no array x; it has {', '.join(found) or 'none'}. Write np.savez(FILE, x=…).")
        y, found = found.get("y"), found["x"]
    if found.ndim != 2 or found.dtype.kind not in "buif" or not len(found):
        raise ValueError(
            f"{file} holds {found.dtype} of shape {found.shape}; needed are numbers, (n, d), and n above 0."
        )
    if y is not None and (y.dtype.kind not in "buif" or y.shape != found.shape[:1]):
        raise ValueError(
            f"{file}: y holds {y.dtype} of shape {y.shape}; needed is a number for each of {len(found)} rows."
        )
    columns = tuple(f"x{j}" for j in range(found.shape[1]))
    return found.astype(np.float64), None if y is None else y.astype(np.float64), columns


def _read_csv(file: Path) -> tuple[Matrix, None, tuple[str, ...]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = [(reader.line_num, row) for reader in (csv.reader(lines),) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} can't be read: {error}. Save it as CSV in UTF-8.") from error
    if not rows:
        raise ValueError(f"{file} is empty.")
    width = len(rows[0][1])
    first = rows[0][1]
    if width == 1 and ";" in first[0]:
        raise ValueError(f"{file} has semicolons between its values. Write commas, and points in decimals.")
    headed = not any(map(_is_number, first)) and not all(map(_is_value, first))  # a first row may be missing
    names = tuple(cell.strip() for cell in first) if headed else tuple(f"x{j}" for j in range(width))
    if "" in names:
        raise ValueError(
            f"{file}: column {names.index('')} has no name. If it numbers the rows, as pandas writes it, leave it out "
            "(index=False), else give it a name."
        )
    if twice := [name for j, name in enumerate(names) if name in names[:j]]:
        raise ValueError(f"{file} has two columns {twice[0]!r}. Rename one.")
    table = []
    for number, row in rows[headed:]:
        if len(row) != width:
            raise ValueError(f"{file}, line {number} has {len(row)} values, the first line has {width}.")
        if wrong := [(name, cell) for name, cell in zip(names, row, strict=True) if not _is_value(cell)]:
            raise ValueError(
                f"{file}, line {number}: {wrong[0][0]} is {wrong[0][1]!r}, which isn't a number. Encode text first; a "
                "missing value is left empty."
            )
        table.append([np.nan if cell.strip().lower() in GAPS else float(cell) for cell in row])
    if not table:
        raise ValueError(f"{file} has a line of names and no examples.")
    return np.array(table), None, names


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in GAPS


def _is_value(cell: str) -> bool:
    return cell.strip().lower() in GAPS or _is_number(cell)


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
