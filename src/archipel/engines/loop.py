"""The loop: one client after another, or several at once on threads, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core import keys
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, decoded, deliver, nbytes, tree_map
from archipel.data.federation import Federation
from archipel.engines.carrier import client_data, log
from archipel.engines.outcome import Inputs, Outcome, SameForm, WroteIntoInputsError, check_result, step_name
from archipel.engines.setting import DEFAULT, Setting
from archipel.engines.threads import Threads
from archipel.states.table import States

Done = tuple[Tree, Outcome]
"""A client's new state and its outcome."""


class Loop:
    """Runs each client's step separately.

    Threads pay for models with large operations (convolutions).

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        setting: how steps compute; its ``workers`` are threads, one by default. A model that draws by torch's own
            generator (dropout) runs on one.
        states: where the clients' states are kept; default: in memory.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        setting: Setting = DEFAULT,
        states: States | None = None,
    ) -> None:
        self.algorithm, self.federation, self.setting = algorithm, federation, setting
        self.states = states or States(federation.sizes)
        self.workers = setting.workers or 1
        self._seen: set[str] = set()
        self._resident: dict[tuple[int, bool], ClientData] = {}
        self._threads = Threads(algorithm, self.workers)

    def describe(self) -> dict[str, Any]:
        return {"engine": "loop", "workers": self.workers} | self.setting.describe() | self.states.describe()

    def close(self) -> None:
        self._threads.close()

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        rest, message, form = list(ids), self.setting.to_device(decoded(message)), SameForm(step)
        if self.workers > 1 and rest and step_name(step) not in self._seen:
            # The first client runs alone, to find out whether the model draws by torch's shared generator.
            self._seen.add(step_name(step))
            before = torch.random.get_rng_state()
            done = self.one(step, message, rest[0], key, training)
            if not torch.equal(before, torch.random.get_rng_state()):
                log.warning(
                    "%s draws by torch's own generator: one worker instead of %d.", step_name(step), self.workers
                )
                self.workers = 1
                torch.random.set_rng_state(before)
            else:
                yield self.keep(done, training, form)
                rest = rest[1:]
        if self.workers == 1:
            # All clients' keys at once take a tenth of the time.
            each = keys.fold(key, torch.tensor(rest, dtype=torch.int64, device="cpu"), "torch")
            with keys.torch_generator(key):
                for client, own in zip(rest, each.tolist(), strict=True):
                    torch.default_generator.manual_seed(own)
                    yield self.keep(self.one(step, message, client, key, training), training, form)
        else:

            def one(step: Step, client: int) -> Done:
                return self.one(step, message, client, key, training)

            for done in self._threads.map(one, step, rest):
                yield self.keep(done, training, form)

    def keep(self, done: Done, training: bool, form: SameForm) -> Outcome:
        """Keep the new state of a usable outcome, whose reply has the form of the others."""
        state, outcome = done
        outcome = form.check(outcome)
        if training and bool(outcome.usable):
            self.states.put(outcome.ids[0], self.setting.to_cpu(state))
        return outcome

    def one(self, step: Step, message: Tree, client: int, key: Tensor, training: bool) -> Done:
        """Run one client's step; nothing is kept yet."""
        try:
            state, reply = self.compute(step, message, client, key, training)
            with torch.no_grad():
                size, reply = nbytes(reply), tree_map(lambda t: t[None], decoded(reply))
                return state, Outcome.of((client,), state, reply, size)
        except WroteIntoInputsError:
            raise
        except Exception as error:
            return {}, Outcome.failed((client,), error)

    def compute(self, step: Step, message: Tree, client: int, key: Tensor, training: bool) -> tuple[Tree, Tree]:
        """Return the step's own result: the client's new state, and the reply as it was packed."""
        with self.setting.inside():
            given = self.states[client], deliver(message, client), keys.fold(key, client)
            state, sent, own = given if self.setting.on_cpu else map(self.setting.to_device, given)
            data = self._data(client, training)
            inputs = Inputs(step, sent, data)
            result = step(state, sent, data, own)
            inputs.check()
            check_result(step, result)
            return result

    def _data(self, client: int, training: bool) -> ClientData:
        if self.setting.on_cpu:
            return client_data(self.federation, client, training=training)
        if (client, training) not in self._resident:
            self._resident[client, training] = self.setting.to_device(
                client_data(self.federation, client, training=training)
            )
        return self._resident[client, training]
