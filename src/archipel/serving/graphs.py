"""Functions of trained states as ONNX graphs: traced once, and given the tensors of each client."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

OPSET = 18
EXAMPLES = 3
"""Examples that a function is traced with. Graphs take any number."""


class NotExportableError(ValueError):
    """A function that can't be written as an ONNX graph."""


Function = Callable[[list[Tensor], list[Tensor]], Sequence[Tensor]]


class _Fixed(TorchFunctionMode):
    """Computes factors of matrices at export: ONNX has no such operations, and no query changes the matrices."""

    def __init__(self, known: list[Tensor] | None = None) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self.known = known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.linalg.cholesky, torch.linalg.solve_triangular):
            return func(*args, **(kwargs or {}))
        value = func(*args, **(kwargs or {})) if self.known is None else self.known[len(self.found)]
        self.found.append(value)
        return value


class _Traced(nn.Module):
    def __init__(self, function: Function, factors: list[Tensor]) -> None:
        super().__init__()
        self.function, self.factors = function, factors

    def forward(self, queries: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
        with _Fixed(self.factors):
            return list(self.function(queries, tensors))


@dataclass(frozen=True)
class Graph:
    """An ONNX graph some of whose inputs are still to be filled with tensors.

    Args:
        model: of ONNX.
        inputs: names of the queries' inputs.
        outputs: names of the outputs.
        open: names of the inputs to be filled, as far as the graph uses them, with their positions among the tensors.
    """

    model: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    open: dict[str, int]

    def filled(self, tensors: Sequence[Tensor]) -> bytes:
        """Return the graph's bytes with these tensors in it."""
        import onnx
        from onnx import numpy_helper

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for name, position in self.open.items():
            value = np.ascontiguousarray(tensors[position].detach().numpy())
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        kept = [node for node in model.graph.input if node.name in self.inputs]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        return bytes(model.SerializeToString())


def trace(
    function: Function,
    queries: Sequence[Tensor],
    tensors: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Graph:
    """Write a function as an ONNX graph whose batch may have any size.

    Args:
        function: of queries, each ``(n, …)``, and of tensors, to ``(n, …)`` outputs.
        queries: examples, n = ``EXAMPLES``.
        tensors: which :meth:`Graph.filled` may exchange for others of the same shapes.
        inputs: names of the queries.
        outputs: names of what the function returns.

    Raises:
        NotExportableError: torch's exporter can't follow the function, with its reason.
    """
    if find_spec("onnxscript") is None:
        raise ImportError('Exporting needs ONNX: pip install "archipel[export]".')
    batch = torch.export.Dim("n")
    names = [f"tensor_{i}" for i in range(len(tensors))]
    with _Fixed() as fixed, torch.no_grad():
        function(list(queries), list(tensors))
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Traced(function, fixed.found).eval(),
                (list(queries), list(tensors)),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=([{0: batch}] * len(queries), [None] * len(tensors)),
                input_names=[*inputs, *names],
                output_names=list(outputs),
                verbose=False,
            )
        assert program is not None
        model = program.model_proto
    except Exception as error:  # the exporter fails in many ways, with pages of advice for developers
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        reason = lines[0] if lines else type(cause).__name__
        raise NotExportableError(f"{reason[:300]} ({type(cause).__name__})") from error
    # Traces name the files of this installation, which are nobody's business.
    for value in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        del value.metadata_props[:]
        value.doc_string = ""
    for node in model.functions:
        del node.metadata_props[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    used = {name for node in model.graph.node for name in node.input} | {o.name for o in model.graph.output}
    return Graph(model, tuple(inputs), tuple(outputs), {n: i for i, n in enumerate(names) if n in used})


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's messages for developers."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
