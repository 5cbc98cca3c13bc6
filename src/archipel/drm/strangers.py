"""Strangers: queries that resemble no client's data, detected with a promised rate of false alarms.

Density ratios alone can't detect them. A fitted ratio model tells under which client a query is more probable, not
whether it is probable under any. Replacing (γ, ξ) by (γ + a, ξ + b) for all populations changes no posterior, but
multiplies every dP_i/dG(x) by exp(a + bᵀh(x)); and far out on one client's side that client's posterior is 1. A density
also needs the baseline: p_i(x) = dP_i/dG(x) · g(x). Here each client's density is a normal distribution fitted to the
features of its data, and a query is a stranger if its density is small under every client.

K. Lee et al.: A simple unified framework for detecting out-of-distribution samples and adversarial attacks, NeurIPS
2018 (normal densities of features); V. Vovk, A. Gammerman, G. Shafer: Algorithmic learning in a random world, 2005
(p-values from held-out scores).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from archipel.algorithms.fedspm import FedSPM
from archipel.core.checks import kind_of, one_of
from archipel.data.arrays import Values
from archipel.data.federation import Federation
from archipel.learning.networks import Copies
from archipel.runs.answers import PIECE
from archipel.runs.run import Run

Embed = Callable[[Tensor], Tensor]
"""Examples as the federation stores them, (n, *shape), to features (n, d)."""


def p_values(held_out: Tensor, scores: Tensor) -> Tensor:
    """Compute (1 + held-out scores at most as large)/(1 + held-out scores): small for an unusually low score.

    If a query is exchangeable with the held-out ones, its p-value is at most u with probability at most u.

    Args:
        held_out: ``(N,)`` scores of examples that weren't used for fitting.
        scores: ``(n,)`` of queries.

    Returns:
        ``(n,)`` float64, between 1/(N + 1) and 1.

    Raises:
        ValueError: scores that are NaN.

    >>> p_values(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.5]))
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    if bool(held_out.isnan().any()) or bool(scores.isnan().any()):
        raise ValueError("scores hold NaN. Check the queries and the encoders' outputs for NaN.")
    ordered = held_out.sort().values
    below = torch.searchsorted(ordered, scores.to(ordered.dtype).contiguous(), right=True)
    return (1 + below).to(torch.float64) / (1 + len(ordered))


@dataclass(frozen=True, eq=False)
class Watch:
    """Tells which queries to a trained run resemble no client's data.

    The score of a query is max_i log N(z(x); m_i, S_i): z what the run's shared encoders make of it, m_i and S_i the
    mean and covariance of z over client i's training examples, S_i drawn towards the mean covariance within clients as
    if by d further examples. Its p-value compares the score with those of held-out examples of all clients.

    Client i has to reveal n_i, Σ_j z_j and Σ_j z_j z_jᵀ, and the score of each held-out example.

    The promise is a rate over all clients' queries together, and for queries like the held-out ones: of these, at
    level 0.05, one in twenty is held to be strange. It says nothing of how many strangers are told: those that the
    encoders map to where clients' data are can't be.

    Args:
        run: trained.
        embed: z.
        normals: N(m_i, S_i), a batch of m.
        held_out: ``(N,)`` scores of held-out examples.

    >>> from archipel.learning.sgd import SGD
    >>> from archipel.algorithms.fedspm import FedSPM
    >>> from archipel.data.federation import Federation
    >>> from archipel.learning.networks import Network
    >>> from archipel.learning.tasks import classification
    >>> from archipel.fit import fit
    >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 4, y), (x - 4, 1 - y)], validation=0.2)
    >>> block = SGD(lr=0.5, steps=10)
    >>> plain = torch.nn.Identity()
    >>> spm = FedSPM(classification(plain, islands), Network(plain, islands.inputs), 1, block, block)
    >>> watch = Watch.of(fit(spm, islands, rounds=5), islands)
    >>> watch.strangers([[4.0, 4.0], [4.0, -4.0], [-4.0, -4.0]]).tolist()
    [False, True, False]
    """

    run: Run
    embed: Embed
    normals: MultivariateNormal
    held_out: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        run: Run,
        federation: Federation,
        held_out: Literal["validation", "test"] = "validation",
        embed: Embed | None = None,
    ) -> Watch:
        """Fits densities to clients' training examples and keeps the scores of held-out ones.

        Args:
            run: trained on the federation.
            federation: with the held-out examples.
            held_out: the split whose scores are compared with. With "test" no test example is left to check the rate
                of false alarms on.
            embed: z; ``None``: the outputs of FedSPM's two encoders, side by side.

        Raises:
            ValueError: no examples are held out.
            TypeError: an algorithm whose encoders aren't known, and no ``embed``.
        """
        one_of("Watch", "held_out", held_out, "validation", "test")
        parts = [client.splits.get(held_out, {}).get("x", torch.zeros(0)) for client in federation.clients]
        if sum(len(part) for part in parts) == 0:
            raise ValueError(
                f"{federation.name!r} holds no {held_out} examples, which false alarms are counted on. Divide it with "
                "validation=0.1, say, or give held_out='test'."
            )
        z = encoders(run) if embed is None else embed
        moments = [_moments(_pieces(z, client.train["x"])) for client in federation.clients]
        normals = _normals(moments)
        scores = torch.cat([_score(normals, _pieces(z, part)) for part in parts if len(part)])
        return cls(run, z, normals, scores)

    @torch.no_grad()
    def scores(self, x: Values) -> Tensor:
        """``(n,)`` float64 max_i log N(z(x); m_i, S_i) of raw queries: the lower, the stranger."""
        return _score(self.normals, _pieces(self.embed, self.run.facts.inputs.prepare(x)))

    def p_values(self, x: Values) -> Tensor:
        """``(n,)`` float64: the share of held-out examples that are at least as strange."""
        return p_values(self.held_out, self.scores(x))

    def strangers(self, x: Values, level: float = 0.05) -> Tensor:
        """``(n,)`` bool: whether to abstain, with false alarms at a rate of at most ``level``.

        Raises:
            ValueError: a level that isn't between 0 and 1, or below what the held-out examples can tell.
        """
        least = 1 / (1 + len(self.held_out))
        if not least <= level < 1:
            raise ValueError(
                f"level is {level}; it is a rate of false alarms below 1, and with {len(self.held_out)} held-out "
                f"examples at least {least:.2g}."
            )
        return self.p_values(x) <= level


def encoders(run: Run) -> Embed:
    """Z of a FedSPM run: the outputs of h and g, of all components if each has its own.

    Raises:
        TypeError: another algorithm.
    """
    algorithm, server = run.algorithm, run.server
    if not isinstance(algorithm, FedSPM):
        raise TypeError(
            f"Watch knows the encoders of FedSPM; given {kind_of(algorithm)}. Give embed, a function of examples "
            "(n, *shape) that returns features (n, d)."
        )
    shared = algorithm.encoders == "shared"
    networks = {"ratio": algorithm.router, "predictive": algorithm.task.encoder}
    copies = {part: Copies(network, algorithm.components, shared) for part, network in networks.items()}

    def embed(x: Tensor) -> Tensor:
        outputs = [copies[p](server[p]["encoder"], server[p].get("buffers", {}), x)[0] for p in copies]
        return torch.cat([(z[:, :1] if shared else z).flatten(1) for z in outputs], dim=1)

    return embed


def _pieces(embed: Embed, x: Tensor) -> Tensor:
    return torch.cat([embed(piece).to(torch.float64) for piece in x.split(PIECE)])


def _moments(z: Tensor) -> tuple[int, Tensor, Tensor]:
    """Compute what a client sends: n, Σz and Σzzᵀ."""
    return len(z), z.sum(0), z.T @ z


def _normals(moments: list[tuple[int, Tensor, Tensor]]) -> MultivariateNormal:
    n = torch.tensor([count for count, _, _ in moments], dtype=torch.float64)[:, None, None]
    means = torch.stack([total / count for count, total, _ in moments])
    scatter = torch.stack([squares for _, _, squares in moments]) - n * means[:, :, None] * means[:, None]
    d = means.shape[1]
    within = scatter.sum(0) / n.sum()
    floor = 1e-6 * within.diagonal().mean() * torch.eye(d, dtype=torch.float64)  # features that don't vary
    return MultivariateNormal(means, (scatter + d * within) / (n + d) + floor)


def _score(normals: MultivariateNormal, z: Tensor) -> Tensor:
    found: Tensor = normals.log_prob(z[:, None]).max(dim=1).values
    return found
