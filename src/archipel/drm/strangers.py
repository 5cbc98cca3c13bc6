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
from archipel.data.inputs import Inputs
from archipel.learning.networks import Copies
from archipel.runs.answers import PIECE
from archipel.runs.run import Run

Embed = Callable[[Tensor], Tensor]
"""A function of examples as the federation stores them, (n, *shape), to features (n, d)."""


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
    held_out, scores = held_out.to(torch.float64), scores.to(torch.float64)
    if bool(held_out.isnan().any()) or bool(scores.isnan().any()):
        raise ValueError("scores hold NaN. Check the queries and the encoders' outputs for NaN.")
    ordered = held_out.sort().values
    below = torch.searchsorted(ordered, scores.contiguous(), right=True)
    return (1 + below).to(torch.float64) / (1 + len(ordered))


@dataclass(frozen=True, eq=False)
class Watch:
    """A detector of queries to a trained run that resemble no client's data.

    The score of a query is max_i log N(z(x); m_i, S_i). z(x) are the outputs of the run's shared encoders; for tables
    the standardised columns are appended, since an encoder may map impossible values to usual features (LayerNorm
    removes the scale of what it is given). m_i and S_i are the mean and covariance of z over client i's training
    examples; S_i is shrunk towards the mean covariance within clients with the weight of d examples. The p-value of a
    query compares its score with those of held-out examples of all clients.

    Client i reveals n_i, Σ_j z_j and Σ_j z_j z_jᵀ, and the score of each held-out example.

    The promise is a rate over the queries of all clients together, if they are distributed like the held-out examples:
    at level 0.05, one in twenty of them is called a stranger. The share of strangers that are detected isn't promised:
    images that the encoders map to where clients' data are go unnoticed.

    Args:
        run: a trained run.
        embed: z, a function of stored examples ``(n, *shape)`` that returns ``(n, d)``.
        normals: N(m_i, S_i), a batch of m.
        held_out: ``(N,)`` scores of held-out examples.

    >>> from archipel import SGD, FedSPM, Federation, Network, classification, fit
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
        """Fit densities to clients' training examples, and keep the scores of held-out examples.

        Args:
            run: trained on the federation.
            federation: with held-out examples.
            held_out: the split that queries are compared with. With "test", no test example is left to check the rate
                of false alarms on.
            embed: features of stored examples, ``(n, *shape)`` to ``(n, d)``; ``None``: the outputs of FedSPM's two
                encoders, side by side. For tables the standardised columns are appended to either.

        Raises:
            ValueError: no examples are held out.
            TypeError: an algorithm whose encoders aren't known, and no ``embed``.
        """
        one_of("Watch", "held_out", held_out, "validation", "test")
        parts = [client.splits.get(held_out, {}).get("x", torch.zeros(0)) for client in federation.clients]
        if sum(len(part) for part in parts) == 0:
            raise ValueError(
                f"{federation.name!r} holds no {held_out} examples, from which the rate of false alarms is known. "
                "Divide it with validation=0.1, for example, or give held_out='test'."
            )
        z = encoders(run) if embed is None else embed
        z = _beside_columns(z, run.facts.inputs) if run.facts.inputs.kind == "table" else z
        moments = [_moments(_pieces(z, client.train["x"])) for client in federation.clients]
        normals = _normals(moments)
        scores = torch.cat([_score(normals, _pieces(z, part)) for part in parts if len(part)])
        return cls(run, z, normals, scores)

    @torch.no_grad()
    def scores(self, x: Values) -> Tensor:
        """Compute max_i log N(z(x); m_i, S_i) of raw queries, ``(n,)`` float64: the lower, the stranger."""
        return _score(self.normals, _pieces(self.embed, self.run.facts.inputs.prepare(x)))

    def p_values(self, x: Values) -> Tensor:
        """Compute the share of held-out examples that are at least as strange as each query, ``(n,)`` float64."""
        return p_values(self.held_out, self.scores(x))

    def strangers(self, x: Values, level: float = 0.05) -> Tensor:
        """Tell which queries to abstain from, ``(n,)`` bool, with false alarms at a rate of at most ``level``.

        Raises:
            ValueError: a level that isn't between 0 and 1, or too small for the number of held-out examples.
        """
        least = 1 / (1 + len(self.held_out))
        if not least <= level < 1:
            raise ValueError(
                f"level is {level}; give a rate of false alarms below 1 and, with {len(self.held_out)} held-out "
                f"examples, of at least {least:.2g}."
            )
        return self.p_values(x) <= level

    def __repr__(self) -> str:
        """Describe the detector without scores of clients' examples."""
        m, d = self.normals.loc.shape
        return f"Watch({kind_of(self.run.algorithm)}, {m} clients, {d} features, {len(self.held_out)} held-out scores)"


def encoders(run: Run) -> Embed:
    """Return z of a FedSPM run: the outputs of h and g, of all components if each has its own encoder.

    Raises:
        TypeError: another algorithm.
    """
    algorithm, server = run.algorithm, run.server
    if not isinstance(algorithm, FedSPM):
        raise TypeError(
            f"Watch knows the encoders of FedSPM only; given {kind_of(algorithm)}. Pass embed, a function of examples "
            "(n, *shape) that returns features (n, d)."
        )
    shared = algorithm.encoders == "shared"
    networks = {"ratio": algorithm.router, "predictive": algorithm.task.encoder}
    copies = {part: Copies(network, algorithm.components, shared) for part, network in networks.items()}

    def embed(x: Tensor) -> Tensor:
        outputs = [copies[p](server[p]["encoder"], server[p].get("buffers", {}), x)[0] for p in copies]
        return torch.cat([(z[:, :1] if shared else z).flatten(1) for z in outputs], dim=1)

    return embed


def _beside_columns(embed: Embed, inputs: Inputs) -> Embed:
    """Append a table's standardised columns, in float64, to its features."""

    def both(x: Tensor) -> Tensor:
        return torch.cat([embed(x).to(torch.float64), inputs.normalise(x.to(torch.float64))], dim=1)

    return both


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
