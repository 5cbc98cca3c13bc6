"""Tables with named columns: .csv, .tsv and .parquet."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archipel.data.arrays import Array
from archipel.data.files.guard import check_unpacked, readable

GAPS = ("", "na", "n/a", "nan", "null", "none", "?")
"""How a missing value is written in text, in any case."""
MOST_BYTES = 1 << 29
"""Text is read up to this size, 512 MiB, which takes a minute or two."""
MOST_COLUMNS = 100_000
MOST_CHARACTERS = 1_000
_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class Table:
    """A table from a file.

    Attributes:
        file: where it was read.
        columns: (n,) float64 or text by name, in the file's order; NaN where a number is missing.
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
            ValueError: a column holds text; the message names the line and the cell.
        """
        for name in names:
            if (column := self.columns[name]).dtype.kind not in "buif":
                row = next((i for i, cell in enumerate(column.tolist()) if not _is_value(cell)), 0)
                where = f", line {self.lines[row]}" if self.lines else ""
                raise ValueError(
                    f"{self.file}{where}: {name} is {str(column[row])[:60]!r}, which isn't a number. Encode text "
                    "first; leave a missing value empty."
                )
        return np.stack([self.columns[name].astype(np.float64) for name in names], axis=1)


def read_text(file: Path) -> Table:
    """Read a .csv file, separated by commas, or a .tsv file, separated by tabs, with a line of names or without.

    Raises:
        ValueError: the file can't be read, or would be misread; the message says where.
    """
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(
            f"{file} has {size:,} bytes; text is read up to {MOST_BYTES:,}. Write it as .npz or .parquet, or divide it."
        )
    tabs = file.suffix.lower() == ".tsv"
    with readable(file, "Save it as CSV in UTF-8."), file.open(newline="", encoding="utf-8-sig") as text:
        reader = csv.reader(text, delimiter="\t" if tabs else ",")
        read = [(reader.line_num, row) for row in reader if row]
    if not read:
        raise ValueError(f"{file} is empty.")
    lines, rows = [line for line, _ in read], [row for _, row in read]
    first, width = rows[0], len(rows[0])
    if width == 1 and (mark := next((mark for mark in ";\t" if mark in first[0]), None)):
        raise ValueError(
            f"{file} has {'semicolons' if mark == ';' else 'tabs'} between its values. "
            + ("Write commas, and points in decimals." if mark == ";" else "Write commas, or call it .tsv.")
        )
    if width > MOST_COLUMNS:
        raise ValueError(
            f"{file} has {width:,} columns; at most {MOST_COLUMNS:,} are read. If its rows are features, transpose it: "
            "examples are rows."
        )
    for line, row in read:
        if len(row) != width:
            raise ValueError(f"{file}, line {line} has {len(row)} values, the first line has {width}.")
    named = _is_header(file, rows)
    names = tuple(cell.strip() for cell in first) if named else tuple(f"x{j}" for j in range(width))
    _check_names(file, names)
    if named:
        lines, rows = lines[1:], rows[1:]
    if not rows:
        raise ValueError(f"{file} has a line of names and no examples.")
    columns = {name: _column(file, name, cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
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


def _is_header(file: Path, rows: list[list[str]]) -> bool:
    """Whether the first row holds names.

    Names are text. The numbers 0, 1, … are names as well, as pandas writes them, where no other cell is written as a
    whole number; where others are, the row could be either.
    """
    first = [cell.strip() for cell in rows[0]]
    if first != [str(j) for j in range(len(first))] or len(rows) == 1:
        return not any(map(_is_number, first)) and not all(map(_is_value, first))  # all may be missing in a first row
    if any(cell.strip().lstrip("+-").isdigit() for row in rows[1:] for cell in row):
        raise ValueError(
            f"{file} begins with {','.join(first[:4])}{',…' * (len(first) > 4)}: the names that pandas gives to "
            "columns, or the first example? Put a line with other names before the examples."
        )
    return True


def _check_names(file: Path, names: tuple[str, ...]) -> None:
    if "" in names:
        raise ValueError(
            f"{file}: column {names.index('')} has no name. If it numbers the rows, as pandas writes it, leave it out "
            "(index=False); otherwise name it."
        )
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise ValueError(f"{file} has two columns {name!r}. Rename one.")


def _column(file: Path, name: str, cells: Sequence[str]) -> Array:
    """Numbers where all cells are numbers or missing, otherwise text."""
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        try:
            return np.array([np.nan if cell.strip().lower() in GAPS else float(cell) for cell in cells])
        except ValueError:
            if (longest := max(map(len, cells))) > MOST_CHARACTERS:
                raise ValueError(
                    f"{file}: a cell of column {name} has {longest:,} characters, over {MOST_CHARACTERS:,}. "
                    "Is a quotation mark missing?"
                ) from None
            return np.array(cells)


def _values(column: object) -> Array:
    """A parquet column as numbers, or as text."""
    values = np.asarray(column.to_numpy())  # type: ignore[attr-defined]
    if values.dtype.kind in "buif":
        return values
    listed = column.to_pylist()  # type: ignore[attr-defined]
    if all(isinstance(value, bool | int | float) or value is None for value in listed):
        return np.array([np.nan if value is None else value for value in listed], np.float64)
    return np.array(["" if value is None else value for value in listed])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in GAPS


def _is_value(cell: object) -> bool:
    return str(cell).strip().lower() in GAPS or _is_number(str(cell))
