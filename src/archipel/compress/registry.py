"""Compressors by name."""

from __future__ import annotations

from archipel.compress.compressor import Compressor, Identity
from archipel.compress.dithering import QSGD, BlockQuantisation, Dithering
from archipel.compress.natural import Natural
from archipel.compress.sparse import RandK, TopK

COMPRESSORS: dict[str, type[Compressor]] = {
    "BlockQuantisation": BlockQuantisation,
    "Dithering": Dithering,
    "Identity": Identity,
    "Natural": Natural,
    "QSGD": QSGD,
    "RandK": RandK,
    "TopK": TopK,
}
"""By the name under which a compressor is known at both ends of a wire. Add your own here."""
