"""Trees as bytes, for wires and for checkpoints: safetensors under names with slashes."""

from __future__ import annotations

import json

import safetensors.torch
import torch

from archipel.trees import Tree, flatten, unflatten


def encode(tree: Tree) -> bytes:
    """A tree as safetensors bytes; only tensors and names cross, never code.

    >>> import torch
    >>> tree = {"a": {"b": torch.arange(3)}, "c": torch.tensor(1.5, dtype=torch.float64)}
    >>> decoded = decode(encode(tree))
    >>> decoded["a"]["b"], decoded["c"]
    (tensor([0, 1, 2]), tensor(1.5000, dtype=torch.float64))
    """
    # Views are copied out: safetensors refuses tensors that share memory.
    named = {
        name: t.detach().to("cpu").clone(memory_format=torch.contiguous_format) for name, t in flatten(tree).items()
    }
    return safetensors.torch.save(named, {"order": json.dumps(list(named))})


def decode(data: bytes) -> Tree:
    """The inverse of :func:`encode`."""
    # safetensors sorts by name. Sums over leaves (norms) round by their order, so a tree must come back in its own.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    named = safetensors.torch.load(data)
    return unflatten({name: named[name] for name in json.loads(header["__metadata__"]["order"])})
