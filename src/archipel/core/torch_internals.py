"""Every private name of torch that Archipel uses, each with the reason; no other module uses one.

Such names may change with any release of torch. ``pyproject.toml`` therefore bounds torch from above, and a new release
means going through this file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import pyfunctorch as _pyfunctorch
from torch.autograd import Variable
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase
from torch.nn.modules.conv import _ConvNd as ConvolutionBase
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

__all__ = [
    "BatchNormBase",
    "ConvolutionBase",
    "OperationMode",
    "VmapInterpreter",
    "add_batch_dim",
    "batch_dim",
    "coerce_interpreter",
    "dynamo",
    "foreach_add",
    "foreach_add_",
    "foreach_copy_",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sub_",
    "gradients",
    "in_operation_mode",
    "interpreter_stack",
    "is_batched",
    "is_hooked",
    "operation_packet",
    "peek_interpreter",
    "popped_interpreters",
    "pytree",
    "tensor_stores",
    "unwrapped",
    "version",
]

# pytree: torch.func.vmap maps over the containers that are registered here, and torch has no public registry.
# BatchNormBase, ConvolutionBase: what BatchNorm1d to 3d and SyncBatchNorm, or Conv1d to 3d and their transposes, share.

# The updates of all of a model's tensors in one call, as torch's own optimisers make them. A loop over small tensors
# takes several times as long.
foreach_add = torch._foreach_add
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_sub_ = torch._foreach_sub_

# What torch's higher-order operators use to work on the stacked tensors inside of torch.func.vmap; see core.vmap.
_functorch = torch._C._functorch
add_batch_dim = _functorch._add_batch_dim
batch_dim = _functorch.maybe_get_bdim
interpreter_stack = _functorch.get_interpreter_stack
is_batched = _functorch.is_batchedtensor
peek_interpreter = _functorch.peek_interpreter_stack
unwrapped = _functorch.get_unwrapped
VmapInterpreter = _pyfunctorch.VmapInterpreter
coerce_interpreter = _pyfunctorch.coerce_cinterpreter
popped_interpreters = _pyfunctorch.temporarily_pop_interpreter_stack


def gradients(output: Tensor, weight: Tensor, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weight · output; ``None`` for an input that the output doesn't depend on.

    This is the call that ``torch.autograd.grad`` ends in. What precedes it there takes a third of a small model's step,
    and loads SymPy to compare two shapes.
    """
    found: tuple[Tensor | None, ...] = Variable._execution_engine.run_backward(
        (output,), (weight,), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def dynamo() -> Any:
    """Return the front end of ``torch.compile``, whose limits, marks and errors have no public names.

    It is loaded on the first call, since that takes seconds.
    """
    import torch._dynamo

    return torch._dynamo


def tensor_stores(module: nn.Module) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
    """Return a module's dictionaries of parameters and of buffers, to exchange tensors in place.

    ``torch.func.functional_call`` does the same, and looks the places up anew on every call.
    """
    return module._parameters, module._buffers  # type: ignore[return-value]


def is_hooked(module: nn.Module) -> bool:
    """Whether hooks observe what goes into a module or comes out of it."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def version(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    return tensor._version


class OperationMode(TorchDispatchMode):
    """A context whose ``__torch_dispatch__`` sees every operation of torch; there is no public base for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch loads its compiler, which takes seconds, to exclude it from this context


def in_operation_mode() -> bool:
    """Whether an :class:`OperationMode` is active in this thread."""
    return is_in_torch_dispatch_mode(include_infra_modes=False)


def operation_packet(operation: Any) -> Any:
    """All overloads of an operation that an :class:`OperationMode` sees, by which torch registers its costs."""
    return operation._overloadpacket
