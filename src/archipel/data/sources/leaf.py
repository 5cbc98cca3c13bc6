"""FEMNIST: handwritten characters by writer, as in the benchmark LEAF."""

import string
from pathlib import Path

import numpy as np
import torch

from archipel.data.files.arrays import read_npz
from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

FEMNIST = About(
    name="femnist",
    title="FEMNIST",
    size="70,903 images 28×28, 62 classes",
    clients="200 writers",
    citation="Caldas et al. (2018). LEAF: a benchmark for federated settings. arXiv:1812.01097.",
    licence="public domain (NIST Special Database 19)",
    obtain="Make femnist-200.npz out of LEAF's FEMNIST: arrays x, y, examples_per_writer and writer, rows by writer",
    files=("femnist-200.npz", "femnist.npz"),
    folders=("femnist",),
    # Recorded from the file; LEAF publishes none.
    checksum="24bad091f4bf95e882befc71d7e5683abdf616e00a51497b4e09cf8c2695c4c7",
)
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


def femnist(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """FEMNIST: 70,903 grey images, 28×28, of 62 characters by 200 writers.

    Black on white, as scanned; to mix them with MNIST's white on black, invert them. A LeNet takes them as they are,
    with one channel.

    Args:
        data_dir: the folder that holds femnist-200.npz, or a larger femnist.npz of the same make.
        verify: compare the content of femnist-200.npz with the known one.

    Returns:
        x (70903, 28, 28) uint8, y (70903,) int64, rows ordered by writer.

    Raises:
        FileNotFoundError: the file is nowhere.
        ValueError: it is damaged, or its parts don't fit together.

    Source: Caldas et al. (2018), LEAF; Cohen et al. (2017), EMNIST; NIST Special Database 19.
    """
    folder = FEMNIST.locate(data_dir)
    file = next(folder / name for name in FEMNIST.files if (folder / name).exists())
    found = read_npz(file, ("x", "y", "examples_per_writer", "writer"))
    x, y, counts, writers = found["x"], found["y"], found["examples_per_writer"], found["writer"]
    if x.dtype != np.uint8 or x.ndim != 3 or counts.sum() != len(x) or len(counts) != len(writers):
        raise ValueError(
            f"{file} doesn't hold FEMNIST: x is {x.dtype} {x.shape}, for {len(writers)} writers with {counts.sum()} "
            "examples. Needed are (n, H, W) uint8 images, ordered by writer."
        )
    client = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    return FEMNIST.source(
        x=torch.from_numpy(x),
        y=codes_tensor(y),
        classes=CHARACTERS,
        checksum=FEMNIST.checked(content_checksum(x, y, client), folder, verify and file.name == FEMNIST.files[0]),
        client=codes_tensor(client),
        client_names=tuple(str(name) for name in writers),
    )
