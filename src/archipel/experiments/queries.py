"""Queries read from files: images, and arrays or tables of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from archipel.data.files.clients import EXAMPLES, read_examples
from archipel.data.files.images import IMAGES, read_image
from archipel.data.inputs import Inputs
from archipel_serve.arrays import Array

LABEL = "y"
"""The column of labels in the tables that clients train on."""


@dataclass(frozen=True)
class Queries:
    """Prepared examples.

    Args:
        names: the file of each query, with its position where the file holds several.
        x: ``(n, *shape)``, as the federation stores its own.
    """

    names: list[str]
    x: Tensor


def read_queries(paths: Sequence[Path], inputs: Inputs) -> Queries:
    """Read queries and prepare them as the training data were prepared.

    Args:
        paths: image files; ``.npy`` files, ``.npz`` files with an array ``x``, tables as ``.csv``, ``.tsv`` or
            ``.parquet`` with the federation's columns, beside which a column ``y`` of labels is ignored; or folders of
            these.
        inputs: the federation's.

    Raises:
        FileNotFoundError: a path doesn't exist.
        ValueError: a file can't be read or doesn't fit; the message names it.
    """
    names, found = [], []
    for file in [file for path in paths for file in _files(path)]:
        x = _read(file, inputs)
        names += [str(file)] if len(x) == 1 else [f"{file}[{i}]" for i in range(len(x))]
        found.append(x)
    return Queries(names, torch.cat(found))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES + EXAMPLES)
        if not inside:
            raise ValueError(f"The folder {path} holds no queries: no files in {', '.join(IMAGES + EXAMPLES)}.")
        return inside
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    return [path]


def _read(file: Path, inputs: Inputs) -> Tensor:
    kind = file.suffix.lower()
    if kind in IMAGES:
        if inputs.kind != "image":
            raise ValueError(
                f"{file} is an image, but the run's examples are {inputs.kind} data of shape {inputs.shape}: "
                f"give them as {', '.join(EXAMPLES)}."
            )
        values: Array = read_image(file)
        features = None
    elif kind in EXAMPLES:
        known = inputs.features and LABEL not in inputs.features  # else a column of that name may be a feature
        examples = read_examples(file, ignored=LABEL if known else None)
        values, features = examples.x, examples.features
    else:
        raise ValueError(f"{file} is of no type that can be read; queries are {', '.join(IMAGES + EXAMPLES)}.")
    try:
        return inputs.prepare(values, features)
    except ValueError as error:
        raise ValueError(f"{file} doesn't fit the run: {error}") from error
