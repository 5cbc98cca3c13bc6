"""What is to be routed, read from files: images, and arrays of examples."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from archipel.data.inputs import Inputs

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
ARRAYS = (".npy", ".npz")


@dataclass(frozen=True)
class Queries:
    """Prepared examples.

    Args:
        names: what each is called: its file, with its position where the file holds several.
        x: ``(n, *shape)``, as the federation stores its own.
    """

    names: list[str]
    x: Tensor


def read_queries(paths: Sequence[Path], inputs: Inputs) -> Queries:
    """Reads queries and brings them to the federation's form.

    Args:
        paths: image files, ``.npy`` files, ``.npz`` files with an array ``x``, or folders of these.
        inputs: the federation's.

    Raises:
        FileNotFoundError: a path doesn't exist.
        ValueError: a file can't be read or doesn't fit; the message names it.
    """
    names, found = [], []
    for file in [file for path in paths for file in _files(path)]:
        values = _read(file, inputs)
        try:
            x = inputs.prepare(values)
        except ValueError as error:
            raise ValueError(f"{file} doesn't fit the run: {error}") from error
        names += [str(file)] if len(x) == 1 else [f"{file}[{i}]" for i in range(len(x))]
        found.append(x)
    return Queries(names, torch.cat(found))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES + ARRAYS)
        if not inside:
            raise ValueError(f"The folder {path} holds no queries: no files in {', '.join(IMAGES + ARRAYS)}.")
        return inside
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    return [path]


def _read(file: Path, inputs: Inputs) -> np.ndarray:
    kind = file.suffix.lower()
    if kind in IMAGES:
        if inputs.kind != "image":
            raise ValueError(
                f"{file} is an image, but the run's examples are {inputs.kind} data of shape {inputs.shape}: "
                "give them as .npy or .npz."
            )
        return _read_image(file)
    if kind not in ARRAYS:
        raise ValueError(f"{file} is of no kind that can be read; queries are {', '.join(IMAGES + ARRAYS)}.")
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if "x" not in loaded:
                raise ValueError(f"it has no array x, but {', '.join(loaded) or 'nothing'}")
            return np.asarray(loaded["x"])
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        # NumPy takes what it doesn't know for pickled objects, and advises to trust them.
        why = "it holds no plain array of numbers" if "pickle" in str(error) else str(error).rstrip(".")
        raise ValueError(f"{file} can't be read: {why}.") from error


def _read_image(file: Path) -> np.ndarray:
    """(H, W) or (H, W, 3) bytes; 16-bit greys as floats from 0 to 1. Transparency is laid on white."""
    try:
        with Image.open(file) as image:
            if image.mode.startswith("I"):
                return np.asarray(image, np.float64) / 65535
            if image.mode in ("L", "1"):
                return np.asarray(image.convert("L"))
            if image.mode != "RGB":
                ground = Image.new("RGBA", image.size, "white")
                return np.asarray(Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB"))
            return np.asarray(image)
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{file} isn't an image that can be read: {error}.") from error
