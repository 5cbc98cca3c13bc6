"""How a run is carried out: engine, device, precision and the rest of what algorithms know nothing about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import torch

from archipel.algorithm import Algorithm
from archipel.core.checks import positive_int
from archipel.core.trees import PerClient, Tree, tree_map
from archipel.data.federation import Federation
from archipel.engines.carrier import Carrier
from archipel.learning.compiling import Compile, ForwardOptions, MemoryFormat
from archipel.states.placement import Placement
from archipel.states.table import States

Within = Literal["auto", "loop", "threads", "batched"]
EngineName = Literal["auto", "loop", "threads", "batched", "processes", "wire", "distributed"]
Engine = EngineName | Callable[[Algorithm, Federation, Any, States], Carrier]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Setting:
    """How a run is carried out. It changes what a run costs; results change by rounding at most.

    The server, its messages and the clients' states stay in the machine's memory; steps compute on the device.

    Args:
        engine: who runs the clients' steps. ``"auto"``: chosen by the model and by the size of a step's operations, and
            told in the log; ``"loop"``: one client after another; ``"threads"``: one client a thread;
            ``"batched"``: a chunk of clients as one computation; ``"processes"``: one client or a chunk in each of
            several worker processes; ``"wire"``: everything as bytes, for tests; ``"distributed"``: each client in one
            of the processes that torchrun has started, on one machine or several; or a function
            ``(algorithm, federation, setting, states) → Carrier``.
        within: who runs the steps inside each process of a distributed run.
        workers: threads or processes, at most; ``None``: one a core, or one a GPU, where several pay.
        device: where steps compute: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ….
        precision: of matrix products and convolutions in steps: ``"float32"``, or ``"bfloat16"`` by torch's autocast.
            Parameters, sums and everything in float64 keep their precision.
        memory_format: of images in networks: ``"channels_last"``, in which convolutions are fastest on CPUs, and in
            bfloat16 on GPUs; or ``"contiguous"``. It has no effect on clients in batches. Dropout on images draws in
            the order of the images' memory; everything else agrees up to rounding.
        compile: compile networks with ``torch.compile`` in this mode: ``"default"``, or ``"reduce-overhead"``, which
            replays them as CUDA graphs on a GPU; ``None``: don't compile. Compiling takes a minute at the start and
            needs a C++ compiler. See :mod:`archipel.learning.compiling`.
        states: where the clients' states are kept: ``"memory"``; ``"disk"``, in a temporary file; or ``"auto"``: on
            disk, with a line in the log, where they would take more than half of the available memory.

    Raises:
        ValueError: a value that is not allowed.

    >>> Setting(engine="threads", workers=4).device
    'cpu'
    >>> Setting(precision="float16")
    Traceback (most recent call last):
    ValueError: precision must be one of 'float32', 'bfloat16'; given 'float16'.
    """

    engine: Engine = "auto"
    within: Within = "auto"
    workers: int | None = None
    device: str = "cpu"
    precision: Precision = "float32"
    memory_format: MemoryFormat = "channels_last"
    compile: Compile | None = None
    states: Placement = "auto"

    def __post_init__(self) -> None:
        if not callable(self.engine):
            _one_of("engine", self.engine, *get_args(EngineName))
        _one_of("within", self.within, *get_args(Within))
        _one_of("precision", self.precision, *get_args(Precision))
        _one_of("memory_format", self.memory_format, *get_args(MemoryFormat))
        _one_of("compile", self.compile, None, *get_args(Compile))
        _one_of("states", self.states, *get_args(Placement))
        if self.workers is not None:
            positive_int("A run", workers=self.workers)
        try:
            object.__setattr__(self, "device", str(torch.device(self.device)))
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"device must name a device, such as 'cpu', 'cuda' or 'cuda:1'; given {self.device!r}."
            ) from error

    def check_device(self) -> None:
        """Raise a ValueError where this machine does not have the device."""
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
            raise ValueError(f"There is no device {self.device!r} here; there are: {there}.") from error

    @cached_property
    def on_cpu(self) -> bool:
        """Whether steps compute in the machine's own memory, so that nothing needs to be moved."""
        return torch.device(self.device).type == "cpu"

    def inside(self) -> AbstractContextManager[None]:
        """Return the context of a step: no gradients unless it asks for them, and new tensors on the device."""
        return self._around() if self._special else torch.no_grad()

    @cached_property
    def _special(self) -> bool:
        return bool(self.describe())

    @contextmanager
    def _around(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(ForwardOptions(self.memory_format, self.compile).activate())
            if not self.on_cpu:
                stack.enter_context(torch.device(self.device))
            if self.precision == "bfloat16":
                # Without autocast's cache, which would keep casts of parameters that change.
                kind = torch.device(self.device).type
                stack.enter_context(torch.autocast(kind, torch.bfloat16, cache_enabled=False))
            yield

    def to_device(self, tree: Tree) -> Tree:
        """Move a tree to the device. Tables with a row a client stay in memory until a row is taken.

        Copies from pinned memory are not waited for. Other memory is staged by the driver, and may change afterwards.
        """
        if self.on_cpu:
            return tree
        return tree_map(lambda t: t if isinstance(t, PerClient) else t.to(self.device, non_blocking=True), tree)

    def to_cpu(self, tree: Tree) -> Tree:
        """Move a tree to the machine's memory."""
        return tree if self.on_cpu else tree_map(lambda t: t.cpu(), tree)

    def call(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        """Compute a function of trees on the device, and return its value in the machine's memory."""
        with self.inside():
            return self.to_cpu(function(*map(self.to_device, trees)))

    def describe(self) -> dict[str, Any]:
        """Return how steps compute, as far as it differs from the defaults; carriers describe themselves."""
        steps = (field for field in fields(self) if field.name not in ("engine", "within", "workers", "states"))
        return {f.name: value for f in steps if (value := getattr(self, f.name)) != f.default}


def _one_of(name: str, value: object, *allowed: object) -> None:
    # `True in ("a", 1)` and unhashable values are no concern: all that is allowed is text or None.
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; given {value!r}.")


DEFAULT = Setting()
