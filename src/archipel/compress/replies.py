"""Compression of a reply, a tree of tensors: which of them are compressed, and against what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.compress.compressor import DTYPES, Compressor
from archipel.core import keys
from archipel.core.trees import Tree, flatten, map_named, unflatten


@dataclass(frozen=True)
class Packing:
    """What of a reply is compressed, and how.

    Args:
        compressor: Q.
        entries: names of the entries that are compressed; ``None``: all tensors that the message holds too.
        feedback: whether a biased Q gets error feedback.
    """

    compressor: Compressor
    entries: Sequence[str] | None
    feedback: bool

    @property
    def remembers(self) -> bool:
        """Whether clients keep what is left out."""
        return self.feedback and not self.compressor.unbiased

    def covers(self, name: str, value: Any, known: dict[str, Tensor], stacked: bool = False) -> bool:
        """Whether this part of a reply is to be compressed, by its name and type; both ends must agree."""
        if not isinstance(value, Tensor) or value.dim() == int(stacked) or value.dtype not in DTYPES:
            return False
        if "buffers" in name.split("/"):
            return False
        if self.entries is not None:
            return name.split("/")[0] in self.entries
        return alike(value, known.get(name), stacked)

    def pays(self, value: Tensor) -> bool:
        """Whether it is smaller when compressed."""
        size = value.numel()
        return size > 0 and self.compressor.bits(size, value.dtype) < size * value.element_size() * 8

    def no_errors(self, server: Tree) -> Tree:
        """E = 0 for every tensor of the server's state that a client may have to send."""
        named = {name: value for name, value in flatten(server).items() if self.covers(name, value, {name: value})}
        return unflatten({name: torch.zeros_like(value) for name, value in named.items() if self.pays(value)})

    def pack(self, reply: Tree, known: dict[str, Tensor], errors: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Compress a reply: return it as it is sent, and what is left out now."""
        left = flatten(errors)

        def send(name: str, value: Any) -> Any:
            if not self.covers(name, value, known) or not self.pays(value):
                return value
            if self.remembers and name not in left:
                raise ValueError(
                    f"{type(self.compressor).__name__} needs error feedback, and {name!r} isn't in the server's state, "
                    "from which a client knows what it will have to keep. Name other entries, use an unbiased "
                    "compressor such as RandK, or set feedback=False."
                )
            change = value - known[name] if alike(value, known.get(name)) else value
            change = change + left[name] if self.remembers else change
            packed = self.compressor(change, keys.fold(key, name))
            if self.remembers:
                left[name] = change - packed.decode()
            return packed

        reply = map_named(send, reply)
        return reply, unflatten(left) if left else errors


def named(message: Tree) -> dict[str, Tensor]:
    """Find the tensors that all clients are sent alike, by name: a client's own rows can't be added to a mean."""
    found: dict[str, Tensor] = {}
    map_named(lambda name, value: found.update({name: value}) if isinstance(value, Tensor) else None, message)
    return found


def alike(value: Tensor, other: Tensor | None, stacked: bool = False) -> bool:
    """Whether a tensor of the message has the shape and dtype of one reply."""
    shape = value.shape[1:] if stacked else value.shape
    return other is not None and other.shape == shape and other.dtype == value.dtype
