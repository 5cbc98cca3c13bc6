"""How large a step's operations are: what decides whether it is worth batching, or threads."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

LARGE = 1.6e7
"""Floating-point operations of a matrix product or convolution that takes many times as long as calling it: from here
on batching over clients gains nothing, and threads, which the interpreter lets run only inside operations, pay."""


class Operations(TorchDispatchMode):
    """Counts torch's operations, and the floating-point operations of the largest matrix product or convolution.

    >>> import torch
    >>> with Operations() as counted:
    ...     product = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counted.largest
    48
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number, self.largest = 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, which takes seconds, to keep it away from here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.number += 1
        if (work := flop_registry.get(func._overloadpacket)) is not None:
            self.largest = max(self.largest, int(work(*args, **(kwargs or {}), out_val=out)))
        return out
