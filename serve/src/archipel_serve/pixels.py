"""Pixels of images: decoded as they are seen, as grey values of 8 bits, and in another size."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

Resizing = Literal["stretch", "crop"]

LARGEST = 1 << 22
"""Values that are resized at a time, as float64: 32 MiB."""
MOST_PIXELS = 100_000_000
"""Larger images are refused before they are decoded."""
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Modes of grey images."""
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262
_WHITE_IS_ZERO = 0


def open_image(file: Path | BinaryIO) -> "Image.Image":
    """Open an image without decoding it.

    Raises:
        ValueError: it is of no known type.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file)
    except UnidentifiedImageError as error:
        raise ValueError("it isn't an image of a known type") from error


def decode(image: "Image.Image") -> NDArray[np.uint8]:
    """Decode an image as it is seen.

    Grey values of 16 bits become ⌊255 v / 65535 + ½⌋, and floats from 0 to 1 become ⌊255 v + ½⌋.

    Args:
        image: one of Pillow's, of any mode.

    Returns:
        (H, W) or (H, W, 3) uint8.

    Raises:
        ValueError: several pages, too many pixels, or values of unknown range: 12 bits in 16, whole numbers of 32 bits,
            floats outside of 0 to 1.

    >>> from PIL import Image
    >>> decode(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).tolist()
    [[[255, 255, 255]]]
    """
    from PIL import ImageOps  # takes 50 ms to import, which arrays don't need

    check(image)
    deep = _is_deep(image)  # told by the file's header, which decoding forgets
    pixels = _eight_bits(ImageOps.exif_transpose(image), image)
    if deep and 0 < pixels.max() < 16:
        raise ValueError("its 16-bit values use the lowest 12 bits only, so that its full range isn't known")
    # Pillow turns such TIFF files round where they have up to 8 bits, and leaves deeper ones as they are.
    negative = image.mode in GREY[4:] and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    return 255 - pixels if negative else pixels


def as_bytes(array: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Read grey values as uint8: whole numbers from 0 to 255, floats from 0 to 1 times 255, booleans as 0 and 255.

    >>> as_bytes(np.array([0.0, 0.5, 1.0]), "x").tolist()
    [0, 128, 255]
    """
    if array.dtype == np.uint8:
        return array.astype(np.uint8, copy=False)
    top = 255 if array.dtype.kind in "iu" else 1
    numbers = array.astype(np.float64)
    low, high = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
    if low < 0 or high > top:
        raise ValueError(
            f"{what} holds values from {low:g} to {high:g}; grey values are whole numbers from 0 to 255, "
            "or floats from 0 to 1. Scale them."
        )
    return np.floor(numbers * (255 / top) + 0.5).astype(np.uint8)


def resize(images: NDArray[Any], height: int, width: int, how: Resizing = "stretch") -> NDArray[Any]:
    """Resize images (n, C, H, W), uint8 or float, bilinearly, smoothed where they shrink; uint8 is rounded.

    Output pixel i is at u = (i + ½) s with s = H/height, and averages input pixels j with weights proportional to
    max(0, 1 − |j + ½ − u| / max(s, 1)): those of Pillow's and torch's antialiased bilinear filter.

    Args:
        images: (n, C, H, W).
        height: of the result.
        width: of the result.
        how: "stretch" changes proportions where they differ; "crop" keeps them: the images are scaled until they
            cover the size, and cut at the centre.

    >>> resize(np.array([[[[0, 100]]]], np.uint8), 1, 4).flatten().tolist()
    [0, 25, 75, 100]
    >>> resize(np.array([[[[0, 50, 100]]]], np.uint8), 1, 1, "crop").flatten().tolist()
    [50]
    """
    if height < 1 or width < 1:
        raise ValueError(f"the size asked for is {height}×{width}; both sides are at least 1 pixel.")
    if images.shape[2:] == (height, width):
        return images
    if how == "crop":
        scale = max(height / images.shape[2], width / images.shape[3])
        covering = max(height, round(images.shape[2] * scale)), max(width, round(images.shape[3] * scale))
        images = resize(images, *covering)
        top, left = (covering[0] - height) // 2, (covering[1] - width) // 2
        return np.ascontiguousarray(images[:, :, top : top + height, left : left + width])
    found = np.empty((*images.shape[:2], height, width), images.dtype)
    down, across = _weights(images.shape[2], height), _weights(images.shape[3], width).T
    at_once = max(1, LARGEST // max(1, images[:1].size))
    for start in range(0, len(images), at_once):
        sized = down @ (images[start : start + at_once].astype(np.float64) @ across)
        if images.dtype.kind != "f":
            # Halves go to the even number, also where a sum in another order leaves them a little below or above.
            sized = np.rint(sized.round(9)).clip(0, 255)
        found[start : start + at_once] = sized
    return found


def _weights(size: int, wanted: int) -> NDArray[np.float64]:
    """(wanted, size) weights of input pixels in each output pixel, which add up to 1."""
    scale = size / wanted
    centre = (np.arange(wanted) + 0.5)[:, None] * scale
    weights = np.maximum(0.0, 1 - np.abs(np.arange(size) + 0.5 - centre) / max(scale, 1.0))
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float64)


def check(image: "Image.Image") -> None:
    """Raise ValueError for an image that isn't to be decoded, as far as its header tells."""
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(
            f"it has {image.width} × {image.height} pixels; at most {MOST_PIXELS:,} are read, so make it smaller"
        )
    if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a photograph and its preview
        raise ValueError("it holds several pages or frames; give each its own file")
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
    if any(number not in (1, 2, 4, 8, 16, 32) for number in np.atleast_1d(bits).tolist()):
        raise ValueError(f"it has {bits} bits a sample")


def _is_deep(image: "Image.Image") -> bool:
    """Whether a file of several channels has 16 bits in each, of which the decoder keeps the upper eight."""
    raw = [tile[3][0] if isinstance(tile[3], tuple) else tile[3] for tile in getattr(image, "tile", []) if tile[3]]
    return image.mode not in GREY[4:] and any(";16" in str(mode) for mode in raw)


def _eight_bits(image: "Image.Image", opened: "Image.Image") -> NDArray[np.uint8]:
    from PIL import Image

    mode = image.mode
    if mode.startswith("I"):
        return _sixteen_bits(np.asarray(image), opened)
    if mode == "F":
        values = np.asarray(image, np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it holds NaN or infinite values")
        return as_bytes(values, "it")
    if mode in ("1", "L") and "transparency" not in image.info:
        return np.asarray(image.convert("L"))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        flat = Image.alpha_composite(white, image.convert("RGBA"))
        return np.asarray(flat.convert("L" if mode in GREY else "RGB"))
    return np.asarray(image if mode == "RGB" else image.convert("RGB"))


def _sixteen_bits(values: NDArray[Any], opened: "Image.Image") -> NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if opened.mode == "I" and opened.format not in ("PNG", "PPM"):
        raise ValueError("it holds whole numbers of 32 bits or with signs, whose range from black to white isn't known")
    if low < 0 or high > 65535:
        raise ValueError(f"it holds values from {low} to {high}; those of 16 bits go from 0 to 65535")
    if 0 < high < 4096:
        raise ValueError("its 16-bit values use the lowest 12 bits only, so that its full range isn't known")
    return ((values.astype(np.uint32) * 510 + 65535) // (2 * 65535)).astype(np.uint8)
