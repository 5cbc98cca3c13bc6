"""Compression of what travels: quantisers and sparsifiers, with their ω and their bits, packed for the wire."""

from archipel.compress.compressor import Compressor, Identity
from archipel.compress.dithering import QSGD, BlockQuantisation, Dithering
from archipel.compress.natural import Natural
from archipel.compress.sparse import RandK, TopK
from archipel.core.trees import Compressed

COMPRESSORS: dict[str, type[Compressor]] = {
    "BlockQuantisation": BlockQuantisation,
    "Dithering": Dithering,
    "Identity": Identity,
    "Natural": Natural,
    "QSGD": QSGD,
    "RandK": RandK,
    "TopK": TopK,
}
"""By the name under which a compressor is known at both ends of a wire; one of your own goes in here."""

__all__ = [
    "COMPRESSORS",
    "QSGD",
    "BlockQuantisation",
    "Compressed",
    "Compressor",
    "Dithering",
    "Identity",
    "Natural",
    "RandK",
    "TopK",
]
