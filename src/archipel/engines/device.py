"""On which device steps compute, how precisely, and how networks are carried out: a setting of the run, of which
algorithms know nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import torch

from archipel.core.trees import PerClient, Tree, tree_map
from archipel.learning.compiling import COMPILES, MEMORY_FORMATS, Compile, ForwardOptions, MemoryFormat

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Setting:
    """Where steps compute. The server, its messages and the clients' states stay in the machine's memory.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ….
        precision: of matrix products and convolutions inside steps: ``"float32"``, or ``"bfloat16"`` by torch's
            autocast. Parameters, sums and whatever is already float64 keep their own.
        memory_format: of images in networks: ``"channels_last"``, in which convolutions on CPUs are fastest, and
            on GPUs in bfloat16; or ``"contiguous"``. It is nothing to clients in batches. Dropout on images draws in
            the order in which they lie; else results agree up to rounding.
        compile: networks go through ``torch.compile`` in this mode of it: ``"default"``, or ``"reduce-overhead"``,
            which on a GPU replays them as CUDA graphs; ``None``: they don't. See :mod:`archipel.learning.compiling`.

    Raises:
        ValueError: a value that isn't among these, or a device that this machine hasn't got.

    >>> Setting("cpu").device
    device(type='cpu')
    """

    device: torch.device | str = "cpu"
    precision: Precision = "float32"
    memory_format: MemoryFormat = "channels_last"
    compile: Compile | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}; given {self.precision!r}.")
        if self.memory_format not in MEMORY_FORMATS:
            allowed = " or ".join(map(repr, MEMORY_FORMATS))
            raise ValueError(f"memory_format must be {allowed}; given {self.memory_format!r}.")
        if self.compile not in (None, *COMPILES):
            allowed = " or ".join(map(repr, COMPILES))
            raise ValueError(f"compile must be None, {allowed}, a mode of torch.compile; given {self.compile!r}.")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            count = torch.cuda.device_count()
            there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
            raise ValueError(f"There is no device {self.device!r} here; there are: {there}.") from error
        object.__setattr__(self, "device", device)

    @cached_property
    def at_home(self) -> bool:
        """Whether steps compute in the machine's own memory, so that nothing needs to be moved."""
        return torch.device(self.device).type == "cpu"

    def inside(self) -> AbstractContextManager[None]:
        """Where a step runs: nothing is differentiated unless it asks, and what it makes is made on the device."""
        return self._around() if self._special else torch.no_grad()

    @cached_property
    def _special(self) -> bool:
        return bool(self.describe())

    @contextmanager
    def _around(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(ForwardOptions(self.memory_format, self.compile).activate())
            if not self.at_home:
                stack.enter_context(torch.device(self.device))
            if self.precision == "bfloat16":
                # Without its cache, which would keep what it has cast of parameters that change.
                kind = torch.device(self.device).type
                stack.enter_context(torch.autocast(kind, torch.bfloat16, cache_enabled=False))
            yield

    def there(self, tree: Tree) -> Tree:
        """The tree on the device. Tables with a row a client stay in memory, until a row is taken.

        Nobody waits for copies from pinned memory. Other memory is staged by the driver, and may change thereafter.
        """
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
        """What differs from the defaults."""
        found = {} if self.at_home else {"device": str(self.device)}
        others = (field for field in fields(self) if field.name != "device")
        return found | {f.name: value for f in others if (value := getattr(self, f.name)) != f.default}
