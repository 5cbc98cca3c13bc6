"""Personal models between local optima and consensus as each method's penalty grows, on one quadratic problem.

Three clients hold the functions of :mod:`archipel.papers.consensus.path_theory`. For each method and each of a few
penalties, the library's algorithm runs to its fixed point with exact gradients, beside the theory's value.
``archipel bench paths`` draws both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
from archipel.engines.setting import Setting
from archipel.fit import fit
from archipel.learning.quadratic import Quadratic, quadratic_federation
from archipel.learning.sgd import SGD
from archipel.papers.consensus.path_theory import (
    CURVATURES,
    EARLY,
    FLAT,
    MINIMA,
    ONE,
    RATE,
    ROUNDED,
    Points,
    about_the_optimum,
    envelopes,
    fused,
    largest_correlation,
    mixtures_early,
    outwards,
    own_optima,
)
from archipel.runs.run import Run


@dataclass(frozen=True)
class Path:
    """A method's personal models as its penalty grows.

    Args:
        name: the method's.
        symbol: of its penalty, in TeX.
        penalties: at which it is run.
        run: maps a penalty to the algorithm's fixed point, one point for each client.
        theory: maps a penalty to the expected fixed point.
        note: text in the panel.
        ends: smallest and largest penalty of the theory's curve.
        early: maps a penalty to the algorithm's and the recursion's points after ``EARLY`` rounds, if these differ from
            the fixed point.
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
        """Return the theory's points between the ends, evenly in the penalty's logarithm, ``(count, 3, 2)``."""
        return np.stack([self.theory(float(penalty)) for penalty in np.geomspace(*self.ends, count)])


def trained(algorithm: Algorithm, rounds: int) -> Run:
    """Run an algorithm on the problem with exact gradients."""
    federation = quadratic_federation(torch.tensor(CURVATURES), torch.tensor(MINIMA))
    return fit(algorithm, federation, rounds=rounds, setting=Setting(engine="loop"))


def points(run: Run, *path: str) -> Points:
    """Return an entry of every client's state, ``(3, 2)``."""
    states: list[Any] = list(run.clients)
    for name in path:
        states = [state[name] for state in states]
    return np.stack([state["theta"].numpy() for state in states])


def exact(penalty: float = 0.0) -> SGD:
    """Return a solver for f_k + λ/2 ‖· − c‖²: heavy-ball, tuned to the curvatures of all A_k plus λ."""
    curvatures = np.sqrt(np.linalg.eigvalsh(CURVATURES) + penalty)
    low, high = float(curvatures.min()), float(curvatures.max())
    momentum = ((high - low) / (high + low)) ** 2
    return SGD(lr=4 / (low + high) ** 2, momentum=momentum, steps=60, batch=None, tolerance=1e-8)


def loopless(penalty: float) -> Points:
    """Return the limit of L2SGD as η → 0, with full gradients and alternating coins.

    At a constant rate it ends O(η) from the minimiser. Extrapolation from two rates removes that term.
    """
    rate = min(0.1, 0.3 / penalty) if penalty else 0.1
    return 2 * hovering(penalty, rate / 2) - hovering(penalty, rate)


def hovering(penalty: float, rate: float) -> Points:
    """Return L2SGD's models after its last step towards the mean."""
    rounds = round(12 / rate)
    step = SGD(lr=rate, steps=1, batch=None)
    algorithm = L2SGD(Quadratic(2), step, penalty=penalty, p=0.5, coins=(0, 1) * rounds)
    return points(trained(algorithm, rounds), "model")


def moreau(penalty: float) -> Points:
    """Run pFedMe with one local round, exact proximal points and the best rate for the mean of the M_k."""
    M = np.linalg.eigvalsh(np.linalg.solve(CURVATURES + penalty * ONE, CURVATURES).mean(0))
    rate = 2 / float(penalty * (M.min() + M.max())) if penalty else 1.0
    me = PFedMe(Quadratic(2), exact(penalty), penalty=penalty, rate=rate, local_rounds=1)
    return points(trained(me, 9), "personal")


def ditto(penalty: float) -> Points:
    """Run Ditto around federated averaging of single steps, which ends at the consensus."""
    inner = FedAvg(Quadratic(2), SGD(lr=0.53, steps=1, batch=None))
    return points(trained(Ditto(inner, exact(penalty), penalty=penalty), 10), "personal")


def proximal(penalty: float) -> Points:
    """Run FedProx with exact local solutions, and return the clients' local models in the last round."""
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
    """Run APFL with a fixed α, and return the mixtures α ω + (1 − α) θ, at the end or after some rounds."""
    rounds = rounds or round(25 / alpha**2)  # the distance shrinks by 1 − α² η A a round
    run = trained(APFL(Quadratic(2), SGD(lr=RATE, steps=1, batch=None), alpha=alpha), rounds)
    theta = run.server["model"]["theta"].numpy()
    found: Points = alpha * points(run, "omega") + (1 - alpha) * theta
    return found


def correlation(penalty: float) -> Points:
    """Run pFedMac with one local round and ηλ = 1: θ ← mean ω."""
    rate = 1 / penalty if penalty else 1.0
    mac = PFedMac(Quadratic(2), exact(), penalty=penalty, rate=rate, local_rounds=1)
    return points(trained(mac, 20), "personal")


def fusion(penalty: float) -> Points:
    """Run FPFC, ADMM with a few steps a round."""
    fpfc = FPFC(Quadratic(2), SGD(lr=0.35, steps=3, batch=None), penalty=penalty, xi=ROUNDED, a=FLAT)
    return points(trained(fpfc, 60), "model")


PENALTIES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
TO_CONSENSUS = (1e-3, 1e4)
PATHS = (
    Path("L2SGD", r"\lambda", PENALTIES, loopless, envelopes, "towards a mean that moves with them", TO_CONSENSUS),
    Path("pFedMe", r"\lambda", PENALTIES, moreau, envelopes, "the same fixed points as L2SGD's", TO_CONSENSUS),
    Path("FedProx, local ends", r"\mu", PENALTIES, proximal, envelopes, "the shared model is their mean", TO_CONSENSUS),
    Path("Ditto", r"\mu", PENALTIES, ditto, about_the_optimum, "towards the consensus, which stays", TO_CONSENSUS),
    Path(
        "APFL",
        r"\alpha",
        (1.0, 0.7, 0.4),
        mixture,
        own_optima,
        "local optima for every α > 0;\nbetween them only before convergence",
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
        "near clients fuse first",
        (ROUNDED * 1.01, 10.0),
    ),
)
