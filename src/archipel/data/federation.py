"""A federation: clients with their examples, the preprocessing, and the truth behind the data where it is known."""

import difflib
import warnings
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import clean
from archipel.data.arrays import Values
from archipel.data.client import Client, Columns, fingerprint
from archipel.data.features import read_features
from archipel.data.federation_folder import read_federation, write_federation
from archipel.data.inputs import Inputs
from archipel.data.labels import read_labels
from archipel.data.partitions.splits import check_fractions, train_test_split
from archipel_serve.arrays import as_text
from archipel_serve.preparation import Kind


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a federation.

    Attributes:
        name: its name in reports.
        clients: m clients.
        inputs: shape and preprocessing of examples.
        classes: the classes' names in the order of their codes; None for a regression.
        truth: how the data were made, where it is known: entries have one row for each client, except for the dict
            "shared", which holds what all clients have in common.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> arrays = [(rng.normal(size=(n, 5)), np.arange(n) % 2) for n in (10, 20)]
    >>> federation = Federation.from_arrays(arrays, test=0.3, names=["Nice", "Lyon"])
    >>> print(federation)
    arrays: 2 clients, 21 training examples, 2 classes (0, 1), table (5,)
    client  train  test  classes
    Nice        7     3        2
    Lyon       14     6        2
    """

    name: str
    clients: tuple[Client, ...]
    inputs: Inputs
    classes: tuple[str, ...] | None
    truth: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [client.name for client in self.clients]
        if not names:
            raise ValueError("a federation has one client or more; none was given.")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two clients are called {twice!r}; give clients different names.")
        if empty := [client.name for client in self.clients if not len(client.train["y"])]:
            raise ValueError(f"client {empty[0]!r} has no training examples. Leave it out, or give it some.")

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[tuple[Values, Values]],
        *,
        test: float = 0.3,
        validation: float = 0.0,
        seed: int = 0,
        names: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        kind: Kind | Literal["auto"] = "auto",
        name: str = "arrays",
        features: Sequence[Sequence[str]] | None = None,
    ) -> Self:
        """Make a federation of your arrays, one pair (X, y) a client.

        Each client's examples are divided at random, and every example is in exactly one split.

        Args:
            arrays: per client X: images (n, H, W), (n, H, W, 3) or (n, 3, H, W), uint8 or float; tables (n, d), also
                as data frames or dicts of columns, whose names must be the same for all clients; series (n, t, d); and
                y: (n,) whole numbers or text for classes, (n,) or (n, d) floats for a regression. Whole numbers in
                tables and series are measurements and get standardised: encode codes of tokens or categories first.
            test: fraction of each client's examples that are kept for testing.
            validation: fraction kept for validation, cut from the rest.
            seed: what determines the splits.
            names: the clients' names; "client-0", … if not given.
            classes: the classes' names, in the order of their codes; found in the data if not given.
            kind: "image", "table" or "series", where it doesn't follow from the shapes.
            name: the federation's name.
            features: per client the names of the columns of a table; those of data frames and dicts, if not given.

        Raises:
            ValueError: data that don't fit together, are empty or not finite; the message names the client.

        Warns:
            UserWarning: a client has one class only.
        """
        check_fractions(test, validation)
        if seed < 0:
            raise ValueError(f"seed is {seed}; it is a whole number, 0 or more.")
        names = [f"client-{i}" for i in range(len(arrays))] if names is None else [as_text(given) for given in names]
        if len(names) != len(arrays):
            raise ValueError(f"names has {len(names)} entries for {len(arrays)} clients; give one each.")
        if not names:
            raise ValueError("arrays is empty; give one pair (X, y) a client.")
        for pair, who in zip(arrays, names, strict=True):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"client {who!r}: give a pair (X, y); given is a {type(pair).__name__}{_long(pair)}.")
        xs, features = read_features([pair[0] for pair in arrays], names, kind, features)
        ys, known = read_labels([pair[1] for pair in arrays], names, classes)
        for x, y, who in zip(xs, ys, names, strict=True):
            if len(x) != len(y):
                raise ValueError(
                    f"client {who!r}: x has {len(x)} examples, but y has {len(y)}; give one y for each example."
                )
        clients = []
        for i, (x, y, who) in enumerate(zip(xs, ys, names, strict=True)):
            stream = np.random.SeedSequence(seed, spawn_key=(i,))
            parts = train_test_split(len(y), test, validation, stream, f"client {who!r}")
            rows = {split: torch.from_numpy(index) for split, index in parts.items()}
            columns = {split: {"x": x[index], "y": y[index]} for split, index in rows.items()}
            clients.append(Client(who, **columns, truth={split: {"index": index} for split, index in rows.items()}))
        for y, who in zip(ys, names, strict=True):
            if known is not None and len(present := torch.unique(y)) == 1:
                warnings.warn(f"client {who!r} has one class only, {known[present]!r}.", UserWarning, stacklevel=2)
        found: Kind = "table" if xs[0].ndim == 2 else "image" if xs[0].ndim == 4 else "series"
        inputs = Inputs.fit([client.train["x"] for client in clients], found, features=features)
        return cls(name, tuple(clients), inputs, known)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def outputs(self) -> int:
        """K classes, or the number of a regression's targets."""
        y = self.clients[0].train["y"]
        return len(self.classes) if self.classes is not None else 1 if y.dim() == 1 else int(y.shape[1])

    @cached_property
    def sizes(self) -> Tensor:
        """(m,) int64 training examples that each client holds."""
        return torch.tensor([len(client.train["y"]) for client in self.clients])

    def keeping(self, clients: Sequence[bool]) -> Self:
        """Return the federation without the training and validation examples of clients that another process has.

        Their numbers, shapes and types stay known; the fingerprint is that of all data. Test examples stay, since an
        evaluation asks all models about them.

        Args:
            clients: for each client, whether its examples are kept.
        """

        def emptied(columns: Columns) -> Columns:
            return {name: values[:1].clone().expand_as(values) for name, values in columns.items()}

        found = replace(
            self,
            clients=tuple(
                client
                if kept
                else replace(
                    client,
                    train=emptied(client.train),
                    validation=None if client.validation is None else emptied(client.validation),
                )
                for client, kept in zip(self.clients, clients, strict=True)
            ),
        )
        found.__dict__["fingerprint"] = self.fingerprint
        return found

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names, shapes and values of all clients' splits: equal where the data are equal."""
        return fingerprint(self.clients)

    def hold_out(self, clients: int | Sequence[str], *, seed: int = 0) -> tuple[Self, Self]:
        """Set clients aside that never train: newcomers, to test a trained federation on.

        Args:
            clients: how many, drawn at random; or their names.
            seed: what determines the draw.

        Returns:
            The federation without them, with inputs fitted anew, and a federation of them, with the same inputs.

        Raises:
            ValueError: unknown names, or no client left on either side.

        >>> federation = Federation.from_arrays([([[i], [i + 1.0]], [0, 1]) for i in range(4)], test=0.0)
        >>> training, newcomers = federation.hold_out(["client-1"])
        >>> [client.name for client in training.clients], newcomers.inputs == training.inputs
        (['client-0', 'client-2', 'client-3'], True)
        """
        names = [client.name for client in self.clients]
        if isinstance(clients, int):
            if not 0 < clients < len(names):
                raise ValueError(
                    f"clients is {clients}; of {len(names)} clients, 1 to {len(names) - 1} can be held out."
                )
            away = set(np.random.default_rng(seed).permutation(len(names))[:clients].tolist())
        else:
            if unknown := [name for name in clients if name not in names]:
                near = difflib.get_close_matches(unknown[0], names, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" There are: {_some(tuple(names))}."
                raise ValueError(f"there is no client {unknown[0]!r}.{hint}")
            away = {names.index(name) for name in clients}
            if not 0 < len(away) < len(names):
                raise ValueError(f"clients names {len(away)} of {len(names)} clients; leave some on both sides.")
        stay = self._only([i for i in range(len(names)) if i not in away])
        inputs = self.inputs.refitted([client.train["x"] for client in stay.clients])
        return replace(stay, inputs=inputs), replace(self._only(sorted(away)), inputs=inputs)

    def _only(self, kept: list[int]) -> Self:
        truth = {
            name: entry if name == "shared" else _rows(name, entry, kept, len(self))
            for name, entry in self.truth.items()
        }
        return replace(self, clients=tuple(self.clients[i] for i in kept), truth=truth)

    def save(self, folder: str | Path) -> None:
        """Write the federation, truth included, to a folder; see `archipel.data.federation_folder`.

        Args:
            folder: is made, or replaced if it holds a federation.

        Raises:
            FileExistsError: the folder holds something else.
            TypeError: the truth holds something that is neither a tensor nor plain data, by name.
        """
        write_federation(folder, self.name, self.clients, self.inputs, self.classes, self.truth)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False) -> Self:
        """Read a federation from a folder; its arrays stay in the files until they are used.

        Args:
            folder: written by `save`.
            verify: read everything and compare the fingerprint.

        Raises:
            FileNotFoundError: there is no federation.
            ValueError: a file that is damaged, cut short or changed, by name; a format of another version.
        """
        return cls(*read_federation(folder, verify=verify))

    def __str__(self) -> str:
        """Describe the federation in a line, and each client in a row of a table."""
        shape = "×".join(map(str, self.inputs.shape)) if len(self.inputs.shape) > 1 else f"{self.inputs.shape}"
        task = "regression" if self.classes is None else f"{len(self.classes)} classes ({_some(self.classes)})"
        head = f"{self.name}: {len(self)} clients, {int(self.sizes.sum())} training examples, {task}, "
        columns = ["client", *self.clients[0].splits, *([] if self.classes is None else ["classes"])]
        rows = [columns]
        for client in self.clients:
            row = [client.name, *(str(len(part["y"])) for part in client.splits.values())]
            rows.append(row if self.classes is None else [*row, str(len(torch.unique(client.train["y"])))])
        widths = [max(len(row[j]) for row in rows) for j in range(len(columns))]
        lines = [
            "  ".join(
                cell.rjust(w) if j else cell.ljust(w) for j, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return clean("\n".join([f"{head}{self.inputs.kind} {shape}", *lines]))

    def __repr__(self) -> str:
        return f"Federation({self.name!r}, {len(self)} clients, {int(self.sizes.sum())} training examples)"


def _rows(name: str, entry: Any, kept: list[int], m: int) -> Any:
    if not isinstance(entry, Tensor | list | tuple) or len(entry) != m:
        raise ValueError(
            f"the truth's entry {name!r} hasn't a row for each of {m} clients. What all have in common goes into "
            'truth["shared"].'
        )
    return entry[kept] if isinstance(entry, Tensor) else type(entry)(entry[i] for i in kept)


def _long(value: object) -> str:
    return f" of length {len(value)}" if isinstance(value, Sized) else ""


def _some(names: tuple[str, ...], shown: int = 10) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")
