"""On which device steps compute, and how precisely: a setting of the run, of which algorithms know nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from archipel.trees import PerClient, Tree, tree_map

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Setting:
    """Where steps compute. The server, its messages and the clients' states stay in the machine's memory.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ….
        precision: of matrix products and convolutions inside steps: ``"float32"``, or ``"bfloat16"`` by torch's
            autocast. Parameters, sums and whatever is already float64 keep their own.

    Raises:
        ValueError: another precision, or a device that this machine hasn't got.

    >>> Setting("cpu").device
    device(type='cpu')
    """

    device: torch.device | str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}; given {self.precision!r}.")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            count = torch.cuda.device_count()
            there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
            raise ValueError(f"There is no device {self.device!r} here; there are: {there}.") from error
        object.__setattr__(self, "device", device)

    @property
    def at_home(self) -> bool:
        """Whether steps compute in the machine's own memory, so that nothing needs to be moved."""
        return torch.device(self.device).type == "cpu"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Where a step runs: nothing is differentiated unless it asks, and what it makes is made on the device."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if not self.at_home:
                stack.enter_context(torch.device(self.device))
            if self.precision == "bfloat16":
                # Without its cache, which would keep what it has cast of parameters that change.
                kind = torch.device(self.device).type
                stack.enter_context(torch.autocast(kind, torch.bfloat16, cache_enabled=False))
            yield

    def there(self, tree: Tree) -> Tree:
        """The tree on the device; the copy doesn't wait. Tables with a row a client stay, until a row is taken."""
        if self.at_home:
            return tree
        return tree_map(lambda t: t if isinstance(t, PerClient) else t.to(self.device, non_blocking=True), tree)

    def back(self, tree: Tree) -> Tree:
        """The tree in the machine's memory."""
        return tree if self.at_home else tree_map(lambda t: t.cpu(), tree)

    def call(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        """A function's value, computed there of trees that are anywhere, and brought back."""
        with self.inside():
            return self.back(function(*map(self.there, trees)))

    def describe(self) -> dict[str, Any]:
        """What differs from the machine's own memory and float32."""
        found = {} if self.at_home else {"device": str(self.device)}
        return found | ({} if self.precision == "float32" else {"precision": self.precision})
