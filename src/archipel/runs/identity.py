"""What a run is of, in JSON's types: two runs with equal descriptions compute the same."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archipel.learning.contents import find_all


def describe(value: object) -> Any:
    """Describe a configuration in JSON's types.

    Dataclasses become their fields, modules their structure, their number of parameters and a digest of frozen ones,
    tensors a digest of their values.

    >>> from archipel.core.sampling import Sample
    >>> describe(Sample(count=2))
    {'type': 'Sample', 'fraction': None, 'count': 2, 'weighted': False}
    """
    if isinstance(value, nn.Module):
        described = f"{' '.join(repr(value).split())}, {sum(p.numel() for p in value.parameters())} parameters"
        digest = frozen_digest(value)
        return f"{described}, frozen ones with SHA-256 {digest}" if digest else described
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        digest = hashlib.sha256(_content(value)).hexdigest()[:16]
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}, SHA-256 {digest}"
    return getattr(value, "__qualname__", type(value).__name__)


def frozen_digest(value: object) -> str | None:
    """Return a digest of the parameters that an algorithm's networks hold fixed; ``None`` without such parameters.

    Checkpoints don't contain them, so that a run can be read with the same values only.
    """
    found = hashlib.sha256()
    frozen = [
        (name, parameter)
        for module in find_all(value, nn.Module)
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad
    ]
    for name, parameter in frozen:
        found.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        found.update(_content(parameter))
    return found.hexdigest()[:16] if frozen else None


def _content(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
