"""Files of examples, and folders with one such file for each client."""

from dataclasses import dataclass
from pathlib import Path

from archipel.data.files.arrays import read_npy, read_npz
from archipel.data.files.tables import Table, read_parquet, read_text
from archipel_serve.arrays import Array

EXAMPLES = (".npz", ".npy", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Examples:
    """What a file holds.

    Attributes:
        x: (n, …) numbers.
        y: (n,) labels or targets; None where the file has none or none was asked for.
        features: the names of a table's columns where the file has names; otherwise ().
    """

    x: Array
    y: Array | None
    features: tuple[str, ...]


def client_files_in(folder: str | Path) -> dict[str, Path]:
    """Find the clients' files in a folder, by the clients' names, which are the files' without their endings.

    Raises:
        FileNotFoundError: no such folder, or no file of examples in it.
        ValueError: two files of one client.
    """
    root = Path(folder)
    kinds = f"{', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}"
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}. Give one with a {kinds} file for every client.")
    found: dict[str, Path] = {}
    for file in sorted(root.iterdir()):
        if file.name.startswith(".") or file.suffix.lower() not in EXAMPLES or file.is_dir():
            continue
        if file.stem in found:
            raise ValueError(f"{root} holds two files of a client {file.stem!r}. Keep one.")
        found[file.stem] = file
    if not found:
        raise FileNotFoundError(f"{root} holds no {kinds} files. Put one there for every client.")
    return found


def read_examples(file: Path, label: str | None = None, *, ignored: str | None = None) -> Examples:
    """Read a file of examples by the reader of its type.

    Args:
        file: one of `EXAMPLES`: .npz with an array x, .npy, or a table of numbers.
        label: the name of the array (.npz) or of the column that holds labels or targets; without it, all columns of a
            table are features.
        ignored: the name of a table's column that isn't read, if there are others beside it.

    Raises:
        ValueError: the file can't be read or lacks what is asked for; the message names it.
        ImportError: .parquet needs pyarrow.
    """
    kind = file.suffix.lower()
    if kind == ".npz":
        found = read_npz(file, ("x",) if label is None else ("x", label))
        return Examples(found["x"], found.get(label or ""), ())
    if kind == ".npy":
        if label is not None:
            raise ValueError(f"{file} has no {label!r}: an .npy file holds one array. Write numpy.savez(file, x=…, …).")
        return Examples(read_npy(file), None, ())
    if kind not in EXAMPLES:
        raise ValueError(f"{file} is of no type that can be read; there are {', '.join(EXAMPLES)}.")
    table = read_table(file)
    features = tuple(name for name in table.columns if name not in (label, ignored))
    if not features and label is None:
        features = tuple(table.columns)
    if label is not None and (label not in table.columns or not features):
        raise ValueError(f"{file} has no label column {label!r} beside features; it has {', '.join(table.columns)}.")
    y = None if label is None else table.columns[label]
    return Examples(table.numbers(features), y, features if table.named else ())


def read_table(file: Path) -> Table:
    """Read a .csv, .tsv or .parquet file."""
    return read_parquet(file) if file.suffix.lower() == ".parquet" else read_text(file)
