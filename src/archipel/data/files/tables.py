"""Tables with named columns: .csv, .tsv and .parquet."""

import csv
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from archipel.data.files.guard import check_unpacked, readable
from archipel_serve.arrays import Array

GAPS = ("", "na", "n/a", "nan", "null", "none", "?")
"""How a missing value is written in text, in any case."""
FEW = 20
"""From so many cells on, none of which is a whole number, a first row of whole numbers is hardly an example."""
MOST_BYTES = 1 << 29
"""Text is read up to this size, 512 MiB, which takes a minute or two."""
MOST_COLUMNS = 100_000
MOST_LINE = 10_000_000
MOST_CHARACTERS = 1_000
EXACT = 2**53
"""Beyond it float64 doesn't hold all whole numbers: different ones would become equal."""
_INDEX = re.compile(r"__index_level_\d+__")
_UNNAMED = re.compile(r"Unnamed: \d+")
"""How pandas calls a column without a name when it reads it, most often the index of an earlier table."""


@dataclass(frozen=True)
class Table:
    """A table from a file.

    Attributes:
        file: where it was read.
        columns: (n,) float64 or text by name, in the file's order; NaN where a number is missing. Whole numbers beyond
            2^53 stay text, or the integers of a parquet file.
        named: whether the names stand in the file; otherwise they are x0, x1, ….
        lines: of text, the line on which each row ends.
    """

    file: Path
    columns: dict[str, Array]
    named: bool
    lines: Sequence[int] = ()

    def numbers(self, names: Sequence[str]) -> Array:
        """Stack columns of numbers to (n, d) float64.

        Raises:
            ValueError: a column holds text, or whole numbers that float64 doesn't hold; the message names the cell.
        """
        for name in names:
            column = self.columns[name]
            if large := next(filter(_is_inexact, map(str, column.tolist() if _whole(column) else ())), None):
                raise ValueError(
                    f"{self.file}: {name} holds {large}, a whole number beyond 2^53, where different ones would become "
                    "equal. An identifier is no measurement: leave the column out."
                )
            if column.dtype.kind not in "buif":
                row = next((i for i, cell in enumerate(column.tolist()) if not (_is_number(cell) or _is_gap(cell))), 0)
                where = f", line {self.lines[row]}" if self.lines else ""
                raise ValueError(
                    f"{self.file}{where}: {name} is {str(column[row])[:60]!r}, which isn't a number. Encode text "
                    "first; leave a missing value empty."
                )
        return np.stack([self.columns[name].astype(np.float64) for name in names], axis=1)


def read_text(file: Path) -> Table:
    """Read a .csv file, separated by commas, or a .tsv file, separated by tabs, with a line of names or without.

    The file is read once, a row at a time, and once more for its columns of text where it has some.

    Raises:
        ValueError: the file can't be read, or would be misread; the message says where.
    """
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(
            f"{file} has {size:,} bytes; text is read up to {MOST_BYTES:,}. Write it as .npz or .parquet, or divide it."
        )
    rows = _rows(file)
    line, first = next(rows, (0, None))
    if first is None:
        raise ValueError(f"{file} is empty.")
    width = len(first)
    _check_separated(file, first)
    numbered = [cell.strip() for cell in first] == [str(j) for j in range(width)]
    digits = width > 1 and all(cell.strip().isdigit() for cell in first)
    values, lines, text, whole = array("d"), [line], set[int](), False
    for line, row in rows:
        if len(row) != width:
            raise ValueError(f"{file}, line {line} has {len(row)} values, the first line has {width}.")
        values.extend(_numbers(row, text))
        lines.append(line)
        whole = whole or ((numbered or digits) and any(cell.strip().lstrip("+-").isdigit() for cell in row))
    if digits and not numbered and not whole and len(values) >= FEW:  # as 1, 2, … or years
        raise _ambiguous(file, first)
    named = _is_header(file, first, numbered and len(lines) > 1, whole)
    names = tuple(cell.strip() for cell in first) if named else tuple(f"x{j}" for j in range(width))
    _check_names(file, names)
    if named and len(lines) == 1:
        raise ValueError(f"{file} has a line of names and no examples.")
    read = np.array(values).reshape(-1, width)
    read, lines = (read, lines[1:]) if named else (np.vstack([[_numbers(first, text)], read]), lines)
    columns: dict[str, Array] = {name: read[:, j] for j, name in enumerate(names)}
    large = set(np.flatnonzero((np.abs(read) >= EXACT).any(0)).tolist()) - text
    for j, cells in _texts(file, text | large, named).items():
        if j in text or any(map(_is_inexact, cells.tolist())):
            columns[names[j]] = cells
    return Table(file, columns, named, lines)


def read_parquet(file: Path) -> Table:
    """Read a .parquet file; the index that pandas writes along isn't a column.

    Raises:
        ValueError: the file can't be read, or unpacks to too much.
        ImportError: pyarrow isn't installed.
    """
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"reading {file.name} needs pyarrow: pip install archipel[parquet], or write .npz or .csv files."
        ) from error
    with readable(file, "Write it again, with columns of numbers or text."):
        about = parquet.read_metadata(file)
        claimed = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        check_unpacked(max(claimed, 8 * about.num_rows * about.num_columns), file.stat().st_size)
        table = parquet.read_table(file)
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in table.column_names if name not in index and not _INDEX.fullmatch(name)]
        columns = {name: _values(table[name]) for name in names}
    _check_names(file, tuple(names))
    if not names or not len(next(iter(columns.values()))):
        raise ValueError(f"{file} has no columns or no rows.")
    return Table(file, columns, True)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the rows that aren't empty, each with the line on which it ends."""
    with readable(file, "Save it as CSV in UTF-8."), file.open(newline="", encoding="utf-8-sig") as opened:
        reader = csv.reader(_lines(opened), delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
        for row in reader:
            if row:
                yield reader.line_num, row


def _lines(opened: TextIO) -> Iterator[str]:
    while line := opened.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise ValueError(f"it has a line of more than {MOST_LINE:,} characters")
        yield line


def _check_separated(file: Path, first: Sequence[str]) -> None:
    if len(first) == 1 and ";" in first[0]:
        raise ValueError(f"{file} has semicolons between its values. Write commas, and points in decimals.")
    if len(first) == 1 and "\t" in first[0]:
        raise ValueError(f"{file} has tabs between its values. Write commas, or call it .tsv.")
    if len(first) > MOST_COLUMNS:
        raise ValueError(
            f"{file} has {len(first):,} columns; at most {MOST_COLUMNS:,} are read. If its rows are features, "
            "transpose it: examples are rows."
        )


def _numbers(row: Sequence[str], text: set[int]) -> list[float]:
    """Read a row's numbers, NaN where they are missing, and add to `text` the columns whose cell is text."""
    if "_" not in "".join(row):  # which Python reads as a separator of thousands
        try:
            return list(map(float, row))
        except ValueError:
            pass
    found = []
    for j, cell in enumerate(row):
        number = _is_number(cell)
        found.append(float(cell) if number else np.nan)
        if not number and not _is_gap(cell):
            text.add(j)
    return found


def _texts(file: Path, text: set[int], named: bool) -> dict[int, Array]:
    """Read the columns of text, by their places."""
    cells: dict[int, list[str]] = {j: [] for j in sorted(text)}
    for i, (line, row) in enumerate(_rows(file) if text else ()):
        for j, column in cells.items():
            if len(row[j]) > MOST_CHARACTERS:
                raise ValueError(
                    f"{file}, line {line}: a cell has {len(row[j]):,} characters, over {MOST_CHARACTERS:,}. Is a "
                    "quotation mark missing?"
                )
            if i or not named:
                column.append(row[j])
    return {j: np.array(column) for j, column in cells.items()}


def _is_header(file: Path, first: Sequence[str], numbered: bool, whole: bool) -> bool:
    """Whether the first row holds names.

    Names are text. The numbers 0, 1, … are names as well, as pandas writes them, where no other cell is written as a
    whole number; where others are, the row could be either.

    Args:
        file: for the message.
        first: its first row.
        numbered: whether that row is 0, 1, … and others follow.
        whole: whether another cell is written as a whole number.
    """
    if numbered and whole:
        raise _ambiguous(file, first)
    known = [_is_number(cell) for cell in first], [_is_gap(cell) for cell in first]
    return numbered or (not any(known[0]) and not all(known[1]))  # in a first row, all may be missing


def _ambiguous(file: Path, first: Sequence[str]) -> ValueError:
    return ValueError(
        f"{file} begins with {','.join(first[:4])}{',…' * (len(first) > 4)}: names of columns that are numbers, or the "
        "first example? Put a line with other names before the examples."
    )


def _check_names(file: Path, names: tuple[str, ...]) -> None:
    if "" in names:
        raise ValueError(
            f"{file}: column {names.index('')} has no name. If it numbers the rows, as pandas writes it, leave it out "
            "(index=False); otherwise name it."
        )
    if unnamed := next(filter(_UNNAMED.fullmatch, names), None):
        raise ValueError(
            f"{file}: {unnamed!r} is how pandas calls a column without a name. If it numbers the rows, leave it out, "
            f"as by frame.drop(columns={unnamed!r}); otherwise rename it."
        )
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise ValueError(f"{file} has two columns {name!r}. Rename one.")


def _values(column: object) -> Array:
    """Read a parquet column as numbers, or as text."""
    values = np.asarray(column.to_numpy())  # type: ignore[attr-defined]
    if values.dtype.kind in "buif":
        return values
    listed = column.to_pylist()  # type: ignore[attr-defined]
    if all(isinstance(value, bool | int | float) or value is None for value in listed):
        return np.array([np.nan if value is None else value for value in listed], np.float64)
    return np.array(["" if value is None else value for value in listed])


def _is_number(cell: str) -> bool:
    if _is_gap(cell) or "_" in cell:
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_inexact(cell: str) -> bool:
    """Whether a cell is a whole number that float64 may not hold."""
    digits = cell.strip().lstrip("+-")
    return digits.isascii() and digits.isdigit() and len(digits) < 400 and int(digits) > EXACT


def _whole(column: Array) -> bool:
    """Whether a column may hold whole numbers that float64 doesn't hold."""
    return column.dtype.kind not in "iu" or bool((np.abs(column.astype(np.float64)) >= EXACT).any())


def _is_gap(cell: str) -> bool:
    return cell.strip().lower() in GAPS
