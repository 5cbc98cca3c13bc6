"""The loop: one client after another, or several at once on threads; the same bits either way."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from archipel import keys
from archipel.algorithm import Algorithm, Step
from archipel.clients.carrier import Outcome, client_data, log
from archipel.data.federation import Federation
from archipel.trees import Tree, decoded, deliver, finite, nbytes, tree_map


class Loop:
    """Runs each client's step by itself.

    Threads serve models whose operations are large (convolutions): torch lets go of the interpreter inside them. Each
    thread has its own copy of the algorithm, since a module can't be called functionally by two threads at a time, and
    one intra-op thread.

    Args:
        algorithm: whose steps are run.
        federation: whose clients.
        workers: threads. A model that draws by torch's own generator (dropout) runs on one.
    """

    def __init__(self, algorithm: Algorithm, federation: Federation, workers: int = 1) -> None:
        self.algorithm, self.federation, self.workers = algorithm, federation, workers
        self._states: list[Tree] = [{} for _ in federation.clients]
        self._seen: set[str] = set()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def describe(self) -> dict[str, Any]:
        return {"engine": "loop", "workers": self.workers}

    def state(self, client: int) -> Tree:
        return self._states[client]

    def restore(self, states: Sequence[Tree]) -> None:
        self._states = list(states)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, *, training: bool) -> Iterator[Outcome]:
        rest, message = list(ids), decoded(message)
        if self.workers > 1 and rest and step.__qualname__ not in self._seen:
            # The first client runs alone, to see whether the model draws by the generator that threads would share.
            self._seen.add(step.__qualname__)
            before, state = torch.random.get_rng_state(), self._states[rest[0]]
            outcome = self._one(step, message, rest[0], key, training)
            if not torch.equal(before, torch.random.get_rng_state()):
                log.warning(
                    "%s draws by torch's own generator: one worker instead of %d.", step.__qualname__, self.workers
                )
                self.workers, self._states[rest[0]] = 1, state
                torch.random.set_rng_state(before)
            else:
                yield outcome
                rest = rest[1:]
        if self.workers == 1:
            for client in rest:
                with keys.torch_generator(keys.fold(key, client, "torch")):
                    outcome = self._one(step, message, client, key, training)
                yield outcome
        else:
            yield from self._threaded(step, message, rest, key, training)

    def _threaded(
        self, step: Step, message: Tree, ids: Sequence[int], key: Tensor, training: bool
    ) -> Iterator[Outcome]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "archipel", torch.set_num_threads, (1,))
        # At most two tasks a worker are under way, so that replies waiting for their turn don't pile up.
        waiting: deque[Future[Outcome]] = deque()
        for client in ids:
            waiting.append(self._pool.submit(self._on_thread, step, message, client, key, training))
            if len(waiting) == 2 * self.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _on_thread(self, step: Step, message: Tree, client: int, key: Tensor, training: bool) -> Outcome:
        if not hasattr(self._local, "algorithm"):
            self._local.algorithm = copy.deepcopy(self.algorithm)
        # A step is a method of the algorithm, or of an object that holds it: the copy takes the original's place.
        own_step = copy.deepcopy(step, {id(self.algorithm): self._local.algorithm})
        return self._one(own_step, message, client, key, training)

    def _one(self, step: Step, message: Tree, client: int, key: Tensor, training: bool) -> Outcome:
        data = client_data(self.federation, client, training=training)
        with torch.no_grad():
            state, reply = step(self._states[client], deliver(message, client), data, keys.fold(key, client))
            usable = finite(reply) & finite(state)
            if training and bool(usable):
                self._states[client] = state
            return Outcome((client,), tree_map(lambda t: t[None], reply), usable[None], nbytes(reply))
