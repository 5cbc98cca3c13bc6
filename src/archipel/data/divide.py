"""Federations from a source and a partition, and latent components within their clients."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from archipel.data.client import Client
from archipel.data.dual_heterogeneity import draw_components, draw_weights
from archipel.data.federation import Federation
from archipel.data.partitions.splits import Indices, check_concentration, check_fractions, train_test_split
from archipel.data.sources.source import Source


def divide(
    source: Source,
    parts: Sequence[Indices],
    *,
    test: float = 0.3,
    validation: float = 0.0,
    seed: int = 0,
    names: Sequence[str] | None = None,
    name: str | None = None,
) -> Federation:
    """Make a federation of a source and a partition of it.

    Args:
        source: labelled data.
        parts: per client the rows it gets, as partitions return them.
        test: fraction of each client's examples for testing.
        validation: fraction for validation, cut from the rest.
        seed: what determines the splits within clients.
        names: the clients' names; "client-0", … if not given.
        name: the federation's; the source's if not given.

    Returns:
        A federation whose clients' truth has the columns "index", the row in the source, and "label", of classes.

    Raises:
        ValueError: fractions out of range, or a client with too few examples for them, by name.

    Warns:
        UserWarning: classes that no client has.
    """
    check_fractions(test, validation)
    names = [f"client-{i}" for i in range(len(parts))] if names is None else list(names)
    x = source.x.unsqueeze(1) if source.kind == "image" and source.x.ndim == 3 else source.x
    clients = []
    for i, (part, who) in enumerate(zip(parts, names, strict=True)):
        split = train_test_split(len(part), test, validation, np.random.SeedSequence(seed, spawn_key=(i,)), who)
        rows = {name: torch.from_numpy(part[chosen]) for name, chosen in split.items()}
        columns = {name: {"x": x[index], "y": source.y[index]} for name, index in rows.items()}
        truth = {name: {"index": index} for name, index in rows.items()}
        if source.classes:
            truth = {name: known | {"label": columns[name]["y"]} for name, known in truth.items()}
        clients.append(Client(who, **columns, truth=truth))
    held = torch.cat([columns["y"] for client in clients for columns in client.splits.values()])
    if missing := sorted(set(range(len(source.classes))) - set(held.unique().tolist())):
        which = ", ".join(source.classes[k] for k in missing[:10])
        warnings.warn(f"{len(missing)} classes are at no client: {which}.", UserWarning, stacklevel=2)
    inputs = source.fit_inputs(clients)
    return Federation(name or source.name, tuple(clients), inputs, source.classes or None)


def latent_components(federation: Federation, components: int, alpha: float = 2.0, *, seed: int = 0) -> Federation:
    """Make every client a mixture: π_i ~ Dirichlet(α), and each of its examples draws a component from π_i.

    Args:
        federation: its clients have no components yet.
        components: C in each client.
        alpha: concentration; small: one component prevails.
        seed: what determines the draws.

    Returns:
        The same examples, with the truth column "component", and the truth "weights" (m, C), drawn, and "realised"
        (m, C), the fractions that came of it. Nothing is shifted yet: see `compose`.
    """
    check_concentration("alpha", alpha)
    if components < 1:
        raise ValueError(f"components is {components}; each client has 1 component or more.")
    weights = [draw_weights(seed, i, components, alpha) for i in range(len(federation))]
    clients, realised = [], []
    for i, client in enumerate(federation.clients):
        sizes = [len(columns["y"]) for columns in client.splits.values()]
        drawn = draw_components(seed, i, sum(sizes), weights[i])
        realised.append(torch.bincount(drawn, minlength=components) / len(drawn))
        truth = {
            split: client.truth.get(split, {}) | {"component": part}
            for split, part in zip(client.splits, drawn.split(sizes), strict=True)
        }
        clients.append(replace(client, truth=truth))
    known = {"weights": torch.from_numpy(np.stack(weights)), "realised": torch.stack(realised)}
    return replace(federation, clients=tuple(clients), truth=federation.truth | known)
