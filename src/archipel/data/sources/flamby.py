"""Fed-ISIC2019: skin lesions from six centres, in the folder that FLamby's preprocessing writes."""

import csv
import os
from pathlib import Path

import numpy as np
import torch

from archipel.data.files.guard import readable
from archipel.data.sources.image_cache import mapped_images
from archipel.data.sources.source import About, Source, codes_tensor

IMAGES = "ISIC_2019_Training_Input_preprocessed"
# FLamby's file has no ending; earlier versions called it otherwise. It's in FLamby's repository, not in the download.
SPLITS = ("train_test_split", "train_test_split.csv", "train_test_folds.csv")
COLUMNS = ("image", "target", "center", "fold")
LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("BCN", "HAM vidir molemax", "HAM vidir modern", "HAM rosendahl", "MSK", "HAM vienna dias")
TRAIN, TEST = (9930, 3163, 2691, 1807, 655, 351), (2483, 791, 672, 452, 164, 88)
FED_ISIC2019 = About(
    name="fed-isic2019",
    title="Fed-ISIC2019",
    size="23,247 images, 8 classes",
    clients="6 centres",
    citation="du Terrail et al. (2022). FLamby: datasets and benchmarks for cross-silo federated learning. NeurIPS. "
    "Images: Tschandl et al. (2018), Codella et al. (2017), Combalia et al. (2019).",
    licence="CC BY-NC 4.0",
    obtain="Run FLamby's download_isic.py and resize_images.py, and put its file train_test_split beside the images",
    files=(IMAGES,),
    check="numbers of images",
    folders=("fed-isic2019", "fed_isic2019", "ISIC2019", "isic2019"),
)


def fed_isic2019(
    data_dir: str | Path | None = None,
    *,
    size: int = 224,
    verify: bool = True,
    cache_dir: str | Path | None = None,
) -> Source:
    """Fed-ISIC2019: 23,247 photographs of skin lesions of eight classes from six centres, with FLamby's own test sets.

    FLamby's preprocessing scales images to a shorter side of 224 pixels and keeps their proportions. Here they
    are cropped to the central square, once: the pixels are written to one file in the cache folder (3.5 GB with 224
    pixels), which is mapped into memory and read where it is used.

    Args:
        data_dir: the folder that holds "ISIC_2019_Training_Input_preprocessed" with the .jpg files, and FLamby's file
            "train_test_split" with columns image, target, center, fold.
        size: pixels a side.
        verify: compare the number of images of every centre with FLamby's.
        cache_dir: where the decoded images go; $ARCHIPEL_CACHE or ~/.cache/archipel if not given.

    Returns:
        x (23247, 3, size, size) uint8, y (23247,) int64; rows ordered by centre, training before test; `test` marks
        FLamby's test sets.

    Raises:
        FileNotFoundError: the folder, the split file or images aren't there.
        ValueError: the split file or an image can't be read, or the numbers aren't FLamby's.

    Source: du Terrail et al. (2022), FLamby, NeurIPS datasets and benchmarks.
    """
    if size < 1:
        raise ValueError(f"size is {size}; it is the number of pixels a side, 1 or more.")
    folder = FED_ISIC2019.locate(data_dir)
    names, y, client, test = _read_split(folder)
    order = np.lexsort((test, client))  # stable: FLamby's order stays within
    y, client, test = y[order], client[order], test[order]
    files = [folder / IMAGES / f"{names[i]}.jpg" for i in order]
    there = set(os.listdir(folder / IMAGES))
    if absent := [file.name for file in files if file.name not in there]:
        raise FileNotFoundError(
            f"{len(absent)} of {len(files)} images aren't in {folder / IMAGES}, the first: {absent[0]}. "
            f"{FED_ISIC2019.obtain}."
        )
    if verify:
        held = [tuple(np.bincount(client[test == fold], minlength=len(CENTRES)).tolist()) for fold in (False, True)]
        if held != [TRAIN, TEST]:
            raise ValueError(
                f"the centres in {folder} hold {held[0]} training and {held[1]} test images, not {TRAIN} and {TEST}. "
                f"{FED_ISIC2019.obtain}, or pass verify=False if you mean these."
            )
    x, checksum, file = mapped_images(FED_ISIC2019.name, files, y, (3, size, size), cache_dir)
    return FED_ISIC2019.source(
        x=x,
        y=codes_tensor(y),
        classes=LESIONS,
        checksum=checksum,
        client=codes_tensor(client),
        client_names=CENTRES,
        test=torch.from_numpy(test),
        file=file,
        resizing="crop",
    )


def _read_split(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Names of the images, (n,) targets and centres as int64, and (n,) bool, which are for testing."""
    file = next((folder / name for name in SPLITS if (folder / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"{folder} has no file {SPLITS[0]}. It's in FLamby's repository, under "
            "flamby/datasets/fed_isic2019/dataset_creation_scripts: copy it there."
        )
    with readable(file, "Fetch it again."), file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        names, rows = reader.fieldnames or (), list(reader)
    if absent := [name for name in COLUMNS if name not in names]:
        raise ValueError(f"{file} has no column {absent[0]}; needed are {', '.join(COLUMNS)}. Fetch it again.")
    for number, row in enumerate(rows, start=2):
        target, centre = _code(row["target"], len(LESIONS)), _code(row["center"], len(CENTRES))
        if not row["image"] or not target or not centre or row["fold"] not in ("train", "test"):
            raise ValueError(
                f"{file}, line {number}: image {row['image']!r}, target {row['target']!r}, center {row['center']!r}, "
                f"fold {row['fold']!r}. Targets are 0 to 7, centers 0 to 5, folds train or test. Fetch it again."
            )
    if not rows:
        raise ValueError(f"{file} names no images. Fetch it again.")
    y, client = (np.array([int(row[name]) for row in rows], np.int64) for name in ("target", "center"))
    return [row["image"] for row in rows], y, client, np.array([row["fold"] == "test" for row in rows])


def _code(text: str | None, count: int) -> bool:
    return text is not None and text.isdecimal() and int(text) < count
