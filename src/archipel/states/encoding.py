"""Trees as bytes, for networks and checkpoints: safetensors whose names have slashes."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch

from archipel.compress.registry import COMPRESSORS
from archipel.core.trees import Compressed, Tree, flatten, map_named, unflatten


def encode(tree: Tree) -> bytes:
    """Encode a tree as safetensors bytes, which hold tensors and names, never code.

    A compressed leaf is sent as its packed tensors; the header has the compressor's name and fields.

    Raises:
        ValueError: a compressed leaf of an unregistered compressor.

    >>> import torch
    >>> tree = {"a": {"b": torch.arange(3)}, "c": torch.tensor(1.5, dtype=torch.float64)}
    >>> decoded = decode(encode(tree))
    >>> decoded["a"]["b"], decoded["c"]
    (tensor([0, 1, 2]), tensor(1.5000, dtype=torch.float64))
    """
    compressed: dict[str, Any] = {}
    plain = map_named(lambda path, leaf: _opened(path, leaf, compressed), tree)
    # Copies: safetensors refuses tensors that share memory.
    named = {
        name: t.detach().to("cpu").clone(memory_format=torch.contiguous_format) for name, t in flatten(plain).items()
    }
    return safetensors.torch.save(named, {"order": json.dumps(list(named)), "compressed": json.dumps(compressed)})


def decode(data: bytes) -> Tree:
    """Decode what :func:`encode` made."""
    # safetensors sorts by name. Sums over leaves (norms) are rounded in their order, so the original order is restored.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    named = safetensors.torch.load(data)
    tree = unflatten({name: named[name] for name in json.loads(header["order"])})
    for path, about in json.loads(header.get("compressed", "{}")).items():
        tree = _closed(tree, path.split("/") if path else [], about)
    return tree


def _opened(path: str, leaf: Any, compressed: dict[str, Any]) -> Any:
    """Return a compressed leaf's packed tensors, and note how they were made."""
    if not isinstance(leaf, Compressed):
        return leaf
    name = type(leaf.coding).__name__
    if COMPRESSORS.get(name) is not type(leaf.coding):
        raise ValueError(
            f"The receiver does not know the compressor {name}. Register it in archipel.compress.COMPRESSORS "
            f"under its name, at both ends; there are {', '.join(COMPRESSORS)}."
        )
    dtype = str(leaf.dtype).removeprefix("torch.")
    compressed[path] = {"name": name, "fields": dict(vars(leaf.coding)), "shape": leaf.shape, "dtype": dtype}
    return leaf.parts


def _closed(tree: Tree, path: list[str], about: dict[str, Any]) -> Tree:
    """Return the tree with the compressed leaf restored at the path."""
    if path:
        return tree | {path[0]: _closed(tree[path[0]], path[1:], about)}
    coding = COMPRESSORS[about["name"]](**about["fields"])
    return Compressed(tree, coding, tuple(about["shape"]), getattr(torch, about["dtype"]))
