"""What a source is, what is known about it before it is loaded, and where its files are searched."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.arrays import in_chunks
from archipel.data.client import Client
from archipel.data.inputs import Inputs
from archipel_serve.arrays import Array
from archipel_serve.pixels import Resizing
from archipel_serve.preparation import Kind


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled data set.

    Attributes:
        x: (n, …) examples, uint8 or float; grey images are (n, H, W), colour images (n, 3, H, W).
        y: (n,) int64 classes, or float32 targets.
        classes: the classes' names; empty for a regression.
        name: how it's called in configurations.
        citation: whom to cite.
        licence: under which it was published.
        checksum: SHA-256 of the content as published: `content_checksum` of x, y and client.
        kind: "image", "table" or "series".
        client: (n,) int64, the client of each example, if the data come with clients.
        client_names: theirs.
        superclass: (K,) int64, the superclass of every class, where there are some.
        superclasses: their names.
        features: the columns' names of a table, the channels' of a series.
        extra: what else is known of every example, by name, (n, …) each.
        test: (n,) bool, the publisher's own test examples.
        file: where x is mapped from, if it lies in a file and not in memory.
        resizing: how images of other sizes were brought to one: "stretch" or "crop"; see `Inputs`.

    Raises:
        ValueError: parts that don't fit together; the wrong number of classes.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str
    citation: str
    licence: str
    checksum: str
    kind: Kind = "image"
    client: Tensor | None = None
    client_names: tuple[str, ...] = ()
    superclass: Tensor | None = None
    superclasses: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    extra: dict[str, Tensor] = field(default_factory=dict)
    test: Tensor | None = None
    file: Path | None = None
    resizing: Resizing = "stretch"

    def __post_init__(self) -> None:
        columns = {"x": self.x, "y": self.y, "client": self.client, "test": self.test} | self.extra
        lengths = {column: len(values) for column, values in columns.items() if values is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{self.name} has columns of different lengths: {lengths}. One entry for each example is needed."
            )
        if self.classes and not self.y.is_floating_point():
            self._check_codes(self.y, self.classes, "class")
        if self.client is not None:
            self._check_codes(self.client, self.client_names, "client")
        if self.superclass is not None:
            self._check_codes(self.superclass, self.superclasses, "superclass")
            if len(self.superclass) != len(self.classes):
                raise ValueError(
                    f"{self.name} has {len(self.classes)} classes, but {len(self.superclass)} superclasses."
                )

    def __len__(self) -> int:
        return len(self.y)

    def fit_inputs(self, clients: Iterable[Client]) -> Inputs:
        """Learn the preprocessing of clients that hold this source's examples, from their training examples."""
        columns = [client.train["x"] for client in clients]
        features = self.features if self.kind == "table" else ()
        return Inputs.fit(columns, self.kind, features=features, resizing=self.resizing)

    def by_superclass(self) -> "Source":
        """Return the same examples with their superclasses as classes.

        Raises:
            ValueError: there are no superclasses.
        """
        if self.superclass is None:
            raise ValueError(f"{self.name} has no superclasses.")
        y = self.superclass[self.y]
        return replace(self, y=y, classes=self.superclasses, superclass=None, superclasses=())

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes" if self.classes else "regression"
        clients = "" if self.client is None else f", {len(self.client_names)} clients"
        return f"Source({self.name!r}, x={tuple(self.x.shape)} {self.x.dtype}, {what}{clients})"

    def _check_codes(self, codes: Tensor, names: tuple[str, ...], what: str) -> None:
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(names)):
            plural = f"{what}es" if what.endswith("s") else f"{what}s"
            raise ValueError(
                f"{self.name} holds the {what} codes {int(codes.min())} to {int(codes.max())}, but has {len(names)} "
                f"{plural}, with codes 0 to {len(names) - 1}. Is it another data set, or another version of it?"
            )


@dataclass(frozen=True)
class About:
    """What is known about a published data set before it is loaded.

    Attributes:
        name: in configurations.
        title: as its authors call it.
        size: in words.
        clients: its clients in words; empty where there are none.
        citation: whom to cite.
        licence: under which it was published.
        obtain: how to get it, an imperative sentence.
        files: a folder with one of these holds the data set; none: it's embedded in a package.
        folders: names of the data set's own folder within the user's.
        elsewhere: other places to search.
        checksum: SHA-256 of its content; None if unknown.
        check: what of the content is compared when it's loaded, in words.
    """

    name: str
    title: str
    size: str
    clients: str
    citation: str
    licence: str
    obtain: str
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    elsewhere: tuple[Path, ...] = ()
    checksum: str | None = None
    check: str = "SHA-256"

    def locate(self, data_dir: str | Path | None = None) -> Path:
        """Find the folder of the data set: in `data_dir`, in $ARCHIPEL_DATA, in folders within these, or elsewhere.

        Raises:
            FileNotFoundError: it's nowhere; the message says how to get it.
        """
        roots = [Path(root) for root in (data_dir, os.environ.get("ARCHIPEL_DATA")) if root]
        places = [place for root in roots for place in (root, *(root / inner for inner in self.folders))]
        places += self.elsewhere
        for place in places:
            if any((place / file).exists() for file in self.files):
                return place
        where = f"isn't in {', '.join(map(str, places))}" if places else "was searched nowhere"
        raise FileNotFoundError(
            f"{self.title} {where}. {self.obtain}; give the folder that holds {_some(self.files)} as data_dir "
            "(--data-dir), or in the environment variable ARCHIPEL_DATA. The digits need no files."
        )

    def found(self, data_dir: str | Path | None = None) -> bool:
        """Whether it's there."""
        try:
            return not self.files or self.locate(data_dir).exists()
        except FileNotFoundError:
            return False

    def checked(self, checksum: str, where: object, verify: bool = True) -> str:
        """Give the checksum back if it is the known one.

        Raises:
            ValueError: the content is another.
        """
        if verify and self.checksum is not None and checksum != self.checksum:
            raise ValueError(
                f"the files in {where} don't hold {self.title}: the SHA-256 of their content is {checksum}, not "
                f"{self.checksum}. Fetch them again, or pass verify=False if you mean these."
            )
        return checksum

    def source(self, **columns: Any) -> Source:
        """Make a source with this name, citation and licence."""
        return Source(name=self.name, citation=self.citation, licence=self.licence, **columns)


def content_checksum(x: Array, y: Array, client: Array | None = None) -> str:
    """SHA-256 over the bytes of x, then y, as uint8 where they're classes, then clients as int64.

    Memory-mapped arrays are read in chunks.

    >>> content_checksum(np.zeros(0, np.uint8), np.zeros(0, np.int64))[:8]  # of nothing
    'e3b0c442'
    """
    digest = hashlib.sha256()
    parts = [x, y if y.dtype.kind == "f" else y.astype(np.uint8)]
    for array in parts if client is None else [*parts, client.astype(np.int64)]:
        for chunk in in_chunks(array):
            digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def codes_tensor(codes: NDArray[Any]) -> Tensor:
    """Class or client codes as int64."""
    return torch.from_numpy(codes.astype(np.int64))


def _some(files: tuple[str, ...]) -> str:
    return files[0] if len(files) == 1 else f"{', '.join(files[:-1])} or {files[-1]}"
