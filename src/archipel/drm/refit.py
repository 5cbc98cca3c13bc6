"""Exact refit of a trained FedSPM's tilts: the complete M-step of (γ, ξ) with a fixed encoder h.

Z. Wang et al.: FedSPM, arXiv 2607.04085, 2026; docs/methods/fedspm.md. In every round, local SGD takes a few steps on
the surrogate Q̃₂ and averages, so that γ and ξ lag behind the encoder. In γ and ξ alone Q̃₂ is concave, and its maximum
can be computed.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from archipel.algorithms.fedspm import FedSPM
from archipel.core.checks import kind_of
from archipel.data.federation import Federation
from archipel.drm.model import DensityRatioModel
from archipel.runs.answers import PIECE
from archipel.runs.run import Run


@torch.no_grad()
def refitted(run: Run, federation: Federation, ridge: float = 1.0) -> Run:
    """Maximise Q̃₂ = Σ_jl w_jl a_jl − Σ_j log Σ_l τ_l exp(a_jl) in γ and ξ, with the run's h and responsibilities.

    Afterwards every component of every client, and the baseline, has mass one on the training examples, with λ = τ/n,
    and the router's posterior is as calibrated as a posterior linear in h can be. Heads, mixing weights and encoders
    stay.

    This function gathers all features in one place. A federated version is possible: a Newton step needs sums over
    clients only, of gradients and of products of the Hessian with a vector, m · C · (d + 1) numbers each.

    Args:
        run: a run of FedSPM on this federation whose components share h.
        federation: its training examples are read.
        ridge: the penalty ridge/2 · ‖ξ‖² on standardised features, for clients that h separates.

    Returns:
        A new run. If the given run was evaluated, its last metrics and table are measured again; the rest of its
        history stays.

    Raises:
        TypeError: a run of another algorithm.
        ValueError: components with separate encoders, or a federation other than the run's.

    >>> from archipel import SGD, Federation, Network, classification, fit
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> islands = Federation.from_arrays([(x + 1, y), (x - 1, 1 - y)])
    >>> once, plain = SGD(lr=0.01, steps=1), torch.nn.Identity()
    >>> spm = FedSPM(classification(plain, islands), Network(plain, islands.inputs), 1, once, once)
    >>> run = fit(spm, islands, rounds=1)
    >>> better = refitted(run, islands)
    >>> bool(better.route([[2.0, 2.0]]).probabilities[0, 0] > run.route([[2.0, 2.0]]).probabilities[0, 0])
    True
    """
    algorithm, server = run.algorithm, run.server
    if not isinstance(algorithm, FedSPM):
        raise TypeError(f"refitted() is for runs of FedSPM; given a run of {kind_of(algorithm)}.")
    if algorithm.encoders != "shared":
        raise ValueError("refitted() needs components that share their encoder: train with encoders='shared'.")
    sizes = [len(client.train["y"]) for client in federation.clients]
    m, C = server["tau"].shape
    if tuple(sizes) != run.facts.sizes:
        raise ValueError(
            f"The clients of {federation.name!r} hold {sizes[:8]} training examples; the run was trained on "
            f"{list(run.facts.sizes[:8])}. Give the federation that the run was trained on."
        )
    parts, shares = [], []
    for i, (client, state) in enumerate(zip(federation.clients, run.clients, strict=True)):
        outputs = [
            algorithm.router(server["ratio"]["encoder"], server["ratio"].get("buffers", {}), piece)[0]
            for piece in client.train["x"].split(PIECE)
        ]
        parts.append(torch.cat(outputs).double())
        w = torch.zeros(sizes[i], m, C, dtype=torch.float64)
        w[:, i] = state["responsibilities"].values[: sizes[i]]
        shares.append(w.flatten(1))
    memberships = torch.cat(shares)
    memberships /= memberships.sum(1, keepdim=True)  # stored in float32, so rows sum to one up to rounding
    alive = memberships.sum(0) > 0  # an empty component keeps its tilts
    model = DensityRatioModel.fit(torch.cat(parts), memberships[:, alive], ridge=ridge, tolerance=1e-7)
    gamma, xi = server["ratio"]["gamma"].flatten().clone(), server["ratio"]["xi"].flatten(0, 1).clone()
    gamma[alive], xi[alive] = model.gamma.to(gamma.dtype), model.xi.to(xi.dtype)
    ratio = server["ratio"] | {"gamma": gamma.reshape(m, C), "xi": xi.reshape(m, C, -1)}
    tau = memberships.sum(0).reshape(m, C).to(server["tau"].dtype)
    better = replace(run, server=server | {"ratio": ratio, "tau": tau})
    if not run.metrics:
        return better
    found = better.evaluate(federation)
    return replace(
        better, history=[*run.history[:-1], run.history[-1] | {"metrics": found.metrics}], table=found.clients
    )
