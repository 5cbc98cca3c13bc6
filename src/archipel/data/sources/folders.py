"""A user's own data: a folder of images for every client, or a file with its arrays."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from archipel.data.arrays import batch_of, guess_kind
from archipel.data.features import as_stored
from archipel.data.files.clients import client_files_in, read_examples
from archipel.data.files.images import image_form
from archipel.data.labels import read_labels, refuse_twins
from archipel.data.sources.image_cache import mapped_images
from archipel.data.sources.source import Source, codes_tensor, content_checksum
from archipel_serve.arrays import Array, as_numbers
from archipel_serve.columns import check_same_features
from archipel_serve.preparation import Kind

Size = int | tuple[int, int]


def image_folders(
    folder: str | Path, *, size: Size | None = None, cache_dir: str | Path | None = None, name: str | None = None
) -> Source:
    """Read a folder of clients, each with a folder of images for every class: `folder/client/class/image.png`.

    The images are decoded once, into one file in the cache folder that is mapped into memory. They are grey if all are,
    otherwise in colour.

    Args:
        folder: yours.
        size: pixels a side, or (height, width); images are scaled until the shorter side fits, and cut at the centre.
            May be left out where all have the same size.
        cache_dir: where the decoded images go; $ARCHIPEL_CACHE or ~/.cache/archipel if not given.
        name: the source's name; the folder's if not given.

    Returns:
        x (n, channels, H, W) uint8, rows ordered by client; classes are all that occur, sorted.

    Raises:
        FileNotFoundError: there is no such folder, or no client in it.
        ValueError: a file isn't an image, sizes differ and none is given, or there's one class only.
    """
    root = Path(folder)
    clients = _inside(root, "Give one that holds a folder for every client, with a folder of images for every class")
    found: list[tuple[Path, int, str]] = []
    for code, client in enumerate(clients):
        kinds = [entry for entry in _visible(client) if entry.is_dir()]
        images = [(file, code, kind.name) for kind in kinds for file in _visible(kind)]
        if not images:
            raise ValueError(f"{client} holds no images in folders of classes. Leave the client out, or give it some.")
        found += images
    files = [file for file, _, _ in found]
    classes = sorted({kind for _, _, kind in found})
    if len(classes) < 2:
        raise ValueError(f"{root} holds images of one class only, {classes[0]!r}; a classification needs two or more.")
    refuse_twins(classes)
    shape = _common_shape(files, size)
    y = np.array([classes.index(kind) for _, _, kind in found], np.int64)
    called = name or root.resolve().name
    x, checksum, file = mapped_images(called, files, y, shape, cache_dir)
    return Source(
        x=x,
        y=codes_tensor(y),
        classes=tuple(classes),
        name=called,
        citation="",
        licence="",
        checksum=checksum,
        client=torch.tensor([code for _, code, _ in found]),
        client_names=tuple(client.name for client in clients),
        file=file,
        resizing="crop",
    )


def client_files(
    folder: str | Path,
    *,
    label: str = "y",
    classes: tuple[str, ...] | None = None,
    kind: Kind | Literal["auto"] = "auto",
    name: str | None = None,
) -> Source:
    """Read a folder with one file for each client, named as the client.

    Files are .npz with arrays x and y, or tables with named columns: .csv, .tsv or .parquet.

    Args:
        folder: yours.
        label: the name of the labels' array or column. All other columns of a table are features, and numbers.
        classes: the classes' names, in the order of their codes; found in the data if not given.
        kind: "image", "table" or "series", where it doesn't follow from the shapes.
        name: the source's name; the folder's if not given.

    Returns:
        x (n, *shape), rows ordered by client.

    Raises:
        FileNotFoundError: no such folder, or no file in it.
        ValueError: a file can't be read, or doesn't fit the others; the message names it.
        ImportError: .parquet needs pyarrow, `pip install archipel[parquet]`.
    """
    root = Path(folder)
    files = client_files_in(root)
    names, places = tuple(files), tuple(files.values())
    read = [read_examples(file, label) for file in places]
    features = read[0].features
    for file, examples in zip(places, read, strict=True):
        check_same_features(examples.features, features, f"{file}", f"{places[0]}")
    arrays = [read_array(part.x, kind, f"{file}: x") for file, part in zip(places, read, strict=True)]
    labels: list[Array] = [examples.y for examples in read if examples.y is not None]
    for file, array, y in zip(places, arrays, labels, strict=True):
        if (
            len(array) != len(y)
            or array.shape[1:] != arrays[0].shape[1:]
            or (array.dtype == np.uint8) != (arrays[0].dtype == np.uint8)
        ):
            raise ValueError(
                f"{file}: x is {array.dtype} {array.shape} with {len(y)} labels; needed are a label for each, and "
                f"examples of shape {arrays[0].shape[1:]} and {arrays[0].dtype} as in {places[0]}."
            )
    arrays = as_stored(arrays)
    ys, known = read_labels(labels, names, classes)
    sizes = [len(y) for y in ys]
    del read
    x, joined = pooled(arrays), torch.cat(ys)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return Source(
        x=torch.from_numpy(x),
        y=joined,
        classes=known or (),
        name=name or root.resolve().name,
        citation="",
        licence="",
        checksum=content_checksum(x, joined.numpy(), client),
        kind="table" if x.ndim == 2 else "image" if x.ndim == 4 else "series",
        client=codes_tensor(client),
        client_names=names,
        features=features,
    )


def read_array(x: Any, kind: Kind | Literal["auto"], what: str) -> Array:
    """Read numbers of any kind as (n, *shape), channels first."""
    array = as_numbers(x, what)
    return batch_of(array, guess_kind(array, what) if kind == "auto" else kind, what)


def pooled(arrays: list[Array]) -> Array:
    """Join arrays along their first axis, and empty the list on the way, so that memory holds the data once.

    >>> pooled([np.zeros((2, 3)), np.ones((1, 3))]).shape
    (3, 3)
    """
    whole = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    stop = len(whole)
    while arrays:
        array = arrays.pop()
        whole[stop - len(array) : stop] = array
        stop -= len(array)
    return whole


def _common_shape(files: list[Path], size: Size | None) -> tuple[int, int, int]:
    """Channels, height and width of all images, from their headers alone."""
    grey, sizes = True, set[tuple[int, int]]()
    for file in files:
        is_grey, *form = image_form(file)
        grey = grey and is_grey
        sizes.add((form[0], form[1]))
        if size is None and len(sizes) > 1:
            (h, w), (other_h, other_w) = sorted(sizes)
            raise ValueError(f"images have different sizes, as {h}×{w} and {other_h}×{other_w} ({file}). Give size=….")
    height, width = (size, size) if isinstance(size, int) else size or sizes.pop()
    if height < 1 or width < 1:
        raise ValueError(f"size is {size}; it is the number of pixels a side, 1 or more.")
    return (1 if grey else 3), height, width


def _inside(root: Path, how: str) -> list[Path]:
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}. {how}.")
    found = [entry for entry in _visible(root) if entry.is_dir()]
    if not found:
        raise FileNotFoundError(f"{root} holds no folders. {how}.")
    return found


def _visible(folder: Path) -> Iterable[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.name != "Thumbs.db")
