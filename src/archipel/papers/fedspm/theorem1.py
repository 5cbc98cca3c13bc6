"""FedSPM's Theorem 1 in numbers: the bound and what it bounds, on a problem whose constants are all known.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Theorem 1, with the constants of its proof (App. C.6.3).

Client i holds f_i(φ) = L/2 ‖φ − a_i‖²; its stochastic gradient is L (φ − a_i) + ω with ω normal, E ω = 0 and E‖ω‖² =
σ². So f_i is L-smooth, and with ā = Σ ρ_i a_i

    Σ ρ_i ‖∇f_i(φ)‖² = L² Σ ρ_i ‖a_i − ā‖² + ‖∇f(φ)‖²:  Γ₀ is the first term and Γ₁ = 1, with equality.

Surrogate and exact objective are the same here: Γ₂ = 1 and δ = ε = 0. What is tested is the theorem's account of the
optimiser, local SGD with momentum; nothing is tested of the bridge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.algorithms.fedavg import FedAvg
from archipel.core import keys
from archipel.core.trees import Tree
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.engines.setting import Setting
from archipel.fit import fit
from archipel.learning.sgd import SGD, Batch
from archipel.runs.callbacks import Moment

SIZES = (1, 2, 3)
"""n_i, so that ρ_i = 1/6, 1/3, 1/2."""
DIMENSION, REPETITIONS = 4, 256
SMOOTHNESS, NOISE, STEPS, RATE = 1.0, 60.0, 4, 0.1
"""L, σ², E, and the c of η = c/√T."""
START = 2.0
"""‖φ^(0) − ā‖."""
MOMENTA = (0.0, 0.3, 0.6, 0.8, 0.95)
ROUNDS = (16, 64, 256)


@dataclass(frozen=True)
class Point:
    """One run.

    Args:
        momentum: μ.
        rounds: T.
        measured: mean over t < T and repetitions of ‖∇f(φ^(t))‖².
        error: its standard error over repetitions.
        exact: its expectation, from the recursion for quadratics.
        gap, noise, drift: the bound's three terms.
    """

    momentum: float
    rounds: int
    measured: float
    error: float
    exact: float
    gap: float
    noise: float
    drift: float

    @property
    def bound(self) -> float:
        """The right-hand side of the last inequality of App. C.6.3."""
        return self.gap + self.noise + self.drift


def minima() -> Tensor:
    """Return the a_i, float64 of shape ``(m, d)``, with ā = 0."""
    drawn = keys.normal(keys.key(1), len(SIZES), DIMENSION, dtype=torch.float64)
    return drawn - shares() @ drawn


def shares() -> Tensor:
    """Return the ρ_i, shape ``(m,)``."""
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    return sizes / sizes.sum()


def factors(momentum: float, steps: int) -> tuple[float, float]:
    """Return a_E = Σ_e μ_(E,e) and s_E = Σ_e μ_(E,e)², with μ_(E,e) = (1 − μ^(E−e))/(1 − μ).

    >>> factors(0.0, 5)
    (5.0, 5.0)
    >>> factors(0.5, 2)  # 1.5 + 1, 2.25 + 1
    (2.5, 3.25)
    """
    weights = [(1 - momentum ** (steps - e)) / (1 - momentum) for e in range(steps)]
    return sum(weights), sum(weight**2 for weight in weights)


def bound(momentum: float, rounds: int) -> tuple[float, float, float]:
    """Return the bound's terms 4 (F⁰ − F*)/(a_E η T), 4 s_E L η σ² Σρ_i²/a_E and 12 L² η² (a_E² Γ₀ + s_E σ²).

    Raises:
        ValueError: η does not satisfy the theorem's condition η L a_E < min(1/3, 1/√(3 + 8 Γ₁)).
    """
    a, s = factors(momentum, STEPS)
    L, eta = SMOOTHNESS, RATE / math.sqrt(rounds)
    if not eta * L * a < min(1 / 3, 1 / math.sqrt(3 + 8)):
        raise ValueError(
            f"η L a_E is {eta * L * a:.3g} with μ = {momentum} and T = {rounds}; the theorem requires less than 0.301."
        )
    rho = shares()
    heterogeneity = float(L**2 * (rho @ minima().square().sum(1)))
    gap = 4 * (L / 2 * START**2) / (a * eta * rounds)
    noise = 4 * s * L * eta * NOISE / a * float(rho.square().sum())
    return gap, noise, 12 * L**2 * eta**2 * (a**2 * heterogeneity + s * NOISE)


def exact(momentum: float, rounds: int) -> float:
    """Return the expected mean of ‖∇f(φ^(t))‖² over t < T: a round multiplies φ − ā by P and adds noise of variance V.

    A local run is linear: with u the distance to a_i, d ← μ d + L u + ω and u ← u − η d.
    """
    eta = RATE / math.sqrt(rounds)

    def end(u: float, pulses: Sequence[float]) -> float:
        d = 0.0
        for pulse in pulses:
            d = momentum * d + SMOOTHNESS * u + pulse
            u -= eta * d
        return u

    unit = torch.eye(STEPS, dtype=torch.float64).tolist()
    factor = end(1.0, [0.0] * STEPS)
    variance = NOISE * float(shares().square().sum()) * sum(end(0.0, pulse) ** 2 for pulse in unit)
    square, total = START**2, 0.0
    for _ in range(rounds):
        total += SMOOTHNESS**2 * square
        square = factor**2 * square + variance
    return total / rounds


@dataclass(frozen=True)
class Noisy:
    """The task: R independent copies of the problem; an example's ``y`` is a_i and its ``x`` is ω, ``(R, d)`` each."""

    def init(self, key: Tensor) -> Tree:
        start = torch.zeros(REPETITIONS, DIMENSION, dtype=torch.float64)
        start[:, 0] = START
        return {"phi": start}

    def loss(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        phi = params["phi"]
        squares = SMOOTHNESS / 2 * (phi - batch["y"]).square().sum((1, 2))
        return squares + (phi * batch["x"]).sum((1, 2)), {}

    def predict(self, params: Tree, x: Tensor) -> Tensor:
        phi: Tensor = params["phi"]
        return phi[None].expand(len(x), -1, -1)


def fresh(x: Tensor, key: Tensor) -> Tensor:
    """Draw a new ω at every step, in the place of an augmentation."""
    return math.sqrt(NOISE / DIMENSION) * keys.normal(key, *x.shape, dtype=torch.float64)


def federation() -> Federation:
    """Return clients that hold n_i copies of one example, so that batches of one are exact except for ω."""
    clients = []
    for i, (size, a) in enumerate(zip(SIZES, minima(), strict=True)):
        y = a.expand(size, REPETITIONS, DIMENSION).contiguous()
        clients.append(Client(f"client-{i}", {"x": torch.zeros_like(y), "y": y}, {"x": y[:0], "y": y[:0]}))
    inputs = Inputs("series", (REPETITIONS, DIMENSION), 1.0, (0.0,) * DIMENSION, (1.0,) * DIMENSION)
    return Federation("theorem 1", tuple(clients), inputs, None)


def point(momentum: float, rounds: int, seed: int = 0) -> Point:
    """Run :class:`archipel.FedAvg` with :class:`archipel.SGD`, and return measured values and bound."""
    terms = bound(momentum, rounds)
    local = SGD(lr=RATE / math.sqrt(rounds), steps=STEPS, batch=1, momentum=momentum, augment=fresh)
    phis = [Noisy().init(keys.key(0))["phi"]]

    def keep(moment: Moment) -> None:
        phis.append(moment.server["model"]["phi"])

    fit(
        FedAvg(Noisy(), local),
        federation(),
        rounds=rounds,
        seed=seed,
        setting=Setting(engine="batched"),
        callbacks=[keep],
    )
    squares = SMOOTHNESS**2 * torch.stack(phis[:-1]).square().sum(2).mean(0)  # over t; ā = 0
    error = float(squares.std() / math.sqrt(REPETITIONS))
    return Point(momentum, rounds, float(squares.mean()), error, exact(momentum, rounds), *terms)
