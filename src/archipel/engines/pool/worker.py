"""A worker: the process at the other end of a pipe that runs steps for :class:`archipel.engines.Processes`."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from archipel.algorithm import Algorithm, Step
from archipel.core import keys
from archipel.core.trees import PerClient, Tree, tree_map
from archipel.data.federation import Federation
from archipel.engines.batched import Batched
from archipel.engines.loop import Done
from archipel.engines.pool.memory import Memory
from archipel.engines.setting import Setting
from archipel.states.table import States


class Operation(NamedTuple):
    """What all tasks of an operation share; the message has gaps for each client's own rows."""

    step: Step
    message: Tree
    key: Tensor
    training: bool


class TaskPart(NamedTuple):
    """Part of a task: a client's number and state, or those of a batch, and its rows of ``PerClient`` leaves."""

    which: int | list[int]
    states: Tree
    rows: list[Tree]


class Request(NamedTuple):
    """What is sent through the pipe: a task's bytes, and those of its operation if the worker does not have it.

    A task is a list of parts, whose tensors are in the slot's memory.
    """

    number: int
    slot: int
    task: bytes
    operation: bytes | None


class Response(NamedTuple):
    """What comes back: new states and outcomes, whose tensors are in the slot's memory, or an exception."""

    number: int
    failed: bool
    content: bytes


@dataclass(frozen=True)
class Payload:
    """Algorithm, federation and setting for a spawned process; a forked process inherits them."""

    memory: Memory
    content: bytes

    @classmethod
    def of(cls, batched: Batched) -> Payload:
        memory = Memory()
        content, _ = memory.dump((batched.algorithm, batched.federation, batched.setting))
        return cls(memory, content)

    def unpacked(self, index: int) -> Batched:
        (algorithm, federation, setting), _ = self.memory.load(self.content, private=True)
        return Batched(algorithm, federation, _on_own_device(setting, index))


@dataclass(frozen=True)
class _GivenStates:
    """The states of the clients in a task, in place of the table of all states."""

    states: Tree

    def __getitem__(self, client: int) -> Tree:
        return self.states

    def read(self, clients: Tensor) -> Tree:
        return self.states


@dataclass(frozen=True)
class _OwnRows(PerClient):
    """The rows of the clients in a task, in place of all clients' rows."""

    def row(self, client: int | Tensor) -> Tree:
        return self.table


def split_message(message: Tree) -> tuple[Tree, list[PerClient]]:
    """Return the message with gaps, and the leaves that belong there."""
    own: list[PerClient] = []

    def gap(leaf: Any) -> Any:
        if not isinstance(leaf, PerClient):
            return leaf
        own.append(leaf)
        return PerClient(())

    return tree_map(gap, message), own


def known_to_all(algorithm: Algorithm, federation: Federation) -> list[Any]:
    """List what both sides have, in the same order: the algorithm, its parts, and the federation."""
    return [*_parts(algorithm), federation]


def serve(
    connection: Connection, operation_memory: Memory, slots: Sequence[Memory], kernels: Batched | Payload, index: int
) -> None:
    """Run requested tasks until the connection closes or the parent process ends.

    Args:
        connection: receives requests and sends responses.
        operation_memory: holds operations.
        slots: hold tasks, each followed by its answer.
        kernels: run the steps.
        index: the worker's number, which decides its GPU if there are several.
    """
    _prepare_process()
    batched = kernels.unpacked(index) if isinstance(kernels, Payload) else kernels
    known = known_to_all(batched.algorithm, batched.federation)
    operation: Operation | None = None
    while True:
        try:
            request = Request(*pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            return
        try:
            if request.operation is not None:
                operation, _ = operation_memory.load(request.operation, known)
                assert operation is not None
                operation = operation._replace(message=batched.setting.to_device(operation.message))
            assert operation is not None
            memory = slots[request.slot]
            task, end = memory.load(request.task, known)
            content, _ = memory.dump([_compute(batched, operation, *part) for part in task], start=end)
            answer = Response(request.number, False, content)
        except Exception as error:
            answer = Response(request.number, True, pickle.dumps(_sendable(error)))
        connection.send_bytes(pickle.dumps(tuple(answer)))


def _compute(batched: Batched, operation: Operation, which: int | list[int], states: Tree, rows: list[Tree]) -> Done:
    step, message, key, training = operation
    if rows:
        own = iter(rows)
        message = tree_map(lambda leaf: _OwnRows(next(own)) if isinstance(leaf, PerClient) else leaf, message)
    batched.states = batched.loop.states = cast(States, _GivenStates(states))
    if isinstance(which, list):
        state, outcome = batched.one(step, message, torch.tensor(which), key, training)
    else:
        with keys.torch_generator(keys.fold(key, which, "torch")):
            state, outcome = batched.loop.one(step, message, which, key, training)
    if outcome.error is not None:
        outcome = replace(outcome, error=_sendable(outcome.error))
    return state if training else {}, outcome


def _prepare_process() -> None:
    # Ctrl-C reaches all processes of a terminal: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(1)
    # Garbage collection would touch, and so copy, the pages that are shared with the parent.
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _on_own_device(setting: Setting, index: int) -> Setting:
    device = torch.device(setting.device)
    if device.type != "cuda" or device.index is not None:
        return setting
    return replace(setting, device=f"cuda:{index % torch.cuda.device_count()}")


def _parts(value: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(value, nn.Module):
        found.append(value)
    elif is_dataclass(value) and not isinstance(value, type):
        found += [value, *(part for field in fields(value) for part in _parts(getattr(value, field.name)))]
    elif isinstance(value, list | tuple):
        found += [part for item in value for part in _parts(item)]
    elif isinstance(value, dict):
        found += [part for item in value.values() for part in _parts(item)]
    return found


def _sendable(error: Exception) -> Exception:
    """Return the error with its traceback's text as a note; one that cannot be sent becomes a RuntimeError."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"It was raised in a worker process:\n{text}")
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"A step failed in a worker process:\n{text}")
    return error
