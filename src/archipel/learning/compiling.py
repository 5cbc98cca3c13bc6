"""How a network's forward pass is computed inside a step: the images' memory format, and whether torch compiles it.

Both belong to the run's setting, and algorithms do not know of them. The code that runs a step activates its
:class:`ForwardOptions` for the current thread, and networks look them up. About compiled passes:

- Parameters and buffers are arguments, so that all clients, steps and threads share what was compiled once. Torch
  compiles variants: with gradients and without, in training and not, for one example and for any larger number (on a
  CPU, convolutions have one variant below 16 examples and one from 16 on).
- A variant depends on shapes alone, never on earlier calls: the same seed still gives the same bits.
- Inside ``torch.func.vmap`` the pass of all stacked clients is compiled, once for each number of clients.
- What torch can't trace (recurrent layers, a number that is read off a tensor) runs uncompiled.
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

from archipel.core.torch_internals import dynamo, in_operation_mode, pytree
from archipel.core.vmap import VmapLevel, inside_vmap

MemoryFormat = Literal["channels_last", "contiguous"]
Compile = Literal["default", "reduce-overhead"]
MEMORY_FORMATS, COMPILES = ("channels_last", "contiguous"), ("default", "reduce-overhead")
Named = dict[str, Tensor]
VARIANTS = 64
"""How many variants of a pass are compiled before torch leaves new ones uncompiled. Torch's default of 8 is too few."""


@dataclass(frozen=True)
class ForwardOptions:
    """How forward passes are computed.

    Args:
        memory_format: of images, see :class:`archipel.engines.setting.Setting`.
        compile: the mode of ``torch.compile``; ``None``: passes aren't compiled.
    """

    memory_format: MemoryFormat = "channels_last"
    compile: Compile | None = None

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Apply these options to the forward passes of this thread."""
        token = _OPTIONS.set(self)
        try:
            if self.compile is None:
                yield
            else:
                with dynamo().config.patch(recompile_limit=VARIANTS):
                    yield
        finally:
            _OPTIONS.reset(token)


_DEFAULT = ForwardOptions()
_OPTIONS = ContextVar("forward options", default=_DEFAULT)


def to_memory_format(x: Tensor) -> Tensor:
    """Lay out images ``(n, C, H, W)``, or a convolution's weights, in the active memory format.

    Other tensors are returned as they are.

    >>> to_memory_format(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    >>> with ForwardOptions("contiguous").activate():
    ...     to_memory_format(torch.zeros(2, 3, 4, 4)).stride()
    (48, 16, 4, 1)
    """
    if x.dim() != 4 or inside_vmap():  # vmap has no rule for formats
        return x
    if _OPTIONS.get().memory_format == "contiguous":
        return x.contiguous()
    x = x.contiguous(memory_format=torch.channels_last)
    if x.shape[1] > 1:
        return x
    # Grey images have the same layout in both formats; without these strides convolutions take the slow one.
    return x.as_strided(x.shape, (x.shape[2] * x.shape[3], 1, x.shape[3], 1))


def compile_mode() -> Compile | None:
    """Return the active mode of ``torch.compile``; ``None`` also while operations are counted, which it would hide."""
    mode = _OPTIONS.get().compile
    return None if mode is None or in_operation_mode() else mode


class WithBuffers(nn.Module):
    """A module that returns its output together with its buffers as they are after the pass.

    Args:
        module: the wrapped module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, Named]:
        out = self.module(x)
        return out, dict(self.module.named_buffers(prefix="module"))


def compiled_pass(mode: Compile, module: WithBuffers, named: Named, x: Tensor) -> tuple[Tensor, Named]:
    """Return a module's output, and its buffers after the pass; the given buffers don't change.

    Args:
        mode: of ``torch.compile``; ``"reduce-overhead"`` replays passes as CUDA graphs.
        module: in training mode or not, as its ``training`` says.
        named: parameters and buffers, by the wrapping module's names.
        x: ``(n, …)``.

    Raises:
        ValueError: torch can't compile the module, or can't compile on this machine.
    """
    level = VmapLevel.current()
    below = pytree.tree_map(level.unwrap, (named, x))
    dims = pytree.tree_map(lambda seen, under: None if seen is under else 0, (named, x), below)
    stacked = any(dim == 0 for dim in pytree.tree_leaves(dims))
    structure = repr(module)
    try:
        with level.outside():
            if stacked:
                out = _compiled(_stacked_pass, structure, mode)(module, dims, *below)
            else:
                view = x.view_as(x)  # the mark must not stay on the caller's tensor
                dynamo().maybe_mark_dynamic(view, 0)
                out = _compiled(_pass, structure, mode)(module, named, view)
            if mode == "reduce-overhead":  # the next replay writes to the same memory
                out = pytree.tree_map(torch.clone, out)
    except dynamo().exc.TorchDynamoException as error:
        _pass(module, named, x)  # an error of the module or its inputs is clearer than the compiler's
        raise ValueError(_advice(mode, module.module, error)) from None
    result: tuple[Tensor, Named] = pytree.tree_map(level.wrap, out) if stacked else out
    return result


def _pass(module: WithBuffers, named: Named, x: Tensor) -> Any:
    if module.module.training:  # copied inside the pass: CUDA graphs can't write into their inputs
        named = named | {name: named[name].clone() for name, _ in module.named_buffers() if name in named}
    return torch.func.functional_call(module, named, (x,))


def _stacked_pass(module: WithBuffers, dims: Any, named: Named, x: Tensor) -> Any:
    return torch.func.vmap(_pass, in_dims=(None, *dims), randomness="error")(module, named, x)


@cache
def _compiled(function: Callable[..., Any], structure: str, mode: Compile) -> Callable[..., Any]:
    """Return the function compiled for modules of one structure, such as a network's copies for several threads.

    Torch counts variants by code object. Each structure gets its own, so that no network uses up another's
    ``VARIANTS``.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__)
    # Only the number of examples is dynamic. Whatever else torch would make dynamic by itself depends on earlier calls.
    options: dict[str, Any] = {
        "triton.cudagraphs": mode == "reduce-overhead",
        "fallback_random": True,  # dropout draws what it draws without the compiler
        "compile_threads": 1,  # compiling threads don't survive a fork, and waiting for them would hang
    }
    return torch.compile(own, dynamic=False, options=options)


def _advice(mode: Compile, module: nn.Module, error: Exception) -> str:
    reason = " ".join(str(error).split("\n\n")[0].split())
    return (
        f"Torch couldn't compile {type(module).__name__} for compile={mode!r}: {reason.rstrip('.')}. Compiling needs a "
        "C++ compiler (g++ or clang++ on the path, or named by the environment variable CXX), and on a GPU Triton. "
        "Leave compile out to run uncompiled."
    )
