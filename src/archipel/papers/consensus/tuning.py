"""``archipel bench consensus``: methods between local training and consensus, tuned alike, on three kinds of clients.

There are two grids. The first tries every method at its rates and penalties, and scores it on validation examples. The
second runs each method at its best settings with several seeds, and scores it on test examples, which no choice has
used. Both divide the data by one fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archipel.algorithm import DivergenceError
from archipel.experiments.comparing.cells import trained
from archipel.experiments.config import RunConfig
from archipel.experiments.grids.grid import Cell, run_grid
from archipel.experiments.reading import validate
from archipel.papers.consensus.entrants import ENTRANTS, Settings, listed


@dataclass(frozen=True)
class Islands:
    """A data set divided into its own clients.

    Args:
        title: above its table.
        data: its section of a configuration.
        encoder: the network's.
        clients: how many there are.
        rounds: of a run.
    """

    title: str
    data: Settings
    encoder: Settings
    clients: int
    rounds: int

    def first(self, clients: int) -> Islands:
        """Return the data set with its first clients only."""
        if clients >= self.clients:
            return self
        return replace(self, data=self.data | {"limit": clients}, clients=clients)


SPLIT: Settings = {"validation": 0.2, "test": 0.3, "seed": 0}
ISLANDS: dict[str, Islands] = {
    "hapt": Islands(
        "HAPT: 30 people, 6 activities",
        {"source": "hapt", **SPLIT},
        {"name": "mlp", "features": 16, "options": {"hidden": [32]}},
        clients=30,
        rounds=20,
    ),
    "femnist": Islands(
        "FEMNIST: the first 16 of 200 writers, 62 characters",
        {"source": "femnist", "limit": 16, **SPLIT},
        {"name": "mlp", "features": 32, "options": {"hidden": [64]}},
        clients=16,
        rounds=20,
    ),
    "heart-disease": Islands(
        "Heart disease: 4 hospitals",
        {"source": "heart-disease", "options": {"missing": "impute-median"}, **SPLIT},
        # A linear map to a few features and a linear head: logistic regression, but for the features' normalisation.
        {"name": "mlp", "features": 4, "options": {"hidden": []}},
        clients=4,
        rounds=30,
    ),
}


@dataclass(frozen=True)
class Plan:
    """How many settings, seeds and rounds to run.

    Args:
        rates: learning rates of a method with a penalty.
        penalties: its penalties; a method without one tries rates · penalties learning rates.
        seeds: of the final runs.
        rounds: of a run; ``None``: the data set's own.
        clients: the largest number of clients; the first ones are used.
    """

    rates: int = 3
    penalties: int = 3
    seeds: int = 3
    rounds: int | None = None
    clients: int | None = None


FULL, FAST = Plan(), Plan(rates=1, penalties=2, seeds=1, rounds=5, clients=6)


def configured(
    islands: Islands, method: str, rate: float, penalty: float | None, seed: int, where: Settings
) -> RunConfig:
    """Return the configuration of a run."""
    return validate(
        {
            "name": method,
            "seed": seed,
            "rounds": islands.rounds,
            "evaluate_every": None,
            "data": islands.data | where,
            "encoder": islands.encoder,
            "algorithm": ENTRANTS[method].section(rate, penalty, islands.clients),
        },
        f"the settings of {method}",
    )


def trial(folder: Path, config: Settings) -> dict[str, Any]:
    """Run a cell of the first grid: accuracy of personal models on validation examples, ``None`` if it diverges."""
    try:
        return {"accuracy": trained(validate(config, "a cell"), choosing=True)[0].metrics["average_accuracy"]}
    except DivergenceError as error:
        return {"accuracy": None, "why": str(error)}


def final(folder: Path, config: Settings) -> dict[str, Any]:
    """Run a cell of the second grid: metrics on test examples, and bytes of all clients in all rounds."""
    try:
        run, _ = trained(validate(config, "a cell"), choosing=False)
    except DivergenceError as error:
        return {"metrics": {}, "why": str(error)}
    traffic = {way: sum(record[way] for record in run.history) for way in ("uplink", "downlink")}
    return {"metrics": run.metrics, **traffic}


Trials = Mapping[tuple[float, float | None], float | None]
Choice = tuple[float, float | None]


def best(trials: Trials) -> Choice | None:
    """Return the settings with the highest accuracy, the first of equals; ``None`` if all diverged.

    >>> best({(0.1, None): 0.5, (0.3, None): 0.7, (0.5, None): None, (0.2, None): 0.7})
    (0.3, None)
    """
    done = {settings: accuracy for settings, accuracy in trials.items() if accuracy is not None}
    return max(done, key=lambda settings: done[settings]) if done else None


@dataclass(frozen=True)
class Result:
    """What was found on one data set.

    Args:
        islands: the data.
        choices: learning rate and penalty of each method; ``None`` if it diverged at all settings.
        runs: of each method, in the order of seeds.
    """

    islands: Islands
    choices: dict[str, Choice | None]
    runs: dict[str, list[dict[str, Any]]]


def consensus(
    out: Path,
    data: Sequence[str],
    methods: Sequence[str],
    plan: Plan,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    fresh: bool = False,
) -> dict[str, Result]:
    """Tune and run all methods on all data sets.

    Args:
        out: the results' folder; finished cells in it are not run again.
        data: names of :data:`ISLANDS`.
        methods: names of :data:`archipel.papers.consensus.entrants.ENTRANTS`.
        plan: how many settings, seeds and rounds.
        data_dir: folder of the data files.
        workers: processes; default: one a core.
        fresh: start anew.
    """
    where: Settings = {} if data_dir is None else {"data_dir": str(data_dir)}
    chosen = {name: sized(ISLANDS[name], plan) for name in data}
    tries = {(name, method): ENTRANTS[method].trials(plan.rates, plan.penalties) for name in data for method in methods}

    def cell(work: Any, place: str, name: str, method: str, settings: Choice, seed: int) -> Cell:
        config = configured(chosen[name], method, *settings, seed, where).model_dump(mode="json")
        return Cell(place, work, {"config": config}, cost=chosen[name].rounds * chosen[name].clients)

    cells = [
        cell(trial, f"{name}/{method}/{label(settings)}", name, method, settings, 0)
        for (name, method), all_settings in tries.items()
        for settings in all_settings
    ]
    tuning = run_grid(cells, out / "tuning", workers=workers, fresh=fresh)
    choices = {
        (name, method): best({s: tuning[f"{name}/{method}/{label(s)}"]["accuracy"] for s in all_settings})
        for (name, method), all_settings in tries.items()
    }
    places = {
        (name, method, seed): f"{name}/{method}/{label(settings)}/seed{seed}"
        for (name, method), settings in choices.items()
        if settings is not None
        for seed in range(plan.seeds)
    }
    finals = [
        cell(final, place, name, method, settings, seed)
        for (name, method, seed), place in places.items()
        if (settings := choices[name, method]) is not None
    ]
    found = run_grid(finals, out / "runs", workers=workers, fresh=fresh)
    return {
        name: Result(
            chosen[name],
            {method: choices[name, method] for method in methods},
            {method: [found[p] for (n, m, _), p in places.items() if (n, m) == (name, method)] for method in methods},
        )
        for name in data
    }


def known(names: str) -> list[str]:
    """Return the data sets that a text names, separated by commas.

    Raises:
        ValueError: an unknown name.
    """
    return listed(names, ISLANDS, "data set")


def sized(islands: Islands, plan: Plan) -> Islands:
    """Return the data set with the plan's clients and rounds."""
    few = islands if plan.clients is None else islands.first(plan.clients)
    return few if plan.rounds is None else replace(few, rounds=plan.rounds)


def label(settings: Choice) -> str:
    """Return a cell's folder name.

    >>> label((0.1, None)), label((0.1, 0.03))
    ('lr0.1', 'lr0.1-0.03')
    """
    rate, penalty = settings
    return f"lr{rate:g}" + (f"-{penalty:g}" if penalty is not None else "")
