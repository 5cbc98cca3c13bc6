"""The wire: each step runs in a spawned process, and every message, state and reply is sent as bytes.

It exists for tests: what runs here can run over a network, because the other side has only bytes and the algorithm's
own code.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, decoded, deliver, nbytes, tree_map
from archipel.data.federation import Federation
from archipel.engines.carrier import UNPICKLABLE, client_data, not_sent
from archipel.engines.outcome import Inputs, Outcome, SameForm, WroteIntoInputsError, check_result
from archipel.engines.setting import DEFAULT, Setting
from archipel.states.encoding import decode, encode
from archipel.states.table import States


class _Pickler(pickle.Pickler):
    """Sends the algorithm by name, not by value: both ends have it."""

    def __init__(self, file: io.BytesIO, algorithm: Algorithm) -> None:
        super().__init__(file)
        self._algorithm = algorithm

    def persistent_id(self, obj: object) -> str | None:
        return "algorithm" if obj is self._algorithm else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, algorithm: Algorithm) -> None:
        super().__init__(file)
        self._algorithm = algorithm

    def persistent_load(self, pid: str) -> Algorithm:
        return self._algorithm


class Wire:
    """Runs every step in another process that holds the data and is sent only bytes.

    Args:
        algorithm: whose steps are run; it must be picklable.
        federation: whose clients.
        setting: must compute as the default does.
        states: where the clients' states are kept; default: in memory.

    Raises:
        ValueError: an algorithm that cannot be pickled, or another setting.
    """

    def __init__(
        self, algorithm: Algorithm, federation: Federation, setting: Setting = DEFAULT, states: States | None = None
    ) -> None:
        if other := setting.describe():
            raise ValueError(
                f"engine='wire' is for tests and computes with the default setting; given {other}. Leave these out, or "
                "choose another engine."
            )
        self.algorithm = algorithm
        try:
            pickled = pickle.dumps(algorithm)
        except UNPICKLABLE as error:
            raise not_sent("The wire sends the algorithm to another process", algorithm, error) from error
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()
        self._send(pickled)
        for client in range(len(federation.clients)):
            data = client_data(federation, client, training=False)
            parts = {name: getattr(data, name) for name in ("train", "validation", "test")}
            self._send(encode({name: part.columns for name, part in parts.items() if part is not None}))
        self._send(b"")
        self.states = states or States(federation.sizes)

    def describe(self) -> dict[str, Any]:
        return {"engine": "wire"} | self.states.describe()

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        buffer = io.BytesIO()
        _Pickler(buffer, self.algorithm).dump(step)
        form = SameForm(step)
        for client in ids:
            self._send(buffer.getvalue())
            self._send(pickle.dumps((client, training)))
            given = {"state": self.states[client], "message": deliver(message, client)}
            self._send(encode(given | {"key": keys.fold(key, client)}))
            answer = self._receive()
            if answer["wrote"]:
                raise WroteIntoInputsError(answer["wrote"])
            if answer["refused"]:
                yield Outcome.failed((client,), TypeError(answer["refused"]))
                continue
            if answer["error"]:
                yield Outcome.failed(
                    (client,), RuntimeError(f"The step failed in the client's process:\n{answer['error']}")
                )
                continue
            result = decode(answer["tree"])
            state, size, reply = result["state"], nbytes(result["reply"]), decoded(result["reply"])
            outcome = form.check(Outcome.of((client,), state, tree_map(lambda t: t[None], reply), size))
            if training and bool(outcome.usable):
                self.states.put(client, state)
            yield outcome

    def _send(self, data: bytes) -> None:
        self._connection.send_bytes(data)

    def _receive(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = pickle.loads(self._connection.recv_bytes())
        except EOFError as error:
            raise RuntimeError("The client's process ended before it answered.") from error
        return answer


def _serve(connection: Connection) -> None:
    """Run steps on the other side, which holds the algorithm and the data, until the connection closes."""
    torch.set_num_threads(1)
    algorithm = pickle.loads(connection.recv_bytes())
    stores: list[dict[str, Examples]] = []
    while data := connection.recv_bytes():
        stores.append({name: Examples.of(columns) for name, columns in decode(data).items()})
    while True:
        try:
            step = _Unpickler(io.BytesIO(connection.recv_bytes()), algorithm).load()
            client, training = pickle.loads(connection.recv_bytes())
            given = decode(connection.recv_bytes())
        except EOFError:
            return
        answer: dict[str, Any] = {"wrote": "", "refused": "", "error": "", "tree": b""}
        try:
            store = stores[client]
            data_seen = ClientData(store["train"]) if training else ClientData(**store)
            with torch.no_grad(), keys.torch_generator(keys.fold(given["key"], "torch")):
                message = decoded(given["message"])
                inputs = Inputs(step, message, data_seen)
                result = step(given["state"], message, data_seen, given["key"])
                inputs.check()
            try:
                check_result(step, result)
            except TypeError as error:
                answer["refused"] = str(error)
            else:
                answer["tree"] = encode(dict(zip(("state", "reply"), result, strict=True)))
        except WroteIntoInputsError as error:
            answer["wrote"] = str(error)
        except Exception:
            answer["error"] = traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))
