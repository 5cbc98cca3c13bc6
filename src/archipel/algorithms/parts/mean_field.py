"""What federated EM's algorithms have in common: steps along a mean field, from compressed differences.

EM in the expectation space looks for a root of the mean field h(s) = s̄(T(s)) − s, s̄ being the expected complete-data
statistics and T the M-step. Here n_i is the number of examples of client i and ρ_i = n_i/Σ n_i; with weights ρ_i,

    F(θ) = Σ_i ρ_i L_i(θ) + R(θ),  s̄ = Σ_i ρ_i s̄_i,  h = Σ_i ρ_i h_i  with  h_i(s) = s̄_i(T(s)) − s,

belong to the data of all clients pooled, whoever holds how much of them: statistics are means over examples, so that
means weighted by ρ are pooled ones. The paper has n clients of m examples each, and 1/n in the place of ρ_i.

FedEM and VR-FedEM differ in how a client estimates s̄_i(T(Ŝ)). The rest is here, as functions of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from archipel.algorithm import Clients, DivergenceError, Info, NoReplyError, Step
from archipel.compress.compressor import Compressor
from archipel.core import checks, keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, add, leaves, norm, tree_map, zeros_like
from archipel.core.vmap import inside_vmap
from archipel.families.family import Family

Memory = Literal["start", "zero", "off"]
Rate = float | Callable[[int], float]
Start = Tree | Callable[[Clients, Tensor], Tree]


class MovesStatistics(Protocol):
    """An algorithm as the functions here see it."""

    @property
    def family(self) -> Family: ...

    @property
    def start(self) -> Start: ...

    @property
    def compressor(self) -> Compressor: ...

    @property
    def rate(self) -> Rate: ...

    @property
    def alpha(self) -> float | None: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def participation(self) -> float | None: ...

    def expect(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """A step: s̄_i(θ) over all the client's examples."""

    def score(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """A step: the mean log-likelihood of the client's examples at θ."""


def check(algorithm: MovesStatistics) -> None:
    """Raises ValueError or TypeError for settings that can't be."""
    owner = type(algorithm).__name__
    if not hasattr(algorithm.family, "statistics") or isinstance(algorithm.family, type):
        raise TypeError(
            f"{owner}'s family is a model such as GaussianMixture(components, dimension) of archipel.em; given "
            f"{checks.kind_of(algorithm.family)}."
        )
    if not callable(algorithm.start) and not isinstance(algorithm.start, dict):
        raise TypeError(
            f"{owner}'s start is a dict of the family's parameters, or a function (clients, key) → such a dict; given "
            f"{checks.kind_of(algorithm.start)}."
        )
    if isinstance(algorithm.start, dict):
        _check_start(owner, algorithm.start)
    if not hasattr(algorithm.compressor, "unbiased") or isinstance(algorithm.compressor, type):
        raise TypeError(
            f"{owner}'s compressor is Identity() or another of archipel.compress, such as Dithering(levels=4); given "
            f"{checks.kind_of(algorithm.compressor)}."
        )
    if not algorithm.compressor.unbiased:
        raise ValueError(
            f"{owner} needs an unbiased compressor, whose errors the mean over clients and rounds takes away; "
            f"{type(algorithm.compressor).__name__} is biased. Identity, Dithering, QSGD, BlockQuantisation, Natural "
            "and RandK are unbiased."
        )
    if not callable(algorithm.rate):
        checks.above_zero(owner, rate=algorithm.rate)
    checks.one_of(owner, "memory", algorithm.memory, "start", "zero", "off")
    if algorithm.alpha is not None:
        checks.above_zero(owner, alpha=algorithm.alpha)
        if algorithm.memory == "off":
            raise ValueError(f"{owner}'s alpha moves the memories, which memory='off' doesn't keep; leave one away.")
    p = algorithm.participation
    if p is None:
        return
    checks.number(owner, participation=p)
    if not 0 < p <= 1:
        raise ValueError(
            f"{owner}'s participation is the share of clients that take part on average, in (0, 1], or None for the "
            f"share that each round's cohort has; given {p}."
        )


def _check_start(owner: str, start: Tree) -> None:
    for name, value in start.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{owner}'s start holds tensors; its {name} is {checks.kind_of(value)}.")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{owner}'s start has NaN or infinite values in its {name}.")
    weight = start.get("weight")
    if weight is not None and (bool((weight < 0).any()) or abs(float(weight.sum()) - 1) > 1e-5):
        raise ValueError(f"{owner}'s start has the weights {weight.tolist()}; they are 0 or above and sum to 1.")


# At the clients


def minibatch(examples: Examples, key: Tensor, batch: int | None, replacement: bool) -> tuple[Tree, Tensor]:
    """The examples of a step and which of them count; a client with fewer than ``batch`` takes all it has.

    Args:
        batch: b; ``None``: all examples.
        replacement: draw with replacement; then b are drawn from however few there are.
    """
    if batch is None:
        return examples.columns, examples.mask
    if replacement:
        u = keys.uniform(keys.fold(key, "batch"), batch, dtype=torch.float64)
        return examples.take((u * examples.count).to(torch.int64)), torch.ones_like(u, dtype=torch.bool)
    size = min(batch, examples.length)
    rows = keys.permutation(keys.fold(key, "batch"), examples.length, examples.count)[:size]
    return examples.take(rows), torch.arange(size, device=key.device) < examples.count


def expected(algorithm: MovesStatistics, theta: Tree, data: ClientData) -> Tree:
    """s̄_i(θ), over all the client's examples.

    Raises:
        ValueError: data that the family has no density for. (Under vmap nothing can be read, and the engine tells of
            statistics that aren't finite.)
    """
    if not inside_vmap():
        algorithm.family.check(data.train.columns)
    return algorithm.family.statistics(theta, data.train.columns, data.train.mask)


def mean_log_likelihood(algorithm: MovesStatistics, theta: Tree, data: ClientData) -> Tensor:
    """−L_i(θ): the mean log-likelihood of the client's examples."""
    values = algorithm.family.log_likelihood(theta, data.train.columns)
    # where, not a product: padding may hold anything, and 0 · NaN is NaN
    return torch.where(data.train.mask, values, 0.0).sum() / data.train.count


def enrolled(algorithm: MovesStatistics, statistics: Tree, estimate: Tree) -> Tree:
    """A client's memory V_{0,i}: h_i(Ŝ_0) from its estimate s̄_i(T(Ŝ_0)), or zero; nothing where there is none."""
    if algorithm.memory == "off":
        return {}
    return {"memory": add(estimate, statistics, -1.0) if algorithm.memory == "start" else zeros_like(statistics)}


def tell(algorithm: MovesStatistics, client: Tree, statistics: Tree, estimate: Tree, key: Tensor) -> tuple[Tree, Tree]:
    """Δ = S − Ŝ − V_i is sent as Quant(Δ), and V_i ← V_i + α Quant(Δ).

    Args:
        statistics: Ŝ, as broadcast.
        estimate: S, the client's estimate of s̄_i(T(Ŝ)).
    """
    delta = add(estimate, statistics, -1.0)
    if algorithm.memory != "off":
        delta = add(delta, client["memory"], -1.0)
    sent = algorithm.compressor(_joined(delta), keys.fold(key, "quantise"))
    if algorithm.memory != "off":
        quantised = _parted(sent.decode(), statistics)
        client = client | {"memory": add(client["memory"], quantised, memory_rate(algorithm, statistics))}
    return client, {"difference": sent}


# At the server


def begin(algorithm: MovesStatistics, clients: Clients, key: Tensor) -> Tree:
    """The server's state at the start: Ŝ_0 = s̄(θ_0), T(Ŝ_0), and V_0 = Σ ρ_i V_{0,i}; uncompressed, from everybody."""
    if callable(algorithm.start):
        theta = algorithm.start(clients, keys.fold(key, "start"))
        pooled = clients.everyone.mean(algorithm.expect, {"theta": theta}, key)
    else:
        theta = tree_map(lambda t: t.to(torch.float64), algorithm.start)
        try:
            pooled = clients.everyone.mean(algorithm.expect, {"theta": theta}, key)
        except (KeyError, IndexError, RuntimeError) as error:
            if isinstance(error, DivergenceError | NoReplyError):
                raise
            shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in theta.items()) or "nothing"
            raise ValueError(
                f"{type(algorithm).__name__}'s start has {shapes}, which doesn't fit the parameters of a "
                f"{type(algorithm.family).__name__}; its documentation has their names and shapes. ({error})"
            ) from error
    statistics, outside = algorithm.family.project(pooled)
    theta = algorithm.family.maximise(statistics)
    server = {"statistics": statistics, "theta": theta, "projected": outside.to(torch.int64)}
    if algorithm.memory == "off":
        return server
    mean = clients.everyone.mean(algorithm.expect, {"theta": theta}, key) if algorithm.memory == "start" else {}
    return server | enrolled(algorithm, statistics, mean)


def expectations(clients: Clients, batch: int | None, replacement: bool, passes: int) -> int:
    """How many E[s(y, z) | y; θ] the cohort computes from a draw, with all clients' passes before the first round."""
    held = clients.sizes[clients.ids]
    before = 0 if clients.round else passes * int(clients.sizes.sum())
    if batch is None:
        return before + int(held.sum())
    return before + (batch * len(held) if replacement else int(held.clamp(max=batch).sum()))


def move(algorithm: MovesStatistics, step: Step, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
    """One step along the field: asks the cohort by ``step`` and returns the server's new state.

    H = V + p⁻¹ Σ_{i∈A} ρ_i Quant(Δ_i); Ŝ ← Ŝ + γ H; V ← V + α Σ_{i∈A} ρ_i Quant(Δ_i). Where nobody was drawn both sums
    are empty, and H = V is a step all the same. A point outside of T's domain is projected, and counted.
    """
    statistics, memory = server["statistics"], server.get("memory", zeros_like(server["statistics"]))
    total = zeros_like(statistics)
    if len(clients.ids):
        message = {"theta": server["theta"], "statistics": statistics}
        found: Tensor = clients.sum(step, message, key)["difference"]
        total = _parted(found / clients.sizes.sum(), statistics)
    p = algorithm.participation or max(len(clients.ids), 1) / clients.population
    H = add(memory, total, 1 / p)
    rate = algorithm.rate(clients.round) if callable(algorithm.rate) else algorithm.rate
    checks.above_zero(type(algorithm).__name__, **{f"rate in round {clients.round}": rate})
    statistics, outside = algorithm.family.project(add(statistics, H, rate))
    new = {
        "statistics": statistics,
        "theta": algorithm.family.maximise(statistics),
        "projected": server["projected"] + outside,
    }
    if algorithm.memory != "off":
        new["memory"] = add(memory, total, memory_rate(algorithm, statistics))
    return server | new, {"field": float(norm(H)) ** 2, "projected": int(new["projected"])}


def memory_rate(algorithm: MovesStatistics, statistics: Tree) -> float:
    """α; by default 1/(1 + ω), ω being the compressor's for vectors of this many statistics."""
    if algorithm.alpha is not None:
        return algorithm.alpha
    return 1 / (1 + algorithm.compressor.omega(sum(t.numel() for t in leaves(statistics))))


# For callbacks: what costs a pass over all data, and is no part of the algorithm


def field(algorithm: MovesStatistics, server: Tree, clients: Clients) -> Tree:
    """h(Ŝ) = s̄(T(Ŝ)) − Ŝ of all clients' data, by an evaluation: no state changes, no traffic is counted."""
    replies = clients.everyone.evaluate(algorithm.expect, {"theta": server["theta"]}, keys.key(0))
    share = replies.weights / replies.weights.sum()
    pooled = tree_map(lambda t: torch.tensordot(share, t, dims=1), replies.value)
    return add(pooled, server["statistics"], -1.0)


def objective(algorithm: MovesStatistics, server: Tree, clients: Clients) -> float:
    """F(θ) = −Σ ρ_i (mean log-likelihood of client i) + R(θ) at the server's θ, by an evaluation."""
    replies = clients.everyone.evaluate(algorithm.score, {"theta": server["theta"]}, keys.key(0))
    share = replies.weights / replies.weights.sum()
    return float(algorithm.family.penalty(server["theta"]) - (share * replies.value["log_likelihood"]).sum())


def _joined(tree: Tree) -> Tensor:
    """All leaves as one vector."""
    return torch.cat([t.reshape(-1) for t in leaves(tree)])


def _parted(vector: Tensor, like: Tree) -> Tree:
    """The inverse of :func:`_joined`."""
    parts = iter(vector.split([t.numel() for t in leaves(like)]))
    return tree_map(lambda t: next(parts).reshape(t.shape), like)
