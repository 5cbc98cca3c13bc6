"""A client with its examples, and a fingerprint of the data of many."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from archipel.data.arrays import in_chunks

Columns = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Client:
    """One client's examples, in splits of columns "x" (n, *shape) and "y" (n,) int64, or float32 targets.

    Attributes:
        name: unique in the federation.
        train: what it trains on.
        test: what it's tested on; no rows where nothing was set aside.
        validation: what choices are made on, None where nothing was set aside.
        truth: by split, columns that only evaluation may see, as "component", "label" (before its permutation) and
            "index" (the row in the source). Kept apart, so that no algorithm finds them in its data.
    """

    name: str
    train: Columns
    test: Columns
    validation: Columns | None = None
    truth: dict[str, Columns] = field(default_factory=dict)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={len(columns['y'])}" for split, columns in self.splits.items())
        return f"Client({self.name!r}, {sizes})"

    @property
    def splits(self) -> dict[str, Columns]:
        """The splits that exist, by name."""
        parts = {"train": self.train, "test": self.test}
        return parts | ({} if self.validation is None else {"validation": self.validation})


def fingerprint(clients: Iterable[Client]) -> str:
    """SHA-256 over names, shapes and values of all clients' splits: equal where the data are equal."""
    digest = hashlib.sha256()
    for client in clients:
        for split, columns in client.splits.items():
            for column, values in sorted(columns.items()):
                header = f"{client.name}/{split}/{column}/{values.dtype}/{tuple(values.shape)}"
                digest.update(header.encode())
                for chunk in in_chunks(values.numpy()):  # values may lie in a file larger than memory
                    digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()
