"""Quadratic clients for the tests of this folder: small problems, and what theory says of them, in numpy."""

import numpy as np
import torch

from archipel.core import keys
from archipel.core.trees import PerClient
from archipel.engines import Batched, Handle, Ledger, Loop
from archipel.learning.quadratic import quadratic_federation

ENGINES = {"loop": Loop, "batched": Batched}
TWO = ([1.0, 4.0], [0.0, 1.0])
THREE = ([1.0, 2.0, 4.0], [0.0, 1.0, 3.0])
SIZES = [1, 5, 2, 9]


def scalars(A, a, sizes=None):
    return quadratic_federation(torch.tensor(A)[:, None, None], torch.tensor(a)[:, None], sizes)


def vectors(m=4, d=3, seed=0):
    """Symmetric matrices with eigenvalues above 1/2 that don't commute, and minima."""
    generator = torch.Generator().manual_seed(seed)
    roots = torch.randn(m, d, d, generator=generator, dtype=torch.float64)
    A = roots @ roots.mT / d + 0.5 * torch.eye(d, dtype=torch.float64)
    assert (A[0] @ A[1] - A[1] @ A[0]).abs().max() > 0.1
    return A, torch.randn(m, d, generator=generator, dtype=torch.float64)


def shares(weights, sizes):
    """ρ_k, for the setting ``weights`` of an algorithm."""
    held = np.asarray(sizes, dtype=float) if weights == "examples" else np.ones(len(sizes))
    return held / held.sum()


def meeting(N, a, rho):
    """The θ with Σ ρ_k N_k (θ − a_k) = 0."""
    return np.linalg.solve(np.einsum("k,kij->ij", rho, N), np.einsum("k,kij,kj->i", rho, N, np.asarray(a)))


def proximal_map(A, penalty):
    """M_k = (A_k + λI)⁻¹ A_k: the proximal point of f_k at θ is θ − M_k (θ − a_k)."""
    A = np.asarray(A)
    return np.linalg.solve(A + penalty * np.eye(A.shape[-1]), A)


def power(matrices, exponent):
    return np.stack([np.linalg.matrix_power(matrix, exponent) for matrix in matrices])


def times(matrices, vectors):
    return np.einsum("kij,kj->ki", matrices, vectors)


def cohorts(cohort, federation, rounds, seed=0):
    """Who is drawn in each round of a run."""
    root = keys.fold(keys.key(seed), "cohort")
    return [cohort.draw(federation.sizes, keys.fold(root, t)).tolist() for t in range(rounds)]


def of_clients(run, name):
    """``(m, d)``: θ of an entry of every client's state."""
    return np.stack([client[name]["theta"].numpy() for client in run.clients])


def of_server(run, name="model"):
    return run.server[name]["theta"].numpy()


@torch.no_grad()
def a_round(algorithm, federation, theta):
    """One round of an algorithm whose server holds a model, from θ: the server's state, and the clients'.

    Rounds are affine in θ here, and where one is a contraction the point that it doesn't move is where all end.
    """
    loop, everyone = Loop(algorithm, federation), torch.arange(len(federation))
    handle = Handle(loop, everyone, federation.sizes, 0, 1, Ledger())
    server = algorithm.init_server(handle, keys.key(0)) | {"model": {"theta": torch.tensor(theta)}}
    handle.apply(algorithm.enrol, {"server": server, "index": PerClient(everyone)}, keys.key(1))
    server, _ = algorithm.round(server, handle, keys.key(2))
    return server, [loop.states[i] for i in everyone.tolist()]
