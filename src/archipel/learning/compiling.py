"""How a network's forward pass is carried out inside a step: the images' memory format, and by choice torch's compiler.

Both are settings of the run, of which algorithms know nothing: whoever runs a step says how it is to be done, in the
thread that runs it, and networks look there. Of a compiled pass:

- Parameters and buffers are its arguments, so that all clients, steps and threads share what was compiled once. Torch
  makes variants of it: with gradients and without, in training and not, for one example and for any larger number (on
  a CPU, of convolutions, below 16 and from 16 on).
- A variant depends on shapes alone, never on what was computed before: the same seed still gives the same bits.
- Inside ``torch.func.vmap`` the pass of all stacked clients is compiled, anew for each number of clients.
- What torch can't trace (recurrent layers, a number that is read off a tensor) runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from archipel.core.keys import batched
from archipel.core.vmap import Stack

MemoryFormat = Literal["channels_last", "contiguous"]
Compile = Literal["default", "reduce-overhead"]
MEMORY_FORMATS, COMPILES = ("channels_last", "contiguous"), ("default", "reduce-overhead")
Named = dict[str, Tensor]
VARIANTS = 64
"""How many variants of a pass are compiled before torch leaves new ones uncompiled; its own 8 is soon reached."""


@dataclass(frozen=True)
class Manner:
    """How forward passes are carried out; see :class:`archipel.engines.device.Setting`."""

    memory_format: MemoryFormat = "channels_last"
    compile: Compile | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Passes of this thread are carried out so."""
        token = _MANNER.set(self)
        try:
            if self.compile is None:
                yield
            else:
                with torch._dynamo.config.patch(recompile_limit=VARIANTS):
                    yield
        finally:
            _MANNER.reset(token)


_USUAL = Manner()
_MANNER = ContextVar("manner", default=_USUAL)


def arranged(x: Tensor) -> Tensor:
    """Images ``(n, C, H, W)``, or a convolution's weights, in the memory format that is set; all else as it is.

    >>> arranged(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    >>> with Manner("contiguous").inside():
    ...     arranged(torch.zeros(2, 3, 4, 4)).stride()
    (48, 16, 4, 1)
    """
    if x.dim() != 4 or batched():  # vmap has no rule for formats
        return x
    if _MANNER.get().memory_format == "contiguous":
        return x.contiguous()
    x = x.contiguous(memory_format=torch.channels_last)
    if x.shape[1] > 1:
        return x
    # Grey images lie alike in both formats, and convolutions take them for the slow one unless the strides say more.
    return x.as_strided(x.shape, (x.shape[2] * x.shape[3], 1, x.shape[3], 1))


def compiling() -> Compile | None:
    """How passes are to be compiled; not at all where somebody counts operations, who would see none of them."""
    mode = _MANNER.get().compile
    return None if mode is None or is_in_torch_dispatch_mode(include_infra_modes=False) else mode


class Watched(nn.Module):
    """A module that hands out its buffers beside its output, as they are after the pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, Named]:
        out = self.module(x)
        return out, dict(self.module.named_buffers(prefix="module"))


def compiled(mode: Compile, module: Watched, named: Named, x: Tensor) -> tuple[Tensor, Named]:
    """A module's output, and its buffers after the pass; those that are given stay as they are.

    Args:
        mode: torch's; ``"reduce-overhead"`` replays passes as CUDA graphs.
        module: in training or not, as its ``training`` says.
        named: parameters and buffers by the watched module's names.
        x: ``(n, …)``.

    Raises:
        ValueError: torch can't compile it, or not on this machine.
    """
    stack = Stack.here()
    below = pytree.tree_map(stack.under, (named, x))
    dims = pytree.tree_map(lambda seen, under: None if seen is under else 0, (named, x), below)
    together = any(dim == 0 for dim in pytree.tree_leaves(dims))
    structure = repr(module)
    try:
        with stack.beneath():
            if together:
                out = _compiled(_stacked_pass, structure, mode)(module, dims, *below)
            else:
                whole = x.view_as(x)  # marked, and not the tensor that is given
                torch._dynamo.maybe_mark_dynamic(whole, 0)
                out = _compiled(_pass, structure, mode)(module, named, whole)
            if mode == "reduce-overhead":  # the next replay writes to the same memory
                out = pytree.tree_map(torch.clone, out)
    except torch._dynamo.exc.TorchDynamoException as error:
        _pass(module, named, x)  # what is wrong with the module or its inputs is better said by its own error
        raise ValueError(_advice(mode, module.module, error)) from None
    result: tuple[Tensor, Named] = pytree.tree_map(stack.row, out) if together else out
    return result


def _pass(module: Watched, named: Named, x: Tensor) -> Any:
    if module.module.training:  # copies within the pass: CUDA graphs can't write into what they are given
        named = named | {name: named[name].clone() for name, _ in module.named_buffers() if name in named}
    return torch.func.functional_call(module, named, (x,))


def _stacked_pass(module: Watched, dims: Any, named: Named, x: Tensor) -> Any:
    return torch.func.vmap(_pass, in_dims=(None, *dims), randomness="error")(module, named, x)


@cache
def _compiled(function: Callable[..., Any], structure: str, mode: Compile) -> Callable[..., Any]:
    """The function compiled, for modules of one structure, as the copies of a network for several threads are.

    Torch keeps variants by the piece of code: with one of its own a network doesn't use up another's ``VARIANTS``.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__)
    # Only the number of examples is left open. What torch finds out by itself, what else changes from call to call,
    # depends on the calls before.
    options: dict[str, Any] = {
        "triton.cudagraphs": mode == "reduce-overhead",
        "fallback_random": True,  # dropout draws what it draws without the compiler
        "compile_threads": 1,  # threads that compile wouldn't survive a fork, and who waits for them would hang
    }
    return torch.compile(own, dynamic=False, options=options)


def _advice(mode: Compile, module: nn.Module, error: Exception) -> str:
    reason = " ".join(str(error).split("\n\n")[0].split())
    return (
        f"Torch couldn't compile {type(module).__name__}, as compile={mode!r} asks: {reason.rstrip('.')}. It needs a "
        "C++ compiler (g++ or clang++ on the path, or named by the environment variable CXX), and on a GPU Triton. "
        "Leave compile out to run without."
    )
