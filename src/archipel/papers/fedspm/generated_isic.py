"""Generated images in Fed-ISIC2019's layout, for trying the command without the photographs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from archipel.data.sources.flamby import CENTRES, COLUMNS, IMAGES, LESIONS, SPLITS, TEST, TRAIN

SIDE = 48
SKIN = ((222, 180, 160), (238, 205, 190), (205, 160, 135), (230, 190, 185), (190, 145, 120), (245, 215, 200))
"""A centre's light, as the colour of its background."""


def generated_isic(folder: Path, *, share: float = 0.04, seed: int = 0) -> Path:
    """Write FLamby's folder with images drawn by rule, unless it exists.

    A class is a colour and a roughness of a spot's edge, which comes in two kinds, a dark one and a pale one, mixed
    differently at every centre; a centre has its own light and its own share of classes. Nothing in them is medical.

    Args:
        folder: to write to, afterwards used as ``data_dir``.
        share: of the number of images that each of FLamby's centres holds.
        seed: of the images.

    Returns:
        The folder.
    """
    split = folder / SPLITS[0]
    if split.exists():
        return folder
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines: list[tuple[str, int, int, str]] = []
    for centre in range(len(CENTRES)):
        classes = rng.dirichlet(np.ones(len(LESIONS)))
        pale = rng.beta(2, 2)
        for fold, held in (("train", TRAIN), ("test", TEST)):
            for _ in range(max(2, round(share * held[centre]))):
                target, name = int(rng.choice(len(LESIONS), p=classes)), f"ISIC_{len(lines):07d}"
                picture = _spot(rng, target, SKIN[centre], bool(rng.random() < pale))
                Image.fromarray(picture).save(folder / IMAGES / f"{name}.jpg", quality=92)
                lines.append((name, target, centre, fold))
    new = folder / f"{SPLITS[0]}.new"
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(lines)
    new.replace(split)  # last and as a whole: if it exists, all images exist
    return folder


def _spot(rng: np.random.Generator, target: int, skin: tuple[int, int, int], pale: bool) -> NDArray[np.uint8]:
    """Draw one image, ``(SIDE, SIDE, 3)``."""
    down, across = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2 - rng.uniform(-4, 4, size=(2, 1, 1))
    angle, distance = np.arctan2(down, across), np.hypot(down, across)
    waves = 2 + target % 4  # the edge's lobes, and below the colour's angle, tell classes apart
    edge = rng.uniform(9, 14) * (1 + 0.25 * np.sin(waves * angle + rng.uniform(0, 2 * np.pi)))
    inside = 1 / (1 + np.exp(distance - edge))[..., None]
    hue = 2 * np.pi * target / len(LESIONS)
    colour = np.array([110 + 60 * np.cos(hue), 80 + 40 * np.cos(hue - 2), 80 + 60 * np.cos(hue - 4)])
    if pale:
        colour = 255 - 0.6 * colour
    light = 1 - 0.25 * (distance / SIDE)[..., None]
    picture = ((1 - inside) * np.array(skin) + inside * colour) * light + rng.normal(0, 8, size=(SIDE, SIDE, 3))
    pixels: NDArray[np.uint8] = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels
