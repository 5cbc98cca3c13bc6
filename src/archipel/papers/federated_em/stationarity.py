"""Federated EM on heterogeneous clients: its distance from a root by rounds, expectations and bits.

This tests the claims of A. Dieuleveut, G. Fort, E. Moulines, G. Robin (NeurIPS 2021) on a small problem: a spherical
Gaussian mixture in four dimensions with 1,280 examples, sorted by component with some noise and cut into equal parts,
one for each client. The pool and the root do not depend on the number of clients, so that all curves coincide without
compression and with all data.

ε-stationarity is ‖h(Ŝ)‖² ≤ ε, measured after every round on all data, outside of the algorithm. A run *reaches* ε in
the first of five consecutive rounds whose mean is at most ε.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archipel.algorithms.fedem import FedEM
from archipel.algorithms.vrfedem import VRFedEM
from archipel.compress.registry import COMPRESSORS
from archipel.core.trees import Tree, dot
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.data.inputs import Inputs
from archipel.engines.batched import Batched
from archipel.engines.setting import Setting
from archipel.experiments.grids.grid import Cell
from archipel.families.gaussian import GaussianMixture
from archipel.families.shrinkage import Ridge
from archipel.fit import fit
from archipel.runs.callbacks import Moment

DIMENSION, COMPONENTS, EXAMPLES = 4, 3, 1280
STATISTICS = COMPONENTS * (1 + DIMENSION + 1)
FAMILY = GaussianMixture(COMPONENTS, DIMENSION, "spherical", Ridge(1e-3))
WINDOW = 5

Settings = dict[str, Any]
Trace = Mapping[str, Any]

CURVES: dict[str, Settings] = {
    "FedEM": {},
    "FedEM, dithering": {"compressor": ["Dithering", {"levels": 2}]},
    "FedEM, dithering, no memory": {"compressor": ["Dithering", {"levels": 2}], "memory": "off"},
    "FedEM, minibatches": {"batch": 8},
    "VR-FedEM": {"batch": 8, "inner": 10},
    "VR-FedEM, dithering": {"batch": 8, "inner": 10, "compressor": ["Dithering", {"levels": 2}]},
}
"""The methods of the first figure; all use steps of 0.5."""

RATES = (0.5, 0.2, 0.08)
"""Steps where minibatches are noisy."""

SPARSE = {0: 18, 1: 9, 2: 6, 5: 3}
"""ω of rand-k, 18/k − 1, and k: a compressor whose ω is exact."""


def problem(clients: int) -> Federation:
    """Return the pool, cut into equal parts of similar examples."""
    rng = np.random.default_rng(0)
    z = rng.choice(COMPONENTS, EXAMPLES)
    x = 1.8 * np.eye(COMPONENTS, DIMENSION)[z] + rng.normal(size=(EXAMPLES, DIMENSION))
    order = np.argsort(z + 0.3 * rng.normal(size=EXAMPLES))
    parts = []
    for i, rows in enumerate(np.array_split(order, clients)):
        train = {"x": torch.tensor(x[rows]), "y": torch.tensor(z[rows])}
        parts.append(Client(f"client-{i}", train, {name: column[:0] for name, column in train.items()}))
    inputs = Inputs("table", (DIMENSION,), 1.0, (0.0,) * DIMENSION, (1.0,) * DIMENSION)
    return Federation(f"mixture over {clients}", tuple(parts), inputs, tuple(map(str, range(COMPONENTS))))


def start() -> Tree:
    """Return θ_0, away from the root and the same for all methods."""
    mean = 0.6 + 0.5 * np.random.default_rng(1).normal(size=(COMPONENTS, DIMENSION))
    return {
        "weight": torch.full((COMPONENTS,), 1 / COMPONENTS, dtype=torch.float64),
        "mean": torch.tensor(mean),
        "covariance": torch.ones(COMPONENTS, 1, dtype=torch.float64),
    }


def follow(folder: Path, *, clients: int, rounds: int, seed: int, settings: Settings) -> dict[str, Any]:
    """Run a grid's cell: return ‖h(Ŝ)‖² after every round, with cumulative expectations and bits.

    Args:
        folder: not used, because the run is short.
        clients: n.
        rounds: how many.
        seed: of compression and minibatches; the data are always the same.
        settings: of FedEM, or of VR-FedEM if they hold ``"inner"``; a compressor is given by its name and fields.
    """
    name, fields = settings.get("compressor", ["Identity", {}])
    compressor: Any = COMPRESSORS[name](**fields)
    kind: Any = VRFedEM if "inner" in settings else FedEM
    algorithm = kind(FAMILY, start(), **(settings | {"compressor": compressor}))
    found = []

    def note(moment: Moment) -> None:
        h = algorithm.field(moment.server, moment.clients)
        found.append(float(dot(h, h)))

    engine = partial(Batched, chunk=64)
    run = fit(algorithm, problem(clients), rounds=rounds, seed=seed, setting=Setting(engine=engine), callbacks=[note])
    return {
        "stationarity": found,
        "expectations": np.cumsum([record["expectations"] for record in run.history]).tolist(),
        "bits": (8 * np.cumsum([record["uplink"] for record in run.history])).tolist(),
        "projected": int(run.server["projected"]),
        "omega": compressor.omega(STATISTICS),
    }


def curves(seeds: int = 3, rounds: int = 250, clients: int = 16) -> list[Cell]:
    """Return the cells of the first figure."""
    return [
        Cell(f"curves/{place}-seed{seed}", follow, _arguments(clients, rounds, seed, {"rate": 0.5} | settings))
        for place, settings in enumerate(CURVES.values())
        for seed in range(seeds)
    ]


def compression(rounds: int = 200, clients: Sequence[int] = (4, 16, 64, 256)) -> list[Cell]:
    """Return cells with all data in every round (σ² = 0), for several n, ω and steps."""
    return [
        _cell("compression", n, omega, rate, rounds, {"rate": rate}, cost=1 + n / 64)
        for n, omega, rate in product(clients, SPARSE, (1.0, 0.5, 0.25))
        if n < 256 or rate > 0.25  # for large n, large steps are best
    ]


def noise(rounds: int = 300, clients: Sequence[int] = (16, 64), batches: Sequence[int] = (16, 64)) -> list[Cell]:
    """Return cells with minibatches drawn with replacement, for several n, b, ω and steps."""
    return [
        _cell(f"noise/b{b}", n, omega, rate, rounds, {"rate": rate, "batch": b, "replacement": True}, cost=2)
        for b, n, omega, rate in product(batches, clients, (0, 5), RATES)
    ]


def _cell(group: str, n: int, omega: int, rate: float, rounds: int, settings: Settings, cost: float) -> Cell:
    if omega:
        settings = settings | {"compressor": ["RandK", {"k": SPARSE[omega]}]}
    return Cell(f"{group}/n{n}-omega{omega}-rate{rate}", follow, _arguments(n, rounds, 0, settings), cost)


def _arguments(clients: int, rounds: int, seed: int, settings: Settings) -> Settings:
    return {"clients": clients, "rounds": rounds, "seed": seed, "settings": settings}


def reached(trace: Trace, epsilon: float) -> int | None:
    """Return the round, counted from 1, in which a run reaches ε, or ``None``.

    >>> reached({"stationarity": [9, 1, 9, 1, 1, 1, 1, 1, 9]}, epsilon=1)
    4
    >>> reached({"stationarity": [1, 1, 1, 1, 9, 9]}, epsilon=1)
    """
    values = np.asarray(trace["stationarity"], dtype=float)
    means = np.convolve(values, np.ones(WINDOW) / WINDOW, "valid")
    inside = np.flatnonzero(means <= epsilon)
    return int(inside[0]) + 1 if len(inside) else None


def fewest(traces: Sequence[Trace], epsilon: float) -> int | None:
    """Return the smallest number of rounds to ε over several runs."""
    found = [rounds for trace in traces if (rounds := reached(trace, epsilon)) is not None]
    return min(found, default=None)
