"""Image files, decoded in one way for training and for queries."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipel.data.files.guard import readable
from archipel_serve.pixels import GREY, check, decode, open_image

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
REMEDY = "Save it as an upright PNG or JPEG with 8 bits a channel, or take it away."
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112


def read_image(file: Path) -> NDArray[np.uint8]:
    """Decode an image file as `archipel_serve.pixels.decode` does.

    Args:
        file: an image of one of the types in `IMAGES`.

    Returns:
        (H, W) or (H, W, 3) uint8.

    Raises:
        ValueError: not an image, a damaged one, or one of unknown range; the message names the file.
    """
    with readable(file, REMEDY), open_image(file) as image:
        return decode(image)


def image_form(file: Path) -> tuple[bool, int, int]:
    """Read from a file's header whether the image is grey, its height and its width.

    Raises:
        ValueError: as `read_image`, as far as a header tells.
    """
    with readable(file, REMEDY), open_image(file) as image:
        check(image)
        turned = image.getexif().get(_ORIENTATION) in _TURNED
        height, width = (image.width, image.height) if turned else (image.height, image.width)
        return image.mode in GREY, height, width
