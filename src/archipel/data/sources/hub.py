"""Any Hugging Face data set with a client column, or a federated one of flwr-datasets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from archipel.data.features import as_stored
from archipel.data.labels import read_labels
from archipel.data.sources.folders import pooled, read_array
from archipel.data.sources.source import Source, codes_tensor, content_checksum
from archipel_serve.arrays import Array, as_array, as_text
from archipel_serve.preparation import Kind

BATCH = 1024  # rows that are decoded at a time


def from_hub(
    dataset: Any,
    *,
    client: str | None = None,
    label: str = "label",
    inputs: str | Sequence[str] | None = None,
    kind: Kind | Literal["auto"] = "auto",
    split: str = "train",
    name: str | None = None,
) -> Source:
    """Read a data set of the Hugging Face hub, with its clients.

    Args:
        dataset: a `datasets.Dataset` or `DatasetDict` with a client column, a `flwr_datasets.FederatedDataset`, or the
            name of a data set, which is then loaded by `datasets.load_dataset` (`pip install archipel[hub]`).
        client: the column of clients; not for a FederatedDataset, whose partitions are clients.
        label: the column of labels.
        inputs: the column of images or arrays, or several columns of numbers, which make a table. If not given, it's
            the column called image, img or x where there is one, else all but label and client.
        kind: "image", "table" or "series", where it doesn't follow from the shapes.
        split: which split of it.
        name: the source's name.

    Returns:
        x (n, *shape) uint8 or float32, rows ordered by client.

    Raises:
        ValueError: a column isn't there, rows differ in shape, or values are no numbers.
        ImportError: a name was given, and the package isn't installed.
    """
    called = name or (dataset if isinstance(dataset, str) else "hub data")
    if isinstance(dataset, str):
        dataset = _loaded(dataset, split)
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise ValueError(f"the data set has no split {split!r}; it has {', '.join(map(str, dataset))}.")
        dataset = dataset[split]
    parts = _partitions(dataset, split)
    if parts is None and client is None:
        raise ValueError(
            f"say by client=… which column holds the clients; there are {', '.join(dataset.column_names)}."
        )
    parts = parts or [("", dataset)]
    columns = list(parts[0][1].column_names)
    wanted = [inputs] if isinstance(inputs, str) else list(inputs or _input_columns(columns, label, client))
    for column in [*wanted, label, *([client] if client else [])]:
        if column not in columns:
            raise ValueError(f"the data set has no column {column!r}; there are {', '.join(columns)}.")
    xs: list[Array] = []
    labels: list[Array] = []
    owners: list[str] = []
    for part_name, part in parts:
        for rows in _batches(part):
            xs.append(_inputs(rows, wanted, kind))
            labels.append(np.asarray(rows[label]))
            owners += [as_text(owner) for owner in rows[client]] if client else [part_name] * len(labels[-1])
    names = list(dict.fromkeys(owners)) if client is None else sorted(set(owners), key=_natural)
    codes = np.array([{owner: i for i, owner in enumerate(names)}[owner] for owner in owners], np.int64)
    feature = (getattr(parts[0][1], "features", None) or {}).get(label)
    known = getattr(feature, "names", None)
    (y,), classes = read_labels([np.concatenate(labels)], ["all"], known)
    x = pooled(as_stored(xs))
    order = np.argsort(codes, kind="stable")
    if (np.diff(codes) < 0).any():
        x, y, codes = x[order], y[order], codes[order]
    info = getattr(parts[0][1], "info", None)
    return Source(
        x=torch.from_numpy(x),
        y=y,
        classes=classes or (),
        name=called,
        citation=str(getattr(info, "citation", "") or ""),
        licence=str(getattr(info, "license", "") or ""),
        checksum=content_checksum(x, y.numpy(), codes),
        kind="table" if x.ndim == 2 else "image" if x.ndim == 4 else "series",
        client=codes_tensor(codes),
        client_names=tuple(names),
        features=tuple(wanted) if x.ndim == 2 and len(wanted) == x.shape[1] else (),
    )


def _loaded(name: str, split: str) -> Any:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError(f"loading {name!r} needs datasets: pip install archipel[hub].") from error
    return load_dataset(name, split=split)


def _partitions(dataset: Any, split: str) -> list[tuple[str, Any]] | None:
    """Return the clients of a FederatedDataset; None for other data sets."""
    if not hasattr(dataset, "load_partition"):
        return None
    if split not in dataset.partitioners:
        raise ValueError(f"the federated data set divides {', '.join(dataset.partitioners)}, not the split {split!r}.")
    dataset.load_partition(0, split)  # gives the partitioner its data, without which it can't count clients
    partitioner = dataset.partitioners[split]
    ids = getattr(partitioner, "partition_id_to_natural_id", {})
    return [
        (str(ids.get(i, f"client-{i}")), dataset.load_partition(i, split)) for i in range(partitioner.num_partitions)
    ]


def _input_columns(columns: list[str], label: str, client: str | None) -> list[str]:
    likely = [column for column in columns if column in ("image", "img", "x")]
    return likely[:1] or [column for column in columns if column not in (label, client)]


def _batches(part: Any) -> Iterator[dict[str, Any]]:
    return (part[start : start + BATCH] for start in range(0, len(part), BATCH))


def _inputs(rows: dict[str, Any], wanted: list[str], kind: Kind | Literal["auto"]) -> Array:
    columns = []
    for column in wanted:
        try:
            columns.append(np.stack([as_array(value, f"column {column!r}") for value in rows[column]]))
        except ValueError as error:
            if str(error).startswith("column"):
                raise
            raise ValueError(f"column {column!r} holds values of different shapes. Bring all to the same.") from error
    if len(columns) > 1 and any(values.ndim > 1 for values in columns):
        raise ValueError(f"columns {', '.join(wanted)} don't make a table; name one by inputs=….")
    return read_array(columns[0] if columns[0].ndim > 1 else np.stack(columns, axis=1), kind, ", ".join(wanted))


def _natural(owner: str) -> tuple[int, int, str]:
    """Numbers in their order, before text."""
    return (0, int(owner), owner) if owner.isdecimal() else (1, 0, owner)
