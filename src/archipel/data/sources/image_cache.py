"""Folders of images as one array in a file: decoded once, then mapped into memory and read where it is used."""

import hashlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.files.images import read_image
from archipel.data.pixels import resize
from archipel.data.sources.source import content_checksum

log = logging.getLogger("archipel")
PARTIAL = ".partial"
DAY = 86_400
DECODING = 2
"""The version of what decoding does: files of another version are made anew."""


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Where decoded images are kept: `cache_dir`, $ARCHIPEL_CACHE, or archipel in the user's cache folder."""
    given = cache_dir or os.environ.get("ARCHIPEL_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archipel"


def mapped_images(
    name: str,
    files: Sequence[Path],
    labels: NDArray[np.int64],
    shape: tuple[int, int, int],
    cache_dir: str | Path | None = None,
) -> tuple[Tensor, str, Path]:
    """Decode images into one uint8 file, unless that's done, and map it into memory.

    The file's name depends on the images' names, sizes and dates of change, and on `shape`: if these change, another
    file is made. It is written under a temporary name and renamed when complete, so that an interruption leaves no
    partial file under its name.

    Args:
        name: of the data set, the beginning of the file's name.
        files: the n images, in order.
        labels: (n,) for the checksum.
        shape: (channels, height, width) of every image: larger or smaller ones are scaled until the shorter side fits,
            and cut at the centre.
        cache_dir: where the file goes; see `cache_folder`.

    Returns:
        x (n, *shape) uint8, mapped copy-on-write; the content's checksum; the file.

    Raises:
        ValueError: an image can't be read; the message names it.
    """
    known = hashlib.sha256(f"{DECODING} {shape}".encode())
    for file in files:
        facts = file.stat()
        known.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    place = cache_folder(cache_dir) / f"{name}-{known.hexdigest()[:16]}.npy"
    checksum = place.with_suffix(".sha256")
    if not (place.exists() and checksum.exists() and place.stat().st_size > len(files) * math.prod(shape)):
        _write(place, files, labels, shape)  # for the first time, or because the disk lost some of it
    # Copy-on-write: torch wants memory that can be written to, and the file must never change.
    mapped = np.load(place, mmap_mode="c")
    return torch.from_numpy(np.asarray(mapped)), checksum.read_text(), place


def covering(pixels: NDArray[np.uint8], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Bring a decoded image (H, W) or (H, W, 3) to (channels, height, width), as `Inputs.prepare` brings queries."""
    image = torch.tensor(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    resized = resize(image[None], *shape[1:], "crop")[0].numpy()
    if resized.shape[0] != shape[0]:  # a grey image among colours
        resized = np.repeat(resized, shape[0], axis=0)
    return resized


def _write(place: Path, files: Sequence[Path], labels: NDArray[np.int64], shape: tuple[int, int, int]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    for old in place.parent.glob(f".{place.stem}-*{PARTIAL}"):
        if time.time() - old.stat().st_mtime > DAY:  # of a process that was killed
            old.unlink(missing_ok=True)
    log.info("Decoding %s images once, into %s …", f"{len(files):,}", place)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.stem}-", suffix=PARTIAL)
    os.close(handle)
    try:
        x = np.lib.format.open_memmap(temporary, "w+", np.uint8, (len(files), *shape))
        for i, file in enumerate(files):
            x[i] = covering(read_image(file), shape)
        x.flush()
        # The checksum first, so that where the images are it is as well.
        _replace(place.with_suffix(".sha256"), content_checksum(x, labels))
        del x
        os.replace(temporary, place)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _replace(place: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.stem}-", suffix=PARTIAL)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, place)
