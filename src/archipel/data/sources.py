"""Data sets as they come, before they are divided over clients."""

import difflib
import gzip
import hashlib
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist
# SHA-256 over pixels, then labels, training before test. Recorded from Debian's dataset-fashion-mnist 0.0~git20200523;
# the publisher gives checksums of his .gz files only, which Debian packs anew.
FASHION_CHECKSUM = "2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54"
IDX_UINT8 = 0x08


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled data set.

    Attributes:
        x: (n, …) examples, uint8 or float; grey images are (n, H, W), colour images (n, 3, H, W).
        y: (n,) int64 classes.
        classes: their names.
        name: how it's called in configurations.
        citation: whom to cite.
        licence: under which it was published.
        checksum: SHA-256 of the bytes of x, then y as uint8.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str
    citation: str
    licence: str
    checksum: str

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Source({self.name!r}, x={tuple(self.x.shape)} {self.x.dtype}, {len(self.classes)} classes)"


def fashion_mnist(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """Fashion-MNIST: 70,000 grey images, 28×28, of ten kinds of clothing; the last 10,000 are the original test set.

    The four idx files, gzipped or not, are looked for in `data_dir`, then in $ARCHIPEL_DATA, each also in a folder
    "fashion-mnist" within, then where Debian's package dataset-fashion-mnist puts them.

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
    folder = _find_fashion(data_dir)
    x = np.concatenate([read_idx(_idx_file(folder, f"{part}-images-idx3-ubyte")) for part in ("train", "t10k")])
    y = np.concatenate([read_idx(_idx_file(folder, f"{part}-labels-idx1-ubyte")) for part in ("train", "t10k")])
    checksum = _checksum(x, y)
    if verify and checksum != FASHION_CHECKSUM:
        raise ValueError(
            f"the files in {folder} don't hold Fashion-MNIST: the SHA-256 of their content is {checksum}, "
            f"not {FASHION_CHECKSUM}. Another data set, such as MNIST, may have files of the same names. "
            "Fetch them again, or pass verify=False if you mean these."
        )
    return Source(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y.astype(np.int64)),
        classes=FASHION_CLASSES,
        name="fashion-mnist",
        citation="Xiao, Rasul and Vollgraf (2017). Fashion-MNIST: a novel image dataset. arXiv:1708.07747.",
        licence="MIT",
        checksum=checksum,
    )


def digits(data_dir: str | Path | None = None) -> Source:
    """Handwritten digits: 1,797 grey images, 8×8, embedded in scikit-learn, so that something always runs.

    Their values 0…16 become uint8 v = ⌊255 v₁₆ / 16 + ½⌋, from 0 to 255.

    Args:
        data_dir: not used; there for the sake of one signature for all sources.

    Returns:
        x (1797, 8, 8) uint8, y (1797,) int64.

    >>> digits()
    Source('digits', x=(1797, 8, 8) torch.uint8, 10 classes)

    Source: Alpaydin and Kaynak (1998), Optical recognition of handwritten digits, UCI machine learning repository.
    """
    from sklearn.datasets import load_digits  # costs half a second to import, and isn't needed for other sources

    bunch = load_digits()
    x = np.floor(bunch.images * (255 / 16) + 0.5).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    return Source(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=tuple(str(digit) for digit in range(10)),
        name="digits",
        citation="Alpaydin and Kaynak (1998). Optical recognition of handwritten digits. UCI repository.",
        licence="CC BY 4.0",
        checksum=_checksum(x, y.astype(np.uint8)),
    )


_SOURCES: dict[str, Callable[[str | Path | None], Source]] = {"fashion-mnist": fashion_mnist, "digits": digits}


def sources() -> dict[str, str]:
    """Name all sources, each with a line on what it is.

    >>> list(sources())
    ['fashion-mnist', 'digits']
    """
    return {name: (load.__doc__ or "").split("\n", 1)[0] for name, load in _SOURCES.items()}


def load_source(name: str, data_dir: str | Path | None = None) -> Source:
    """Load a source by its name.

    Args:
        name: one of `sources()`.
        data_dir: a folder of yours that holds its files.

    Raises:
        ValueError: there is no such source; the nearest name is given.

    >>> load_source("digit")
    Traceback (most recent call last):
    ValueError: there is no data source 'digit'. Did you mean 'digits'? There are: fashion-mnist, digits.
    """
    if name not in _SOURCES:
        near = difflib.get_close_matches(name, _SOURCES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data source {name!r}.{hint} There are: {', '.join(_SOURCES)}.")
    return _SOURCES[name](data_dir)


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
    content = Path(path).read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}). Fetch it again.") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, IDX_UINT8]):
        raise ValueError(f"{path} isn't an idx file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}.")
    axes = content[3]
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start]) if len(content) >= start else ()
    if len(content) < start or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(content)} bytes, which doesn't fit its header. Fetch it again.")
    # A copy: torch wants memory that can be written to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _find_fashion(data_dir: str | Path | None) -> Path:
    roots = [Path(root) for root in (data_dir, os.environ.get("ARCHIPEL_DATA")) if root]
    folders = [folder for root in roots for folder in (root, root / "fashion-mnist")] + [FASHION_FOLDER]
    for folder in folders:
        if _idx_file(folder, "train-images-idx3-ubyte").exists():
            return folder
    raise FileNotFoundError(
        f"Fashion-MNIST isn't in {', '.join(str(folder) for folder in folders)}. "
        "Install it by `apt-get install dataset-fashion-mnist`, or give the folder of its four idx files "
        "as data_dir or in the environment variable ARCHIPEL_DATA. The digits need no files."
    )


def _idx_file(folder: Path, stem: str) -> Path:
    plain = folder / stem
    return plain if plain.exists() else folder / f"{stem}.gz"


def _checksum(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> str:
    return hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()
