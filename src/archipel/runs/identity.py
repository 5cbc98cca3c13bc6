"""What a run is of, in JSON's types: two runs with equal descriptions compute the same."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def describe(value: object) -> Any:
    """Describe a configuration in JSON's types.

    Dataclasses become their fields, modules their structure and number of parameters, tensors a digest of their values.

    >>> from archipel.core.sampling import Sample
    >>> describe(Sample(count=2))
    {'type': 'Sample', 'fraction': None, 'count': 2, 'weighted': False}
    """
    if isinstance(value, nn.Module):
        return f"{' '.join(repr(value).split())}, {sum(p.numel() for p in value.parameters())} parameters"
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        digest = hashlib.sha256(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}, SHA-256 {digest[:16]}"
    return getattr(value, "__qualname__", type(value).__name__)
