"""Files that may be packed by gzip."""

import gzip
from pathlib import Path

from archipel.data.files.guard import at_most, check_unpacked, readable


def read_bytes(file: Path) -> bytearray:
    """Read a file, unpacked if it begins as gzip files do.

    Raises:
        ValueError: it is a damaged gzip file, or one that unpacks to too much.
    """
    packed = file.stat().st_size
    with file.open("rb") as content:
        if content.read(2) != b"\x1f\x8b":
            content.seek(0)
            return bytearray(content.read())
    with readable(file, "Fetch it again."), gzip.open(file) as unpacked:
        found = bytearray()
        while piece := unpacked.read(1 << 24):
            found += piece
            if len(found) > at_most(packed):
                check_unpacked(len(found), packed)
        return found
