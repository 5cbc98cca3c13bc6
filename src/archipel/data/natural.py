"""Federations of sources that come with their clients: writers, hospitals, people."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.arrays import CHUNK
from archipel.data.client import Client, Columns
from archipel.data.federation import Federation
from archipel.data.partitions.splits import check_fractions, train_test_split
from archipel.data.sources.source import Source

Rows = NDArray[np.int64]
TEST = 0.3


def natural(
    source: Source | Callable[[], Source],
    *,
    test: float | None = None,
    validation: float = 0.0,
    seed: int = 0,
    limit: int | None = None,
    minimum: int = 1,
    missing: Literal["refuse", "keep"] = "refuse",
) -> Federation:
    """Make a federation of a source's own clients, dividing each one's examples into splits.

    All clients hold slices of one array, which is ordered by client and split. Ordering copies the source once, except
    if it is in order already (as FLamby's test sets are), or if a loader is given instead of a source, as in
    ``natural(femnist)``: then rows are moved in place. A source in a file stays in a file.

    Examples are stored as the source has them, uint8 images, float16 or float32 tables and series; models are fed
    normalised float32. Grey images get an axis for their one channel.

    Args:
        source: one with clients, or a function without arguments that loads one.
        test: fraction of each client's examples for testing. Default: the publisher's test examples if there are any,
            otherwise 0.3.
        validation: fraction for validation, cut from the rest.
        seed: what determines the splits. A client's splits don't depend on which other clients are taken.
        limit: take the first clients only.
        minimum: leave out clients with fewer examples.
        missing: "refuse" or "keep" examples with NaN in x. Networks make NaN of NaN; factor models accept it.

    Returns:
        A federation; each client's truth holds "index", the rows in the source, and the source's `extra` columns. With
        a loader, rows are moved afterwards, and "index" still says where they were.

    Raises:
        ValueError: no clients, missing values, a class that no client has, clients too small for the splits.

    >>> from archipel.data.sources.scikit import digits
    >>> from dataclasses import replace
    >>> halves = replace(digits(), client=(torch.arange(1797) > 900).long(), client_names=("first", "second"))
    >>> print(natural(halves))
    digits: 2 clients, 1258 training examples, 10 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9), image 1×8×8
    client  train  test  classes
    first     631   270       10
    second    627   269       10
    """
    check_fractions(TEST if test is None else test, validation)
    if seed < 0:
        raise ValueError(f"seed is {seed}; it is a whole number, 0 or more.")
    owned = not isinstance(source, Source)
    source = source if isinstance(source, Source) else source()
    _check(source, limit, missing)
    blocks = _blocks(source, test, validation, seed, limit, minimum)
    columns, starts = _arrange(source, blocks, owned)
    if source.kind == "image" and columns["x"].dim() == 3:
        columns["x"] = columns["x"].unsqueeze(1)
    index = torch.from_numpy(np.concatenate([block.rows for block in blocks]))
    extra = {name: values[index] for name, values in source.extra.items()}
    clients, offset = [], 0
    for block, start in zip(blocks, starts, strict=True):
        train = {}
        truth: dict[str, Columns] = {}
        for split, lo, hi in block.cuts():
            train[split] = {name: values[start + lo : start + hi] for name, values in columns.items()}
            truth[split] = {
                name: values[offset + lo : offset + hi] for name, values in ({"index": index} | extra).items()
            }
        clients.append(Client(block.name, **train, truth=truth))
        offset += len(block.rows)
    inputs = source.fit_inputs(clients)
    if limit is None and source.classes:
        held = torch.bincount(columns["y"], minlength=len(source.classes))
        if lacking := [source.classes[int(code)] for code in torch.nonzero(held == 0)]:
            raise ValueError(
                f"{source.name}: no client has an example of class {lacking[0]!r}. Take it out of classes."
            )
    return Federation(source.name, tuple(clients), inputs, source.classes or None)


@dataclass(frozen=True)
class _Block:
    """A client's rows of the source, split after split."""

    name: str
    rows: Rows
    sizes: dict[str, int]

    def cuts(self) -> list[tuple[str, int, int]]:
        stops = np.cumsum(list(self.sizes.values())).tolist()
        return [(split, stop - size, stop) for (split, size), stop in zip(self.sizes.items(), stops, strict=True)]


def _blocks(
    source: Source, test: float | None, validation: float, seed: int, limit: int | None, minimum: int
) -> list[_Block]:
    assert source.client is not None
    client = source.client.numpy()
    counts = np.bincount(client, minlength=len(source.client_names))
    by_client = np.split(np.argsort(client, kind="stable"), np.cumsum(counts)[:-1])
    taken = np.flatnonzero(counts >= max(minimum, 1))[:limit]
    if not len(taken):
        raise ValueError(f"{source.name} has no client with {minimum} examples; the largest has {counts.max()}.")
    own = source.test.numpy() if source.test is not None and test is None else None
    blocks = []
    for i in taken.tolist():
        name, rows = source.client_names[i], by_client[i]
        stream, who = np.random.SeedSequence(seed, spawn_key=(i,)), f"client {name!r}"
        if own is None:
            parts = train_test_split(len(rows), TEST if test is None else test, validation, stream, who)
            parts = {split: rows[np.sort(part)] for split, part in parts.items()}
        else:
            tests, rest = rows[own[rows]], rows[~own[rows]]
            parts = train_test_split(len(rest), 0.0, validation * len(rows) / max(len(rest), 1), stream, who)
            parts = {split: rest[np.sort(part)] for split, part in parts.items()} | {"test": tests}
        order = [split for split in ("train", "validation", "test") if split in parts]
        sizes = {str(split): len(parts[split]) for split in order}
        blocks.append(_Block(name, np.concatenate([parts[split] for split in order]), sizes))
    return blocks


def _arrange(source: Source, blocks: list[_Block], owned: bool) -> tuple[Columns, list[int]]:
    """Arrange the columns in the federation's order; return them and where each client's rows begin."""
    order = np.concatenate([block.rows for block in blocks])
    columns = {"x": source.x, "y": source.y}
    lows = [int(block.rows.min()) for block in blocks]
    if (np.diff(order) == 1).all():
        return columns, lows
    assert source.client is not None
    if owned and source.file is None and bool((source.client.diff() >= 0).all()):
        for block, low in zip(blocks, lows, strict=True):
            rows = torch.from_numpy(block.rows)
            for values in columns.values():
                values[low : low + len(rows)] = values[rows]
        return columns, lows
    starts = np.cumsum([0, *(len(block.rows) for block in blocks[:-1])]).tolist()
    index = torch.from_numpy(order)
    x = source.x[index] if source.file is None else _in_a_file(source.x, order, source.file.parent)
    return {"x": x, "y": source.y[index]}, starts


def _in_a_file(x: Tensor, order: Rows, folder: Path) -> Tensor:
    """Write rows in a new order to a file without a name, and map it; it is deleted with the last tensor in it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        step = max(1, CHUNK // max(1, x[:1].nbytes))
        for start in range(0, len(order), step):
            file.write(x[torch.from_numpy(order[start : start + step])].numpy().tobytes())
        file.flush()
        mapped = np.memmap(file, x.numpy().dtype, "c", shape=(len(order), *x.shape[1:]))
    return torch.from_numpy(np.asarray(mapped))


def _check(source: Source, limit: int | None, missing: str) -> None:
    if source.client is None:
        raise ValueError(
            f"{source.name} has no clients of its own. Divide it by one of the partitions, as "
            "archipel.data.dirichlet_by_class, or take a source that does: femnist, heart-disease, hapt, crossbill, …"
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it is a number of clients, 1 or more.")
    if missing not in ("refuse", "keep"):
        raise ValueError(f"missing is {missing!r}; it is refuse or keep.")
    if missing == "refuse" and source.x.is_floating_point():
        gaps = int((~torch.isfinite(source.x.flatten(1))).any(dim=1).sum())
        if gaps:
            raise ValueError(
                f"{source.name} has missing values in {gaps} of {len(source)} examples, which models can't read. "
                'Choose when you load it (heart_disease(missing="impute-median") or "drop-columns"), fill x, or keep '
                'them for a method that accepts them (natural(…, missing="keep")).'
            )
