"""The size of a step's operations decides whether batching or threads pay."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry

from archipel.core.torch_internals import OperationMode, operation_packet

LARGE = 1.6e7
"""Floating-point operations from which a matrix product or convolution takes many times as long as calling it.

Then batching over clients gains nothing, and threads pay: the interpreter lets them run only inside operations."""


class OperationCounter(OperationMode):
    """Counts torch's operations, and the floating-point operations of the largest matrix product or convolution.

    >>> import torch
    >>> with OperationCounter() as counted:
    ...     product = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counted.largest
    48
    """

    def __init__(self) -> None:
        super().__init__()
        self.number, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.number += 1
        if (work := flop_registry.get(operation_packet(func))) is not None:
            self.largest = max(self.largest, int(work(*args, **(kwargs or {}), out_val=out)))
        return out
