"""Micro-batches: requests that wait while a forward pass runs are answered by the next one together."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from archipel_serve.models import Models
from archipel_serve.server.queries import Asked

LARGEST = 512
"""Queries in a batch. A larger request makes a batch of its own."""
SHORT = 0.002
"""Seconds: a single query whose pass has taken less is answered without a hand-over to another thread."""

Features = list[np.ndarray[Any, Any]]
Computed = tuple[Features, np.ndarray[Any, Any] | None]


class Batcher:
    """Computes features and posteriors of all waiting requests in one pass.

    Nothing waits for a batch to fill: the first request starts a pass at once, and those that arrive meanwhile make
    the next batch.

    Args:
        models: of the bundle.
        observe: called with the number of queries of each batch.
    """

    def __init__(self, models: Models, observe: Callable[[int], None]) -> None:
        self.models, self.observe = models, observe
        self._waiting: asyncio.Queue[tuple[Asked, asyncio.Future[Computed]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "models")
        self._fastest = math.inf
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """End, after what is being computed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)

    async def compute(self, asked: Asked) -> Computed:
        """Return a request's features, and its log-posteriors under the router's own prior, if there is a router."""
        answer: asyncio.Future[Computed] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((asked, answer))
        return await answer

    @property
    def short(self) -> bool:
        """Whether a single query's pass is so short that the event loop may wait for it."""
        return self._fastest < SHORT

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in the thread of the models."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _work(self) -> None:
        held: tuple[Asked, asyncio.Future[Computed]] | None = None
        while True:
            batch = [held or await self._waiting.get()]
            held, total = None, batch[0][0].count
            while not self._waiting.empty():
                one = self._waiting.get_nowait()
                if total + one[0].count > LARGEST or (one[0].x is None) != (batch[0][0].x is None):
                    held = one
                    break
                batch.append(one)
                total += one[0].count
            self.observe(total)
            asked = [one for one, _ in batch]
            try:
                # A hand-over to another thread takes longer than a small model's pass for one query.
                inline = total == 1 and self.short
                begin = time.perf_counter()
                found = self._compute(asked) if inline else await self.run(self._compute, asked)
                if total == 1:
                    self._fastest = min(self._fastest, time.perf_counter() - begin)
            except Exception as error:  # what fails for a batch fails for its requests, and not for the server
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), value in zip(batch, found, strict=True):
                if not answer.done():  # a client that hung up
                    answer.set_result(value)

    def _compute(self, batch: list[Asked]) -> list[Computed]:
        x = None if batch[0].x is None else np.concatenate([asked.x for asked in batch if asked.x is not None])
        if x is not None:
            features = self.models.embed(x)
        else:
            given = [asked.features for asked in batch if asked.features is not None]
            features = [np.concatenate(parts) for parts in zip(*given, strict=True)]
        routed = self.models.routes and (x is not None or self.models.manifest.routes_features)
        posterior = self.models.log_posterior(x, features) if routed else None
        ends = np.cumsum([asked.count for asked in batch])
        found = []
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            mine = [part[start:end] for part in features]
            found.append((mine, None if posterior is None else posterior[start:end]))
        return found
