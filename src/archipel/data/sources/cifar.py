"""CIFAR-10 and CIFAR-100, in their official pickled batches."""

import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.files.guard import check_unpacked, readable
from archipel.data.files.pickles import read_pickle
from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

PIXELS = 3 * 32 * 32
CITATION = "Krizhevsky (2009). Learning multiple layers of features from tiny images. University of Toronto."
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
# MD5 of the published files, as torchvision checks them; the last but one holds the test set, the last the names.
CIFAR10_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
CIFAR100_FILES = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
CIFAR10 = About(
    name="cifar10",
    title="CIFAR-10",
    size="60,000 images 3×32×32, 10 classes",
    clients="",
    citation=CITATION,
    licence="not stated",
    obtain=f"Get cifar-10-python.tar.gz at {PAGE}",
    files=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    check="MD5 of every file",
    folders=("cifar10", "cifar-10"),
)
CIFAR100 = About(
    name="cifar100",
    title="CIFAR-100",
    size="60,000 images 3×32×32, 100 classes in 20 superclasses",
    clients="",
    citation=CITATION,
    licence="not stated",
    obtain=f"Get cifar-100-python.tar.gz at {PAGE}",
    files=("cifar-100-python", "cifar-100-python.tar.gz"),
    check="MD5 of every file",
    folders=("cifar100", "cifar-100"),
)


def cifar10(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """CIFAR-10: 60,000 colour images, 32×32, of ten classes; the last 10,000 are the original test set.

    The official batches are read from the folder "cifar-10-batches-py", which torchvision makes as well, or from the
    published archive. Pickles can run code; this reader accepts arrays and lists alone.

    Args:
        data_dir: the folder that holds "cifar-10-batches-py" or "cifar-10-python.tar.gz".
        verify: compare every file with its published MD5.

    Returns:
        x (60000, 3, 32, 32) uint8, y (60000,) int64; `test` marks the original test set.

    Raises:
        FileNotFoundError: the files are nowhere, or one is missing.
        ValueError: a file is damaged, or isn't the published one.

    Source: Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """
    read = _reader(CIFAR10, CIFAR10_FILES, data_dir, verify)
    *parts, meta = CIFAR10_FILES
    x, (y,), test = _pooled(read, parts, (b"labels",))
    return CIFAR10.source(
        x=torch.from_numpy(x),
        y=codes_tensor(y),
        classes=_names(read(meta), b"label_names", meta),
        checksum=content_checksum(x, y),
        test=test,
    )


def cifar100(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """CIFAR-100: 60,000 colour images, 32×32, of 100 classes in 20 superclasses; the last 10,000 are the test set.

    Read as CIFAR-10 is, from the folder "cifar-100-python" or the archive.

    Args:
        data_dir: the folder that holds "cifar-100-python" or "cifar-100-python.tar.gz".
        verify: compare every file with its published MD5.

    Returns:
        x (60000, 3, 32, 32) uint8, y (60000,) int64 fine labels; `superclass` and `superclasses` say which of the 20
        superclasses each class belongs to; `test` marks the original test set.

    Raises:
        FileNotFoundError: the files are nowhere, or one is missing.
        ValueError: a file is damaged, isn't the published one, or puts a class into two superclasses.

    Source: Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """
    read = _reader(CIFAR100, CIFAR100_FILES, data_dir, verify)
    *parts, meta = CIFAR100_FILES
    x, (fine, coarse), test = _pooled(read, parts, (b"fine_labels", b"coarse_labels"))
    names = read(meta)
    classes, superclasses = _names(names, b"fine_label_names", meta), _names(names, b"coarse_label_names", meta)
    pairs = np.unique(np.stack([fine, coarse]), axis=1)
    if not np.array_equal(pairs[0], np.arange(len(classes))):
        raise ValueError(
            f"CIFAR-100 has {len(classes)} classes, each in one superclass; the files hold {len(set(fine.tolist()))} "
            f"classes in {pairs.shape[1]} pairs with superclasses. Fetch them again."
        )
    return CIFAR100.source(
        x=torch.from_numpy(x),
        y=codes_tensor(fine),
        classes=classes,
        checksum=content_checksum(x, fine),
        superclass=codes_tensor(pairs[1]),
        superclasses=superclasses,
        test=test,
    )


Read = Callable[[str], dict[bytes, Any]]


def _reader(about: About, known: dict[str, str], data_dir: str | Path | None, verify: bool) -> Read:
    """Make a function that reads one of the files by its name, from the folder or the archive."""
    place = about.locate(data_dir)
    folder, archive = (place / name for name in about.files)

    def content(name: str) -> bytes:
        if folder.is_dir():
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} has no file {name}, so {about.title} isn't complete. {about.obtain}."
                )
            return (folder / name).read_bytes()
        with readable(archive, f"{about.obtain} again."), tarfile.open(archive) as members:
            member = members.getmember(f"{folder.name}/{name}")
            check_unpacked(member.size, archive.stat().st_size)
            content = members.extractfile(member)
            assert content is not None
            return content.read()

    def read(name: str) -> dict[bytes, Any]:
        found = content(name)
        md5 = hashlib.md5(found, usedforsecurity=False).hexdigest()
        if verify and md5 != known[name]:
            raise ValueError(
                f"{folder / name} isn't the published file: its MD5 is {md5}, not {known[name]}. {about.obtain} again, "
                "or pass verify=False if you mean these."
            )
        return read_pickle(found, folder / name)

    return read


def _pooled(
    read: Read, parts: list[str], labels: tuple[bytes, ...]
) -> tuple[NDArray[np.uint8], list[NDArray[np.int64]], Tensor]:
    """Read the images and labels of all files; the last file is the test set."""
    images: list[NDArray[np.uint8]] = []
    codes: list[list[NDArray[np.int64]]] = [[] for _ in labels]
    for part in parts:
        batch = read(part)
        x = batch.get(b"data")
        if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == PIXELS):
            raise ValueError(f"{part} holds no images: its b'data' isn't (n, {PIXELS}) uint8. Fetch it again.")
        images.append(x.reshape(-1, 3, 32, 32))
        for column, found in zip(labels, codes, strict=True):
            found.append(np.asarray(batch.get(column, ()), np.int64))
            if found[-1].shape != (len(x),):
                raise ValueError(
                    f"{part} holds {len(x)} images, but {found[-1].size} {column.decode()}. Fetch it again."
                )
    x = np.concatenate(images)
    return x, [np.concatenate(found) for found in codes], torch.arange(len(x)) >= len(x) - len(images[-1])


def _names(meta: dict[bytes, Any], key: bytes, file: str) -> tuple[str, ...]:
    names = meta.get(key)
    if not isinstance(names, list):
        raise ValueError(f"{file} holds no list {key.decode()}. Fetch it again.")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
