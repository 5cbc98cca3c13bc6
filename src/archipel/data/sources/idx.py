"""Fashion-MNIST, in the idx files that MNIST introduced."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.data.files.gzipped import read_bytes
from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist
FASHION_MNIST = About(
    name="fashion-mnist",
    title="Fashion-MNIST",
    size="70,000 images 28×28, 10 classes",
    clients="",
    citation="Xiao, Rasul and Vollgraf (2017). Fashion-MNIST: a novel image dataset. arXiv:1708.07747.",
    licence="MIT",
    obtain="Install it by `apt-get install dataset-fashion-mnist`, or take its four idx files",
    files=("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    elsewhere=(FASHION_FOLDER,),
    # Over pixels, then labels, training before test. Recorded from Debian's dataset-fashion-mnist 0.0~git20200523;
    # the publisher gives checksums of his .gz files only, which Debian packs anew.
    checksum="2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54",
)
IDX_UINT8 = 0x08


def fashion_mnist(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """Fashion-MNIST: 70,000 grey images, 28×28, of ten kinds of clothing; the last 10,000 are the original test set.

    The four idx files, gzipped or not, are looked for in `data_dir`, then in $ARCHIPEL_DATA, each also in a folder
    "fashion-mnist" within (or "FashionMNIST/raw", as torchvision leaves them), then where Debian's package
    dataset-fashion-mnist puts them.

    Args:
        data_dir: a folder of yours that holds the files.
        verify: compare the unpacked content with the known one (MNIST, for one, has files of the same names).

    Returns:
        x (70000, 28, 28) uint8, y (70000,) int64.

    Raises:
        FileNotFoundError: the files are nowhere.
        ValueError: a file is damaged, or the content isn't Fashion-MNIST.

    >>> fashion_mnist()
    Source('fashion-mnist', x=(70000, 28, 28) torch.uint8, 10 classes)

    Source: Xiao, Rasul and Vollgraf (2017), Fashion-MNIST: a novel image dataset, arXiv:1708.07747.
    """
    folder = FASHION_MNIST.locate(data_dir)
    x = np.concatenate([read_idx(_idx_file(folder, f"{part}-images-idx3-ubyte")) for part in ("train", "t10k")])
    y = np.concatenate([read_idx(_idx_file(folder, f"{part}-labels-idx1-ubyte")) for part in ("train", "t10k")])
    checksum = FASHION_MNIST.checked(content_checksum(x, y), folder, verify)
    return FASHION_MNIST.source(x=torch.from_numpy(x), y=codes_tensor(y), classes=FASHION_CLASSES, checksum=checksum)


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes, gzipped or not: a magic number (0, 0, 8, axes), the axes' sizes, then the values.

    Args:
        path: the file; it's unpacked if it begins as gzip files do.

    Returns:
        An array of uint8 with the shape that the file names.

    Raises:
        ValueError: not an idx file of bytes, cut short, or too long.

    Source: LeCun, Cortes and Burges, The MNIST database of handwritten digits, "File formats".
    """
    content = read_bytes(Path(path))
    if len(content) < 4 or content[:3] != bytes([0, 0, IDX_UINT8]):
        raise ValueError(f"{path} isn't an idx file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}.")
    axes = content[3]
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start]) if len(content) >= start else ()
    if len(content) < start or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(content)} bytes, which doesn't fit its header. Fetch it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_file(folder: Path, stem: str) -> Path:
    plain = folder / stem
    return plain if plain.exists() else folder / f"{stem}.gz"
