"""Floors: the same work in bare PyTorch without a framework, written as an expert would."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, multiprocessing, nn

from archipel.learning.pooling import pool_first
from speed.peers import networks, shards
from speed.work import Work
from speed.works_of_archipel import INNER_STEPS, PENALTY

Params = list[Tensor]
DITTO = 0.1
"""μ, the default of :class:`archipel.Ditto`."""


class BareLoop:
    """One client after another, in one process: gradients by autograd, updates fused over parameters.

    Args:
        work: what to do.
        bfloat16: multiply and convolve in bfloat16 (autocast).
        pooling_first: exchange ReLU and pooling, as Archipel does.
    """

    def __init__(self, work: Work, bfloat16: bool = False, pooling_first: bool = False) -> None:
        self.work, self.bfloat16 = work, bfloat16
        model: nn.Module = networks.started(work.plain)
        self.model = pool_first(model) if pooling_first else model
        self.params: Params = list(self.model.parameters())
        x, y = (torch.from_numpy(values) for values in shards.read(work.plain))
        self.clients = [(x[place], y[place]) for place in shards.places(work.plain, len(x))]
        self.personal: dict[int, Params] = {}
        self.train = {"fedavg": self._fedavg, "ditto": self._ditto, "pfedme": self._pfedme}[work.method]

    def round(self, theta: Params, ids: Sequence[int]) -> Params:
        """Return the mean of the clients' models after their local steps from ``theta``."""
        total = self.total(theta, ids)
        torch._foreach_div_(total, len(ids))
        return total

    def total(self, theta: Params, ids: Sequence[int]) -> Params:
        """Return the sum of these models; all clients hold equally many examples."""
        total = [torch.zeros_like(p) for p in theta]
        for client in ids:
            self.train(client, theta)
            with torch.no_grad():
                torch._foreach_add_(total, self.params)
        return total

    def _fedavg(self, client: int, theta: Params) -> None:
        self._put(theta)
        self._descend(*self.clients[client])

    def _ditto(self, client: int, theta: Params) -> None:
        self._put(self.personal.get(client, theta))
        self._descend(*self.clients[client], pull=(DITTO, theta))
        self.personal[client] = [p.detach().clone() for p in self.params]
        self._fedavg(client, theta)

    def _pfedme(self, client: int, theta: Params) -> None:
        x, y = self.clients[client]
        lr, omega = self.work.lr, [t.clone() for t in theta]
        for index in self._batches(len(y), self.work.local_steps):
            self._put(omega)
            for _ in range(INNER_STEPS):
                self._step(x[index], y[index], None, (PENALTY, omega))
            personal = [p.detach().clone() for p in self.params]
            # ω ← ω − ηλ (ω − θ_k)
            torch._foreach_lerp_(omega, personal, lr * PENALTY)
        self.personal[client] = personal
        self._put(omega)

    def _put(self, theta: Params) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.params, theta)

    def _batches(self, n: int, steps: int) -> list[Tensor]:
        """Yield minibatches in shuffled passes; all rows in order if a batch holds them all."""
        batches: list[Tensor] = []
        while len(batches) < steps:
            batches += torch.randperm(n).split(self.work.batch) if self.work.batch < n else [torch.arange(n)]
        return batches[:steps]

    def _descend(self, x: Tensor, y: Tensor, pull: tuple[float, Params] | None = None) -> None:
        velocity: Params = []
        for index in self._batches(len(y), self.work.local_steps):
            velocity = self._step(x[index], y[index], velocity, pull)

    def _step(self, x: Tensor, y: Tensor, velocity: Params | None, pull: tuple[float, Params] | None) -> Params:
        with torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else nullcontext():
            loss = F.cross_entropy(self.model(x), y)
        g = list(torch.autograd.grad(loss, self.params))
        with torch.no_grad():
            if pull:
                penalty, centre = pull
                torch._foreach_add_(g, torch._foreach_sub(self.params, centre), alpha=penalty)
            if velocity and self.work.momentum:
                torch._foreach_mul_(velocity, self.work.momentum)
                torch._foreach_add_(velocity, g)
                g = velocity
            torch._foreach_add_(self.params, g, alpha=-self.work.lr)
        return g


class TwoProcesses:
    """Two bare loops in persistent processes with one thread each; models pass through shared memory.

    Args:
        work: what to do.
        processes: how many.
        options: of :class:`BareLoop`.
    """

    def __init__(self, work: Work, processes: int = 2, **options: bool) -> None:
        model = networks.started(work.plain)
        self.theta = [p.detach().clone().share_memory_() for p in model.parameters()]
        self.totals = [[torch.zeros_like(p).share_memory_() for p in self.theta] for _ in range(processes)]
        context = multiprocessing.get_context("spawn")
        self.workers, self.ends = [], []
        for total in self.totals:
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(work.plain, options, self.theta, total, there), daemon=True)
            worker.start()
            there.close()
            self.workers.append(worker)
            self.ends.append(here)

    def round(self, theta: Params, ids: Sequence[int]) -> Params:
        torch._foreach_copy_(self.theta, theta)
        for part, end in enumerate(self.ends):
            end.send(list(ids[part :: len(self.ends)]))
        for end in self.ends:
            end.recv()
        total = [torch.zeros_like(p) for p in self.theta]
        for share in self.totals:
            torch._foreach_add_(total, share)
        torch._foreach_div_(total, len(ids))
        return total

    def close(self) -> None:
        for end in self.ends:
            end.close()
        for worker in self.workers:
            worker.join(10)


def _serve(plain: dict[str, Any], options: dict[str, bool], theta: Params, total: Params, end: Connection) -> None:
    torch.set_num_threads(1)
    loop = BareLoop(Work.of(plain), **options)
    while True:
        try:
            ids = end.recv()
        except EOFError:
            return
        torch._foreach_copy_(total, loop.total(theta, ids))
        end.send(True)


class Stacked:
    """Chunks of clients at a time; a subclass computes gradients of stacked parameters.

    Args:
        work: what to do; FedAvg alone.
        chunk: clients at a time: stacked parameters and gradients should stay in the cache.
    """

    def __init__(self, work: Work, chunk: int = 10) -> None:
        self.work, self.chunk = work, chunk
        self.model = networks.started(work.plain)
        x, y = (torch.from_numpy(values) for values in shards.read(work.plain))
        self.x, self.y = x, y
        self.first = torch.tensor([place.start for place in shards.places(work.plain, len(x))])

    def gradients(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """Return the mean loss's gradients ``(c, …)`` for parameters ``(c, …)`` and minibatches ``(c, b, …)``."""
        raise NotImplementedError

    def round(self, theta: Params, ids: Sequence[int]) -> Params:
        total = [torch.zeros_like(p) for p in theta]
        with torch.no_grad():
            for chunk in torch.as_tensor(ids).split(self.chunk):
                torch._foreach_add_(total, [p.sum(0) for p in self._local(theta, chunk)])
            torch._foreach_div_(total, len(ids))
        return total

    def _local(self, theta: Params, ids: Tensor) -> Params:
        work, n = self.work, self.work.examples
        params = [p.expand(len(ids), *p.shape).clone() for p in theta]
        velocity: Params = []
        for _ in range(work.epochs):
            whole = torch.arange(n).expand(len(ids), n)
            order = torch.rand(len(ids), n).argsort(1) if work.batch < n else whole
            for index in (order + self.first[ids][:, None]).split(work.batch, dim=1):
                g = self.gradients(params, self.x[index], self.y[index])
                if velocity and work.momentum:
                    torch._foreach_mul_(velocity, work.momentum)
                    torch._foreach_add_(velocity, g)
                else:
                    velocity = g
                torch._foreach_add_(params, velocity, alpha=-work.lr)
        return params


class BareVmap(Stacked):
    """``vmap(grad)``."""

    def __init__(self, work: Work, chunk: int = 10) -> None:
        super().__init__(work, chunk)
        names = [name for name, _ in self.model.named_parameters()]
        self.model.last = False  # vmap has no rule for channels-last

        def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
            named = dict(zip(names, params, strict=True))
            return F.cross_entropy(torch.func.functional_call(self.model, named, (x,)), y)

        self._gradients = torch.func.vmap(torch.func.grad(loss))

    def gradients(self, params: Params, x: Tensor, y: Tensor) -> Params:
        return list(self._gradients(params, x, y))


class ByHand(Stacked):
    """Softmax regression only: its gradient as batched matrix products."""

    def gradients(self, params: Params, x: Tensor, y: Tensor) -> Params:
        weight, bias = params
        x = x.flatten(2)
        error = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)).softmax(-1)
        error.scatter_add_(2, y[..., None], error.new_full((), -1.0).expand(*y.shape, 1))
        error /= y.shape[1]
        return [torch.bmm(error.transpose(1, 2), x), error.sum(1)]


FLOORS: dict[str, Callable[..., Any]] = {
    "loop": BareLoop,
    "processes": TwoProcesses,
    "vmap": BareVmap,
    "by-hand": ByHand,
}


def _distance(one: Params, other: Params) -> float:
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)))


def run(floor: str, work: Work, each: Callable[[Callable[[], float]], None], **options: Any) -> None:
    """Run rounds of a floor until ``each``, which is called after every round, raises an exception."""
    made = FLOORS[floor](work, **options)
    start: nn.Module = networks.started(work.plain)
    theta = [p.detach().clone() for p in start.parameters()]
    begun = [t.clone() for t in theta]
    try:
        while True:
            theta = made.round(theta, torch.randperm(work.clients)[: work.cohort].tolist())
            each(partial(_distance, theta, begun))
    finally:
        if isinstance(made, TwoProcesses):
            made.close()
