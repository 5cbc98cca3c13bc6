"""Where personal models end on three quadratic clients, from the matrices and minima alone.

Client k holds f_k(θ) = ½ (θ − a_k)ᵀ A_k (θ − a_k) in the plane. The matrices do not commute, so paths bend as a penalty
grows. :mod:`archipel.papers.consensus.paths` runs the algorithms on the same clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root

Points = NDArray[np.floating[Any]]
"""``(3, 2)``: a point of the plane for each client."""

MINIMA: Points = np.array([[-1.0, 0.3], [-0.4, 1.0], [1.2, -0.4]])
"""a_k: two near one another, and one far from both."""
ROUNDED, FLAT = 0.02, 3.7
"""FPFC's ξ and a."""
RATE, EARLY = 0.5, 20
"""APFL's learning rate, and the number of rounds after which its models are compared before convergence."""


def turned(degrees: float, *curvatures: float) -> Points:
    """Return a symmetric matrix with these eigenvalues, its axes turned by an angle.

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


def optimum() -> Points:
    """Return the consensus (Σ A)⁻¹ Σ A a, shape ``(2,)``."""
    return meeting(CURVATURES)


def meeting(maps: Points) -> Points:
    """Return the θ with Σ N_k (θ − a_k) = 0."""
    found: Points = np.linalg.solve(maps.sum(0), np.einsum("kij,kj->i", maps, MINIMA))
    return found


def proximal_points(penalty: float, centre: Points) -> Points:
    """Return (A_k + λ)⁻¹ (A_k a_k + λ centre)."""
    right = np.einsum("kij,kj->ki", CURVATURES, MINIMA) + penalty * centre
    found: Points = np.linalg.solve(CURVATURES + penalty * ONE, right[..., None])[..., 0]
    return found


def envelopes(penalty: float) -> Points:
    """Return personal models of L2SGD, FedProx and pFedMe: proximal points of the θ with Σ M_k (θ − a_k) = 0."""
    maps: Points = np.linalg.solve(CURVATURES + penalty * ONE, CURVATURES)
    return proximal_points(penalty, meeting(maps))


def about_the_optimum(penalty: float) -> Points:
    """Return Ditto's personal models: proximal points of the consensus, which they do not move."""
    return proximal_points(penalty, optimum())


def outwards(penalty: float) -> Points:
    """Return pFedMac's personal models: a_k + λ A_k⁻¹ θ with θ = (I − λ · mean A⁻¹)⁻¹ · mean a."""
    inverses = np.linalg.inv(CURVATURES)
    theta = np.linalg.solve(ONE - penalty * inverses.mean(0), MINIMA.mean(0))
    found: Points = MINIMA + penalty * np.einsum("kij,j->ki", inverses, theta)
    return found


def largest_correlation() -> float:
    """Return the λ up to which pFedMac's objective has a minimum, 1/λmax(mean A⁻¹)."""
    return float(1 / np.linalg.eigvalsh(np.linalg.inv(CURVATURES).mean(0)).max())


def own_optima(alpha: float) -> Points:
    """Return APFL's mixtures: each client's own optimum for every α above 0."""
    return MINIMA if alpha > 0 else np.tile(optimum(), (3, 1))


def mixtures_early(alpha: float) -> Points:
    """Return APFL's mixtures after :data:`EARLY` rounds, from its recursion with τ = 1."""
    theta, omega = np.zeros(2), np.zeros((3, 2))
    for _ in range(EARLY):
        mixed = alpha * omega + (1 - alpha) * theta
        omega = omega - RATE * alpha * np.einsum("kij,kj->ki", CURVATURES, mixed - MINIMA)
        theta = theta - RATE * np.einsum("kij,kj->i", CURVATURES, theta - MINIMA) / 3
    return alpha * omega + (1 - alpha) * theta


def fused(penalty: float) -> Points:
    """Return FPFC's models: where ∇f_k + 1/m Σ_j g'(‖ω_k − ω_j‖) (ω_k − ω_j)/‖ω_k − ω_j‖ = 0.

    There is no closed form: the equations are solved numerically, starting from the local optima.
    """
    here: Points = MINIMA.ravel()
    for step in np.geomspace(ROUNDED * 1.001, penalty, max(2, int(15 * np.log10(penalty / ROUNDED)))):
        here = root(lambda x, step=step: pulls(x.reshape(3, 2), step).ravel(), here, tol=1e-12).x
    return here.reshape(3, 2)


def pulls(omega: Points, penalty: float) -> Points:
    """Return the gradient of FPFC's objective."""
    gaps = omega[:, None] - omega[None]
    n = np.linalg.norm(gaps, axis=-1, keepdims=True)
    middle = np.clip((FLAT * penalty - n) / (FLAT - 1), 0, penalty)
    slope = np.where(n <= ROUNDED, penalty * n / ROUNDED, middle)
    own = np.einsum("kij,kj->ki", CURVATURES, omega - MINIMA)
    found: Points = own + (slope * gaps / np.where(n > 0, n, 1)).mean(1)
    return found
