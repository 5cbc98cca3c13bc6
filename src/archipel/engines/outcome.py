"""What becomes of a step at a client, and what carriers check of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Step
from archipel.core.checks import kind_of
from archipel.core.examples import ClientData
from archipel.core.torch_internals import version
from archipel.core.trees import PerExample, Tree, flatten, is_compressed, leaves


@dataclass(frozen=True)
class Outcome:
    """Replies of some clients, in client order, or the exception that their step raised.

    Args:
        ids: the clients.
        replies: stacked along a first dimension; what was compressed is unpacked.
        usable: ``(k,)`` bool; false where the reply or the new state holds NaN or infinities, or the step failed.
        reply_bytes: bytes of one client's reply as it is sent.
        largest: ``(k,)`` the largest absolute value of each reply.
        error: what the step raised; there are no replies then.
        elsewhere: whether another rank has the replies.
    """

    ids: Sequence[int]
    replies: Tree
    usable: Tensor
    reply_bytes: int
    largest: Tensor
    error: Exception | None = None
    elsewhere: bool = False

    @classmethod
    def failed(cls, ids: Sequence[int], error: Exception) -> Outcome:
        """Return the outcome of a step that raised an exception at these clients."""
        return cls(ids, {}, torch.zeros(len(ids), dtype=torch.bool), 0, torch.zeros(len(ids)), error)

    @classmethod
    def of(cls, ids: Sequence[int], states: Tree, replies: Tree, reply_bytes: int) -> Outcome:
        """Return the outcome of stacked new states and replies."""
        largest = magnitudes(replies, len(ids))
        usable = largest.isfinite()
        if leaves(states):
            usable &= magnitudes(states, len(ids)).isfinite()
        return cls(ids, replies, usable, reply_bytes, largest)


class WroteIntoInputsError(RuntimeError):
    """A step wrote into its message or its data, which other clients and later rounds see."""


class Inputs:
    """What a step was given, to be compared after it has run.

    Args:
        step: that gets it.
        message: the client's, or a chunk's.
        data: the client's, or a chunk's.
    """

    def __init__(self, step: Step, message: Tree, data: ClientData) -> None:
        self._step, self._message, self._data = step, message, data
        self._tensors = leaves(message) + _columns(data)
        self._versions = [version(tensor) for tensor in self._tensors]

    def check(self) -> None:
        """Raise a WroteIntoInputsError that names the step and the tensor it wrote into."""
        if self._versions == [version(tensor) for tensor in self._tensors]:
            return
        written = {
            id(tensor)
            for tensor, before in zip(self._tensors, self._versions, strict=True)
            if version(tensor) != before
        }
        names = [f"message {name or '(the whole)'}" for name, t in flatten(self._message).items() if id(t) in written]
        names += ["data" for tensor in _columns(self._data) if id(tensor) in written]
        raise WroteIntoInputsError(
            f"{step_name(self._step)} wrote into its {' and '.join(dict.fromkeys(names)) or 'inputs'}. A step must not "
            "change what it is given: other clients and later rounds would see it. Make a copy first, with clone(), or "
            "write a + b instead of a.add_(b)."
        )


class SameForm:
    """Checks that all replies to a step have the structure, shapes and types of the first.

    Args:
        step: that they are replies to.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._first: tuple[int, Any] | None = None

    def check(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or a failed one where the reply has another form than the first."""
        if outcome.error is not None:
            return outcome
        form = _form(outcome.replies)
        if self._first is None:
            self._first = outcome.ids[0], form
        first, expected = self._first
        if form == expected:
            return outcome
        error = TypeError(
            f"The reply is {_shown(form, expected)}, but that of client {first}, the first, is "
            f"{_shown(expected, form)}. All clients must reply to {step_name(self._step)} alike."
        )
        return replace(Outcome.failed(outcome.ids, error), reply_bytes=outcome.reply_bytes)


def step_name(step: Step) -> str:
    """Name a step by the class of its algorithm, which may have inherited it: ``FedProx.train``."""
    return f"{type(step.__self__).__name__}.{step.__name__}" if isinstance(step, MethodType) else step.__qualname__


def check_result(step: Step, result: Any) -> None:
    """Raise a TypeError, with the step's name, for a result that isn't a pair of trees: the new state and the reply."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"{step_name(step)} returned {kind_of(result)}; a step returns a pair: a client's new state and its reply."
        )
    _check_tree(result[0], f"{step_name(step)} returned a state with", "a state")
    _check_tree(result[1], f"{step_name(step)} replied with", "a reply")


def _check_tree(tree: Any, did: str, what: str) -> None:
    if isinstance(tree, dict):
        for part in tree.values():
            _check_tree(part, did, what)
        return
    if what == "a state" and isinstance(tree, PerExample):
        tree = tree.values
    packed = what == "a reply" and is_compressed(tree)
    if not packed and not (isinstance(tree, Tensor) and tree.layout == torch.strided):
        kind = "a sparse tensor" if isinstance(tree, Tensor) else kind_of(tree)
        raise TypeError(f"{did} {kind}; {what} is a dense tensor, or a dict of them by name.")


def magnitudes(stacked: Tree, count: int) -> Tensor:
    """Return the largest absolute value in each row of a stacked tree; NaN where there is one.

    >>> magnitudes({"a": torch.tensor([[1.0, -3.0], [0.0, torch.nan]]), "b": torch.tensor([2.0, 2.0])}, 2)
    tensor([3., nan], dtype=torch.float64)
    """
    found = [leaf for leaf in leaves(stacked) if leaf.is_floating_point() and leaf.numel()]
    if not found:
        return torch.zeros(count)
    # Extremes and not torch's norm of infinite order, which takes twenty times as long on a CPU. NaN passes through.
    if count == 1:  # the loop's case, where calling operations is what costs
        values = [max(-low.item(), high.item()) for low, high in map(torch.aminmax, found)]
        return torch.tensor([max(values) if math.isfinite(sum(values)) else math.nan], dtype=torch.float64)
    rows = [leaf.reshape(count, -1) for leaf in found]
    norms = [torch.maximum(row.amax(1), -row.amin(1)) for row in rows]
    if len(norms) == 1:
        return norms[0].cpu()
    largest: Tensor = torch.stack([norm.to(torch.float64) for norm in norms]).amax(0).cpu()
    return largest


def _columns(data: ClientData) -> list[Tensor]:
    parts = (data.train, data.validation, data.test)
    return [
        column for part in parts if part is not None for column in part.stored.values() if isinstance(column, Tensor)
    ]


def _form(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _form(part) for name, part in tree.items()}
    return tree.shape[1:], tree.dtype


def _shown(form: Any, other: Any) -> str:
    """Describe a form where it differs from another."""
    if isinstance(form, dict) and isinstance(other, dict):
        if form.keys() != other.keys():
            return f"a tree with the entries {', '.join(map(str, form)) or '(none)'}"
        name = next(name for name in form if form[name] != other[name])
        return f"{_shown(form[name], other[name])} at {name}"
    if isinstance(form, dict):
        return f"a tree with the entries {', '.join(map(str, form)) or '(none)'}"
    return f"{str(form[1]).removeprefix('torch.')} of shape {tuple(form[0])}"
