"""Softmax regressions drawn at random, a client each.

More synthetic federations: `archipel.data.gaussian_clients`, whose best router and classifier are known, and
`archipel.learning.quadratic`, with closed forms for optima and fixed points.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.data.partitions.splits import check_fractions, train_test_split


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    clients: int = 30,
    features: int = 60,
    classes: int = 10,
    iid: bool = False,
    sizes: Sequence[int] | None = None,
    test: float = 0.3,
    validation: float = 0.0,
    seed: int = 0,
) -> Federation:
    """FedProx's Synthetic(α, β): one softmax regression for each client; α spreads the models, β the features.

    u_k ~ N(0, α), W_k and b_k ~ N(u_k, 1) in every entry; B_k ~ N(0, β), v_k ~ N(B_k, 1) in every entry;
    x ~ N(v_k, Σ) with Σ_jj = j^−1.2; y = argmax softmax(W_k x + b_k). Second arguments are variances, as in the paper;
    its published code takes α and β as standard deviations, which is the same for the values 0 and 1.

    Args:
        alpha: α ≥ 0, variance of the clients' u_k.
        beta: β ≥ 0, variance of the clients' B_k.
        clients: m.
        features: d.
        classes: K.
        iid: one W, b ~ N(0, 1) for all and v_k = 0: the paper's "Synthetic IID".
        sizes: n_k; log-normal(4, 2) rounded down plus 50 if not given, as in the published code.
        test: fraction of each client's examples for testing.
        validation: fraction for validation.
        seed: what determines everything.

    Returns:
        A federation of tables. Its truth holds "W" (m, K, d), "b" (m, K), "u" (m,), "B" (m,), "v" (m, d), and in
        "shared" the variances "sigma" (d,).

    Raises:
        ValueError: an argument out of range.

    >>> federation = synthetic(0.5, 0.5, clients=3, sizes=[20, 30, 40])
    >>> federation.inputs.shape, federation.outputs
    ((60,), 10)

    Source: Li et al. (2020), Federated optimization in heterogeneous networks, MLSys, App. C.1.
    """
    check_fractions(test, validation)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it is a variance, a finite number of 0 or more.")
    if clients < 1 or features < 1 or classes < 2:
        raise ValueError(
            f"given are {clients} clients, {features} features and {classes} classes; there are at least 1, 1 and 2."
        )
    world = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    drawn = np.floor(world.lognormal(4, 2, clients)).astype(int) + 50
    counts = drawn.tolist() if sizes is None else [int(size) for size in sizes]
    if len(counts) != clients:
        raise ValueError(f"sizes has {len(counts)} entries for {clients} clients; give one each.")
    u = np.zeros(clients) if iid else world.normal(0, math.sqrt(alpha), clients)
    B = np.zeros(clients) if iid else world.normal(0, math.sqrt(beta), clients)
    v = np.zeros((clients, features)) if iid else world.normal(B[:, None], 1, (clients, features))
    models = 1 if iid else clients
    W = np.broadcast_to(
        world.normal(u[:models, None, None], 1, (models, classes, features)), (clients, classes, features)
    )
    b = np.broadcast_to(world.normal(u[:models, None], 1, (models, classes)), (clients, classes))
    sigma = np.arange(1, features + 1, dtype=np.float64) ** -1.2
    xs, ys = [], []
    for k, count in enumerate(counts):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, k)))
        x = v[k] + np.sqrt(sigma) * rng.standard_normal((count, features))
        xs.append(x)
        ys.append((x @ W[k].T + b[k]).argmax(1))
    truth = {name: torch.tensor(values) for name, values in {"W": W, "b": b, "u": u, "B": B, "v": v}.items()}
    name = "synthetic IID" if iid else f"synthetic({alpha:g}, {beta:g})"
    return labelled_tables(
        name, xs, ys, None, classes, test, validation, seed, truth | {"shared": {"sigma": torch.tensor(sigma)}}
    )


def labelled_tables(
    name: str,
    xs: Sequence[np.ndarray],
    ys: Sequence[np.ndarray],
    components: Sequence[np.ndarray] | None,
    classes: int,
    test: float,
    validation: float,
    seed: int,
    truth: dict[str, object],
) -> Federation:
    """Make a federation of drawn features (n_i, d) and labels (n_i,), and their components where they have some."""
    clients = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        who = f"client-{i}"
        stream = np.random.SeedSequence(seed, spawn_key=(2, i))
        rows = train_test_split(len(y), test, validation, stream, who)
        features, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
        columns = {split: {"x": features[index], "y": labels[index]} for split, index in rows.items()}
        known = {split: {"label": labels[index]} for split, index in rows.items()}
        if components is not None:
            known = {
                split: known[split] | {"component": torch.tensor(components[i])[index]} for split, index in rows.items()
            }
        clients.append(Client(who, **columns, truth=known))
    inputs = Inputs.fit([client.train["x"] for client in clients], "table")
    return Federation(name, tuple(clients), inputs, tuple(str(k) for k in range(classes)), truth)
