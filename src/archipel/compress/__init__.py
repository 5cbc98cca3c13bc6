"""Compression of messages: quantisers and sparsifiers, with their ω and their bits, packed for the wire."""

from archipel.core.lazy import export

export(__name__)
