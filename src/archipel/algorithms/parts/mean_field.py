"""The base of federated EM in the space of statistics: steps along a mean field, from compressed differences.

The derivation is in docs/methods/federated-em.md. Client i holds n_i examples and has the weight ρ_i = n_i/Σ n_i.
Statistics are means over examples, so that ρ-weighted means over clients are statistics of the pooled data:

    s̄ = Σ_i ρ_i s̄_i,    h = Σ_i ρ_i h_i    with    h_i(s) = s̄_i(T(s)) − s.

EM looks for a root of the mean field h; s̄ are the expected complete-data statistics, and T is the M-step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, DivergenceError, Info, NoReplyError, Step
from archipel.compress.compressor import Compressor, Identity, check_unbiased
from archipel.core import checks, keys
from archipel.core.checks import Interval, Positive, PositiveInt
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import Tree, add, from_vector, leaves, norm, tree_map, vector, zeros_like
from archipel.core.vmap import inside_vmap
from archipel.families.family import Centred, Family, step_inside
from archipel.families.parameters import check_start, unfitting

Rate = float | Callable[[int], float]
Start = Tree | Callable[[Clients, Tensor], Tree]


@dataclass(frozen=True, eq=False)
class MeanFieldEM(Algorithm):
    """Settings, states and the server's half of a round; a method adds how its clients estimate s̄_i(T(Ŝ)).

    The server holds ``{"statistics": Ŝ, "theta": T(Ŝ), "projected", "memory": V}``, a client ``{"memory": V_i}``.

    Args:
        family: the model: its statistics s̄, its M-step T, its penalty R.
        start: θ_0, parameters of the family; or a function ``(clients, key) → θ_0``.
        compressor: Quant, unbiased; ``Identity()`` sends statistics as they are.
        rate: γ, above 0; or a function of the round's number (from 0), such as
            :class:`archipel.learning.schedules.Decay`.
        alpha: α, above 0; ``None``: 1/(1 + ω).
        batch: b, examples that each client draws a round; ``None``: all of them.
        replacement: draw minibatches with replacement.
        memory: V_{0,i}: ``"start"`` for h_i(Ŝ_0), ``"zero"``; or ``"off"``: no memories, V = 0 in all rounds.
        participation: p, the share of clients that take part on average (of :class:`archipel.Bernoulli` cohorts);
            ``None``: the share that the round's cohort has, which is p for cohorts of a fixed size. Cohorts must be
            drawn uniformly, because H weights clients by their examples already.

    Raises:
        ValueError: a setting out of its range, or a biased compressor.
        TypeError: a family, start or compressor of another type.
    """

    family: Family
    start: Start
    compressor: Compressor = Identity()
    rate: Rate = 1.0
    alpha: Positive | None = None
    batch: PositiveInt | None = None
    replacement: bool = False
    memory: Literal["start", "zero", "off"] = "start"
    participation: Annotated[float, Interval(0, 1, "(]")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        if not callable(self.rate):
            checks.above_zero(owner, rate=self.rate)
        if not callable(self.start):
            check_start(f"{owner}'s start", self.family, self.start)
        check_unbiased(owner, self.compressor)
        if self.alpha is not None and self.memory == "off":
            raise ValueError(f"{owner}'s alpha moves the memories, and memory='off' keeps none: leave one of them out.")

    # The server

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        """Return Ŝ_0 = s̄(θ_0), T(Ŝ_0) and V_0 = Σ ρ_i V_{0,i}; replies come from everybody, uncompressed."""
        theta = self._theta_0(clients, key)
        try:
            pooled = clients.everyone.mean(self.expect, {"theta": theta}, key)
        except (KeyError, IndexError, RuntimeError) as error:
            if callable(self.start) or isinstance(error, DivergenceError | NoReplyError):
                raise
            raise unfitting(f"{type(self).__name__}'s start", self.family, theta, error) from error
        statistics, outside = self.family.project(pooled)
        theta = self.family.maximise(statistics)
        if isinstance(self.family, Centred):
            self.family.check_reach(theta, statistics)
        server = {"statistics": statistics, "theta": theta, "projected": outside.to(torch.int64)}
        mean = clients.everyone.mean(self.expect, {"theta": theta}, key) if self.memory == "start" else None
        return server | self._first_memory(statistics, mean)

    def _theta_0(self, clients: Clients, key: Tensor) -> Tree:
        if callable(self.start):
            return self.start(clients, keys.fold(key, "start"))
        return tree_map(lambda t: t.to(torch.float64), self.start)

    def _first_memory(self, statistics: Tree, estimate: Tree | None) -> Tree:
        """``{"memory": h(Ŝ_0)}`` from an estimate of s̄(T(Ŝ_0)), or zero; ``{}`` where there are no memories."""
        if self.memory == "off":
            return {}
        return {"memory": zeros_like(statistics) if estimate is None else add(estimate, statistics, -1.0)}

    def move(self, step: Step, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        """Take one step along the field, from the compressed differences that ``step`` returns at the cohort.

        H = V + p⁻¹ Σ_{i∈A} ρ_i Quant(Δ_i); Ŝ ← Ŝ + γ H; V ← V + α Σ_{i∈A} ρ_i Quant(Δ_i). If nobody is drawn, both
        sums are empty and H = V. A step out of T's domain is shortened, and counted.
        """
        statistics, memory = server["statistics"], server.get("memory", zeros_like(server["statistics"]))
        total = zeros_like(statistics)
        if len(clients.ids):
            message = {"theta": server["theta"], "statistics": statistics}
            found: Tensor = clients.sum(step, message, key)["difference"]
            total = from_vector(found / clients.sizes.sum(), statistics)
        p = self.participation or max(len(clients.ids), 1) / clients.population
        H = add(memory, total, 1 / p)
        rate = self.rate(clients.round) if callable(self.rate) else self.rate
        checks.above_zero(type(self).__name__, **{f"rate in round {clients.round}": rate})
        statistics, outside = step_inside(self.family, statistics, H, rate)
        new = {
            "statistics": statistics,
            "theta": self.family.maximise(statistics),
            "projected": server["projected"] + outside,
        }
        if self.memory != "off":
            new["memory"] = add(memory, total, self._alpha(statistics))
        return server | new, {"field": float(norm(H)) ** 2, "projected": int(new["projected"])}

    def expectations(self, clients: Clients, batch: int | None) -> int:
        """Count the E[s(y, z) | y; θ] of the cohort; in the first round also those of the start."""
        held = clients.sizes[clients.ids]
        first = 0 if clients.round else self._first_passes() * int(clients.sizes.sum())
        if batch is None:
            return first + int(held.sum())
        return first + (batch * len(held) if self.replacement else int(held.clamp(max=batch).sum()))

    def _first_passes(self) -> int:
        """Count the passes over all data before the first round: for Ŝ_0, V_0, and the clients' V_{0,i}."""
        return 3 if self.memory == "start" else 1

    def _alpha(self, statistics: Tree) -> float:
        """α, by default 1/(1 + ω) with the ω of vectors of this many statistics."""
        if self.alpha is not None:
            return self.alpha
        return 1 / (1 + self.compressor.omega(sum(t.numel() for t in leaves(statistics))))

    # The clients

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        server = message["server"]
        estimate = self.expected(server["theta"], data) if self.memory == "start" else None
        return self._first_memory(server["statistics"], estimate)

    def own(self, client: Tree, theta: Tree) -> Tree:
        """θ as this client has it: with its own mixing weights, where a method has personal ones."""
        return theta

    def tell(self, client: Tree, message: Tree, estimate: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """Send Quant(Δ) with Δ = S − Ŝ − V_i, S being the client's estimate; V_i ← V_i + α Quant(Δ)."""
        statistics = message["statistics"]
        delta = add(estimate, statistics, -1.0)
        if self.memory != "off":
            delta = add(delta, client["memory"], -1.0)
        sent = self.compressor(vector(delta), keys.fold(key, "quantise"))
        if self.memory != "off":
            moved = add(client["memory"], from_vector(sent.decode(), statistics), self._alpha(statistics))
            client = client | {"memory": moved}
        return client, {"difference": sent}

    def minibatch(self, examples: Examples, key: Tensor) -> tuple[Tree, Tensor]:
        """Draw b examples, and say which rows count: a client that holds fewer takes all it has."""
        return examples.draw(self.batch, keys.fold(key, "batch"), self.replacement)

    def expected(self, theta: Tree, data: ClientData) -> Tree:
        """s̄_i(θ) over all the client's examples.

        Raises:
            ValueError: data that the family has no density for. (Values can't be read under vmap; there the engine
                reports statistics that aren't finite.)
        """
        if not inside_vmap():
            self.family.check(data.train.columns)
        return self.family.statistics(theta, data.train.columns, data.train.mask)

    def expect(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply s̄_i(θ), over all the client's examples."""
        return client, self.expected(self.own(client, message["theta"]), data)

    def score(self, client: Tree, message: Tree, data: ClientData, key: Tensor) -> tuple[Tree, Tree]:
        """Reply the mean log-likelihood of the client's examples at θ."""
        values = self.family.log_likelihood(self.own(client, message["theta"]), data.train.columns)
        # where, not a product: padding may hold anything, and 0 · NaN is NaN
        return client, {"log_likelihood": torch.where(data.train.mask, values, 0.0).sum() / data.train.count}

    # For callbacks: evaluations on all data, which change no state and count as no traffic

    def field(self, server: Tree, clients: Clients) -> Tree:
        """h(Ŝ) = s̄(T(Ŝ)) − Ŝ of all clients' data."""
        replies = clients.everyone.evaluate(self.expect, {"theta": server["theta"]}, keys.key(0))
        share = replies.weights / replies.weights.sum()
        return add(tree_map(lambda t: torch.tensordot(share, t, dims=1), replies.value), server["statistics"], -1.0)

    def objective(self, server: Tree, clients: Clients) -> float:
        """F(θ) = −Σ ρ_i (mean log-likelihood of client i) + R(θ) at the server's θ."""
        replies = clients.everyone.evaluate(self.score, {"theta": server["theta"]}, keys.key(0))
        share = replies.weights / replies.weights.sum()
        return float(self.family.penalty(server["theta"]) - (share * replies.value["log_likelihood"]).sum())
