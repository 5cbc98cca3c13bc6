"""What clients know of their examples: all clients' x read alike."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from archipel.data.arrays import AXES, Kind, Values, as_numbers, batch_of, guess_kind


def read_features(xs: Sequence[Values], names: Sequence[str], kind: Kind | Literal["auto"]) -> list[Tensor]:
    """Read all clients' x alike, (n_i, *shape), uint8 or float32; refuse what's empty or unlike the first."""
    if kind not in ("auto", *AXES):
        raise ValueError(f"kind is {kind!r}; it is one of auto, {', '.join(AXES)}.")
    tensors: list[Tensor] = []
    for x, name in zip(xs, names, strict=True):
        what = f"client {name!r}: x"
        array = as_numbers(x, what)
        if array.ndim and not len(array):
            raise ValueError(f"client {name!r} has no examples. Leave it out, or give it some.")
        tensors.append(torch.tensor(batch_of(array, guess_kind(array, what) if kind == "auto" else kind, what)))
        first, last = tensors[0], tensors[-1]
        if last.shape[1:] != first.shape[1:] or last.dtype != first.dtype:
            raise ValueError(
                f"{what} holds {last.dtype} examples of shape {tuple(last.shape[1:])}, but client {names[0]!r} has "
                f"{first.dtype} ones of {tuple(first.shape[1:])}. Bring all clients to the same form."
            )
    return tensors
