"""Image files, decoded in one way for training and for queries."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from archipel.data.arrays import as_bytes, refuse_not_finite
from archipel.data.files.guard import readable

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
MOST_PIXELS = 100_000_000
"""Larger images are refused before they are decoded."""
REMEDY = "Save it as an upright PNG or JPEG with 8 bits a channel, or take it away."
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 258
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")


def read_image(file: Path) -> NDArray[np.uint8]:
    """Decode an image as it is seen: upright, transparency on white, 8 bits a channel.

    Grey values of 16 bits become ⌊255 v / 65535 + ½⌋, and floats from 0 to 1 become ⌊255 v + ½⌋.

    Args:
        file: an image of one of the types in `IMAGES`.

    Returns:
        (H, W) or (H, W, 3) uint8.

    Raises:
        ValueError: not an image, a damaged one, one of several pages or of too many pixels, or values whose range can't
            be known: 12 bits in 16, whole numbers of 32 bits, floats outside of 0 to 1.
    """
    with readable(file, REMEDY), _opened(file) as image:
        _check(image)
        deep = _is_deep(image)  # told by the file's header, which decoding forgets
        upright = ImageOps.exif_transpose(image)
        pixels = _eight_bits(upright, image)
        if deep and 0 < pixels.max() < 16:
            raise ValueError("its 16-bit values use the lowest 12 bits only, so that its full range isn't known")
        return pixels


def image_form(file: Path) -> tuple[bool, int, int]:
    """Whether an image is grey, its height and its width, from its header.

    Raises:
        ValueError: as `read_image`, as far as a header tells.
    """
    with readable(file, REMEDY), _opened(file) as image:
        _check(image)
        turned = image.getexif().get(_ORIENTATION) in _TURNED
        height, width = (image.width, image.height) if turned else (image.height, image.width)
        return image.mode in _GREY, height, width


def _opened(file: Path) -> Image.Image:
    try:
        return Image.open(file)
    except UnidentifiedImageError as error:
        raise ValueError("it isn't an image of a known type") from error


def _check(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(
            f"it has {image.width} × {image.height} pixels; at most {MOST_PIXELS:,} are read, so make it smaller"
        )
    if image.format != "MPO" and (pages := getattr(image, "n_frames", 1)) > 1:  # MPO: a photograph and its preview
        raise ValueError(f"it holds {pages} pages or frames; give each a file of its own")
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
    if any(number not in (1, 2, 4, 8, 16, 32) for number in np.atleast_1d(bits).tolist()):
        raise ValueError(f"it has {bits} bits a sample")


def _is_deep(image: Image.Image) -> bool:
    """Whether a file of several channels has 16 bits in each, of which the decoder keeps the upper eight."""
    raw = [tile[3][0] if isinstance(tile[3], tuple) else tile[3] for tile in getattr(image, "tile", []) if tile[3]]
    return image.mode not in _GREY[4:] and any(";16" in str(mode) for mode in raw)


def _eight_bits(image: Image.Image, opened: Image.Image) -> NDArray[np.uint8]:
    mode = image.mode
    if mode.startswith("I"):
        return _sixteen_bits(np.asarray(image).astype(np.int64), opened)
    if mode == "F":
        values = np.asarray(image, np.float64)
        refuse_not_finite(values, "it")
        return as_bytes(values, "it")
    if mode in ("1", "L") and "transparency" not in image.info:
        return np.asarray(image.convert("L"))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        flat = Image.alpha_composite(white, image.convert("RGBA"))
        return np.asarray(flat.convert("L" if mode in _GREY else "RGB"))
    return np.asarray(image if mode == "RGB" else image.convert("RGB"))


def _sixteen_bits(values: NDArray[np.int64], opened: Image.Image) -> NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if opened.mode == "I" and opened.format not in ("PNG", "PPM"):
        raise ValueError("it holds whole numbers of 32 bits or with signs, whose range from black to white isn't known")
    if low < 0 or high > 65535:
        raise ValueError(f"it holds values from {low} to {high}; those of 16 bits go from 0 to 65535")
    if 0 < high < 4096:
        raise ValueError("its 16-bit values use the lowest 12 bits only, so that its full range isn't known")
    return ((values * 510 + 65535) // (2 * 65535)).astype(np.uint8)
