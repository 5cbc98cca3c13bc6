"""Memory that processes share, and objects that are sent between them while their tensors are in it."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import tempfile
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Tensors begin at multiples of this many bytes."""
Location = tuple[int, tuple[int, ...], torch.dtype]
"""A tensor in the memory: its offset, shape and dtype."""


class Memory:
    """Anonymous memory, which is freed when no process holds it; it grows on demand.

    One side writes at a time. A forked process inherits it; a spawned process gets it as an argument.

    >>> memory = Memory()
    >>> sent, end = memory.dump({"a": torch.arange(3), "b": ["no", "tensor"]})
    >>> memory.load(sent)[0]
    {'a': tensor([0, 1, 2]), 'b': ['no', 'tensor']}
    """

    def __init__(self) -> None:
        self._descriptor = _anonymous()
        self._mapped: mmap.mmap | None = None
        self._size = 0

    def __getstate__(self) -> Any:
        return DupFd(self._descriptor)

    def __setstate__(self, descriptor: Any) -> None:
        self._descriptor, self._mapped, self._size = descriptor.detach(), None, 0

    def __del__(self) -> None:
        os.close(self._descriptor)

    def dump(self, value: object, names: dict[int, int] | None = None, start: int = 0) -> tuple[bytes, int]:
        """Put the tensors of an object into the memory, and everything else of it into bytes.

        Args:
            value: any object that can be pickled.
            names: numbers of objects that the other side has, by ``id``; they are sent by number.
            start: offset from which tensors may be put.

        Returns:
            The bytes for ``load``, and the offset of the end of the tensors.
        """
        file = io.BytesIO()
        packer = _Packer(file, names or {}, start)
        packer.dump(value)
        self._map(packer.end)
        for tensor, location in packer.tensors:
            self._view(location).copy_(tensor.detach())
        return struct.pack("<q", packer.end) + file.getvalue(), packer.end

    def load(self, sent: bytes, known: list[Any] | None = None, private: bool = False) -> tuple[Any, int]:
        """Return what was dumped on the other side; its tensors are views, valid until the next dump.

        Args:
            sent: the bytes.
            known: objects that are sent by number.
            private: whether writes into the tensors stay in this process.

        Returns:
            The object, and the offset of the end of its tensors.
        """
        (end,) = struct.unpack_from("<q", sent)
        self._map(end, private)
        value = _Unpacker(io.BytesIO(memoryview(sent)[8:]), self._view, known or []).load()
        return value, end

    def _map(self, size: int, private: bool = False) -> None:
        if self._mapped is not None and size <= self._size:
            return
        # Grow by an eighth, so that small increases do not map the memory again.
        step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 3))
        size = -(-max(size, 1) // step) * step
        if os.fstat(self._descriptor).st_size < size:
            os.ftruncate(self._descriptor, size)
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        # Views of the old map keep it alive.
        self._mapped, self._size = mmap.mmap(self._descriptor, size, flags), size

    def _view(self, location: Location) -> Tensor:
        start, shape, dtype = location
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        assert self._mapped is not None
        return torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=start).view(shape)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: dict[int, int], start: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names, self.end = names, start
        self._places: dict[int, Location] = {}
        self.tensors: list[tuple[Tensor, Location]] = []

    def persistent_id(self, obj: Any) -> Location | int | None:
        if type(obj) is not Tensor or obj.layout is not torch.strided:
            return self._names.get(id(obj))
        if id(obj) not in self._places:
            start = -(-self.end // ALIGNMENT) * ALIGNMENT
            self._places[id(obj)] = location = start, tuple(obj.shape), obj.dtype
            self.tensors.append((obj, location))
            self.end = start + obj.numel() * obj.element_size()
        return self._places[id(obj)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, view: Any, known: list[Any]) -> None:
        super().__init__(file)
        self._view, self._known = view, known

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid] if isinstance(pid, int) else self._view(pid)


def _anonymous() -> int:
    """Return a file descriptor of anonymous memory, or of a deleted temporary file if the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("archipel")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
