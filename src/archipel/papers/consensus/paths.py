"""Personal models between local optima and consensus, as every method's penalty grows, on one quadratic problem.

Three clients hold f_k(θ) = ½ (θ − a_k)ᵀ A_k (θ − a_k) in the plane, with matrices that don't commute, so that paths
bend. For each method and each of a few penalties the library's algorithm is run to its fixed point with exact
gradients; beside it stands what theory says of that point, computed from A and a alone. ``archipel bench paths`` draws
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import root
from torch import Tensor

from archipel.algorithm import Algorithm
from archipel.algorithms.apfl import APFL
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fpfc import FPFC
from archipel.algorithms.l2sgd import L2SGD
from archipel.algorithms.pfedmac import PFedMac
from archipel.algorithms.pfedme import PFedMe
from archipel.core import keys
from archipel.engines.carrier import client_data
from archipel.fit import fit
from archipel.learning.quadratic import Quadratic, quadratic_federation
from archipel.learning.sgd import SGD
from archipel.runs.run import Run

Points = NDArray[np.floating[Any]]
"""``(3, 2)``: a point of the plane for each client."""

MINIMA: Points = np.array([[-1.0, 0.3], [-0.4, 1.0], [1.2, -0.4]])
"""a_k: two near one another, and one that is not."""
ROUNDED, FLAT = 0.02, 3.7
"""FPFC's ξ and a."""
RATE, EARLY = 0.5, 20
"""APFL's learning rate, and rounds after which it is looked at before it has converged."""


def turned(degrees: float, *curvatures: float) -> Points:
    """A symmetric matrix with these eigenvalues, its axes turned.

    >>> turned(90, 1, 4).round(6).tolist()
    [[4.0, -0.0], [-0.0, 1.0]]
    """
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    axes = np.array([[c, -s], [s, c]])
    found: Points = axes @ np.diag(curvatures) @ axes.T
    return found


CURVATURES: NDArray[np.float64] = np.stack([turned(20, 0.8, 3.0), turned(-50, 0.7, 2.5), turned(75, 1.0, 3.2)])
"""A_k, ``(3, 2, 2)``."""
ONE = np.eye(2)


@dataclass(frozen=True)
class Path:
    """A method's personal models as its penalty grows.

    Args:
        name: the method's.
        symbol: of its penalty, in TeX.
        penalties: at which it is run.
        run: penalty → where the algorithm ends, a point a client.
        theory: penalty → where it should.
        note: what is to be seen.
        ends: the range of penalties over which theory is drawn.
        early: penalty → where the algorithm, and its recursion, are after :data:`EARLY` rounds, where that differs.
    """

    name: str
    symbol: str
    penalties: tuple[float, ...]
    run: Callable[[float], Points]
    theory: Callable[[float], Points]
    note: str
    ends: tuple[float, float]
    early: tuple[Callable[[float], Points], Callable[[float], Points]] | None = None

    def curve(self, count: int = 120) -> NDArray[np.float64]:
        """``(count, 3, 2)``: theory between the ends, evenly in the penalty's logarithm."""
        return np.stack([self.theory(float(penalty)) for penalty in np.geomspace(*self.ends, count)])


# What theory says, of A and a alone


def optimum() -> Points:
    """The consensus (Σ A)⁻¹ Σ A a, ``(2,)``."""
    return meeting(CURVATURES)


def meeting(maps: Points) -> Points:
    """The θ with Σ N_k (θ − a_k) = 0."""
    found: Points = np.linalg.solve(maps.sum(0), np.einsum("kij,kj->i", maps, MINIMA))
    return found


def proximal_points(penalty: float, centre: Points) -> Points:
    """(A_k + λ)⁻¹ (A_k a_k + λ centre)."""
    right = np.einsum("kij,kj->ki", CURVATURES, MINIMA) + penalty * centre
    found: Points = np.linalg.solve(CURVATURES + penalty * ONE, right[..., None])[..., 0]
    return found


def envelopes(penalty: float) -> Points:
    """Personal models of L2SGD, FedProx and pFedMe: proximal points of the θ with Σ M_k (θ − a_k) = 0."""
    maps: Points = np.linalg.solve(CURVATURES + penalty * ONE, CURVATURES)
    return proximal_points(penalty, meeting(maps))


def about_the_optimum(penalty: float) -> Points:
    """Ditto's: proximal points of the consensus, which they don't move."""
    return proximal_points(penalty, optimum())


def outwards(penalty: float) -> Points:
    """pFedMac's: a_k + λ A_k⁻¹ θ with θ = (I − λ · mean A⁻¹)⁻¹ · mean a."""
    inverses = np.linalg.inv(CURVATURES)
    theta = np.linalg.solve(ONE - penalty * inverses.mean(0), MINIMA.mean(0))
    found: Points = MINIMA + penalty * np.einsum("kij,j->ki", inverses, theta)
    return found


def largest_correlation() -> float:
    """The λ up to which pFedMac's objective has a minimum, 1/λmax(mean A⁻¹)."""
    return float(1 / np.linalg.eigvalsh(np.linalg.inv(CURVATURES).mean(0)).max())


def own_optima(alpha: float) -> Points:
    """APFL's mixture: every client's own optimum, whatever α above 0."""
    return MINIMA if alpha > 0 else np.tile(optimum(), (3, 1))


def mixtures_early(alpha: float) -> Points:
    """APFL's mixtures after :data:`EARLY` rounds, by its recursion with τ = 1."""
    theta, omega = np.zeros(2), np.zeros((3, 2))
    for _ in range(EARLY):
        mixed = alpha * omega + (1 - alpha) * theta
        omega = omega - RATE * alpha * np.einsum("kij,kj->ki", CURVATURES, mixed - MINIMA)
        theta = theta - RATE * np.einsum("kij,kj->i", CURVATURES, theta - MINIMA) / 3
    return alpha * omega + (1 - alpha) * theta


def fused(penalty: float) -> Points:
    """FPFC's: where ∇f_k + 1/m Σ_j g'(‖ω_k − ω_j‖) (ω_k − ω_j)/‖ω_k − ω_j‖ = 0, followed from the local optima.

    It has no closed form: the equations are solved numerically.
    """
    here: Points = MINIMA.ravel()
    for step in np.geomspace(ROUNDED * 1.001, penalty, max(2, int(15 * np.log10(penalty / ROUNDED)))):
        here = root(lambda x, step=step: pulls(x.reshape(3, 2), step).ravel(), here, tol=1e-12).x
    return here.reshape(3, 2)


def pulls(omega: Points, penalty: float) -> Points:
    """The gradient of FPFC's objective."""
    gaps = omega[:, None] - omega[None]
    n = np.linalg.norm(gaps, axis=-1, keepdims=True)
    middle = np.clip((FLAT * penalty - n) / (FLAT - 1), 0, penalty)
    slope = np.where(n <= ROUNDED, penalty * n / ROUNDED, middle)
    own = np.einsum("kij,kj->ki", CURVATURES, omega - MINIMA)
    found: Points = own + (slope * gaps / np.where(n > 0, n, 1)).mean(1)
    return found


# The algorithms, run


def trained(algorithm: Algorithm, rounds: int) -> Run:
    """A run on the problem, with exact gradients."""
    federation = quadratic_federation(torch.tensor(CURVATURES), torch.tensor(MINIMA))
    return fit(algorithm, federation, rounds=rounds, engine="loop")


def points(run: Run, *path: str) -> Points:
    """An entry of every client's state, ``(3, 2)``."""
    states: list[Any] = list(run.clients)
    for name in path:
        states = [state[name] for state in states]
    return np.stack([state["theta"].numpy() for state in states])


def exact(penalty: float = 0.0) -> SGD:
    """A solver for f_k + λ/2 ‖· − c‖²: heavy-ball at its best for curvatures of all A_k, plus λ."""
    curvatures = np.sqrt(np.linalg.eigvalsh(CURVATURES) + penalty)
    low, high = float(curvatures.min()), float(curvatures.max())
    momentum = ((high - low) / (high + low)) ** 2
    return SGD(lr=4 / (low + high) ** 2, momentum=momentum, steps=60, batch=None, tolerance=1e-8)


def loopless(penalty: float) -> Points:
    """L2SGD with full gradients and coins in turn, as η → 0.

    At a constant rate it ends O(η) beside the minimiser; of two rates, one half the other, that can be told away.
    """
    rate = min(0.1, 0.3 / penalty) if penalty else 0.1
    return 2 * hovering(penalty, rate / 2) - hovering(penalty, rate)


def hovering(penalty: float, rate: float) -> Points:
    """Where L2SGD is in the end after a step towards the mean."""
    rounds = round(12 / rate)
    step = SGD(lr=rate, steps=1, batch=None)
    algorithm = L2SGD(Quadratic(2), step, penalty=penalty, p=0.5, coins=(0, 1) * rounds)
    return points(trained(algorithm, rounds), "model")


def moreau(penalty: float) -> Points:
    """PFedMe with one local round, exact proximal points and the best rate for the mean of the M_k."""
    M = np.linalg.eigvalsh(np.linalg.solve(CURVATURES + penalty * ONE, CURVATURES).mean(0))
    rate = 2 / float(penalty * (M.min() + M.max())) if penalty else 1.0
    me = PFedMe(Quadratic(2), exact(penalty), penalty=penalty, rate=rate, local_rounds=1)
    return points(trained(me, 9), "personal")


def ditto(penalty: float) -> Points:
    """Ditto about federated averaging of single steps, which ends at the consensus."""
    inner = FedAvg(Quadratic(2), SGD(lr=0.53, steps=1, batch=None))
    return points(trained(Ditto(inner, exact(penalty), penalty=penalty), 10), "personal")


def proximal(penalty: float) -> Points:
    """FedProx solved exactly: where the clients end from the shared model, which is the only one that is kept."""
    prox = FedProx(Quadratic(2), exact(penalty), penalty=penalty)
    run = trained(prox, 6 + round(8 * penalty))
    federation = quadratic_federation(torch.tensor(CURVATURES), torch.tensor(MINIMA))
    message = {"model": run.server["model"], "lr": prox.local.rate(0, 1)}

    def end(client: int) -> Tensor:
        with torch.no_grad():
            _, reply = prox.train({}, message, client_data(federation, client, training=True), keys.key(0))
        theta: Tensor = reply["model"]["theta"]
        return theta

    return np.stack([end(client).numpy() for client in range(3)])


def mixture(alpha: float, rounds: int | None = None) -> Points:
    """APFL with a fixed α: the mixtures, α ω + (1 − α) θ, in the end or after some rounds."""
    rounds = rounds or round(25 / alpha**2)  # they come nearer by 1 − α² η A a round
    run = trained(APFL(Quadratic(2), SGD(lr=RATE, steps=1, batch=None), alpha=alpha), rounds)
    theta = run.server["model"]["theta"].numpy()
    found: Points = alpha * points(run, "omega") + (1 - alpha) * theta
    return found


def correlation(penalty: float) -> Points:
    """PFedMac with one local round: θ ← mean ω, at ηλ = 1."""
    rate = 1 / penalty if penalty else 1.0
    mac = PFedMac(Quadratic(2), exact(), penalty=penalty, rate=rate, local_rounds=1)
    return points(trained(mac, 20), "personal")


def fusion(penalty: float) -> Points:
    """FPFC by ADMM, a few steps a round."""
    fpfc = FPFC(Quadratic(2), SGD(lr=0.35, steps=3, batch=None), penalty=penalty, xi=ROUNDED, a=FLAT)
    return points(trained(fpfc, 60), "model")


PENALTIES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
TO_CONSENSUS = (1e-3, 1e4)
PATHS = (
    Path("L2SGD", r"\lambda", PENALTIES, loopless, envelopes, "towards a mean that moves with them", TO_CONSENSUS),
    Path("pFedMe", r"\lambda", PENALTIES, moreau, envelopes, "the same ends as L2SGD's", TO_CONSENSUS),
    Path("FedProx, local ends", r"\mu", PENALTIES, proximal, envelopes, "the shared model is their mean", TO_CONSENSUS),
    Path("Ditto", r"\mu", PENALTIES, ditto, about_the_optimum, "towards the consensus, which stays", TO_CONSENSUS),
    Path(
        "APFL",
        r"\alpha",
        (1.0, 0.7, 0.4),
        mixture,
        own_optima,
        "local optima for every α > 0;\nin between only on the way",
        (0.05, 1.0),
        (lambda alpha: mixture(alpha, EARLY), mixtures_early),
    ),
    Path(
        "pFedMac",
        r"\lambda",
        (0.0, 0.15, 0.3, 0.45),
        correlation,
        outwards,
        f"outwards, without end at λ = {largest_correlation():.2f}",
        (1e-3, 0.6 * largest_correlation()),
    ),
    Path(
        "FPFC",
        r"\lambda",
        (0.1, 0.4, 0.6, 0.9, 1.5, 2.5),
        fusion,
        fused,
        "those who are near fuse first",
        (ROUNDED * 1.01, 10.0),
    ),
)
