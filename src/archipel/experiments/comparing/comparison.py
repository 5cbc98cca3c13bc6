"""Methods compared on the same splits: all tuned alike on validation examples, differences paired by seed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archipel.experiments.building import federation_from
from archipel.experiments.comparing.cells import one_method
from archipel.experiments.comparing.differences import Difference, difference
from archipel.experiments.comparing.entries import defaults, entry
from archipel.experiments.config import RunConfig
from archipel.experiments.grids.grid import Cell, run_grid
from archipel.experiments.reading import read_config, validate
from archipel.runs.metrics.classification import CLASSIFICATION
from archipel.runs.metrics.regression import REGRESSION

VALIDATION = 0.2
"""Share of the examples for validation where the configuration sets none."""
OVERALL = ""
"""The key of all sites together."""


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Args:
        metric: that methods were tuned for and are compared by.
        methods: their names, in the order of the command.
        titles: the names of their classes.
        seeds: how many splits.
        tries: settings that were tried for each method and split.
        scores: ``[method][site][seed]``, larger is better (errors are negative); ``OVERALL`` is all sites together.
        chosen: ``[method][seed]`` settings.
        bytes: ``[method]`` mean bytes that all sites sent in a run.
        ratio: test examples divided by training examples.
        failed: methods that diverged in some split, with the reason.
    """

    metric: str
    methods: list[str]
    titles: dict[str, str]
    seeds: int
    tries: int
    scores: dict[str, dict[str, dict[int, float]]]
    chosen: dict[str, dict[int, dict[str, float]]]
    bytes: dict[str, float]
    ratio: float
    failed: dict[str, str]

    @property
    def sites(self) -> list[str]:
        """Names of all sites at which some method has a score."""
        names = [site for found in self.scores.values() for site in found if site != OVERALL]
        return list(dict.fromkeys(names))

    def mean(self, method: str, site: str = OVERALL) -> float | None:
        """Return a method's mean score over seeds."""
        values = list(self.scores[method].get(site, {}).values())
        return sum(values) / len(values) if values else None

    def against(self, method: str, other: str, site: str = OVERALL) -> Difference | None:
        """Return the paired difference of two methods over the seeds in which both have a score."""
        one, two = self.scores[method].get(site, {}), self.scores[other].get(site, {})
        seeds = sorted(one.keys() & two.keys())
        if not seeds:
            return None
        found = difference([one[s] for s in seeds], [two[s] for s in seeds], self.ratio)
        bounded = self.metric not in ("r2", "mae", "rmse", "brier")  # values from 0 to 1: differences from −1 to 1
        if found.low is None or found.high is None or not bounded:
            return found
        return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))

    def ranked(self, site: str = OVERALL) -> list[str]:
        """Return the methods that have a score at a site, the best mean first."""
        means = {method: mean for method in self.methods if (mean := self.mean(method, site)) is not None}
        return sorted(means, key=lambda method: -means[method])


def compare(
    base: RunConfig,
    methods: Sequence[str],
    folder: Path,
    *,
    seeds: int = 5,
    tries: int = 20,
    metric: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
) -> Comparison:
    """Compare methods on the same splits.

    Each seed divides each site's examples anew, and is the seed of training. On each split every method tries the same
    number of settings on the validation examples and is then trained and tested with the best ones. No test example of
    a split takes part in its choices. The first try is the base run's settings.

    Args:
        base: data, encoder, rounds, cohort and the solver's length and batch for all methods.
        methods: names; training alone (``local``) is a good yardstick.
        folder: for the cells; the same call resumes, within a search as well.
        seeds: number of splits.
        tries: settings for each method and split; 0: all with the base run's settings.
        metric: to tune for and compare by, over all sites together, ``"balanced_accuracy"`` say; default: AUC, or R².
        workers: processes; default: one a core.
        fresh: start anew.

    Raises:
        ValueError: an unknown method or metric, or settings that don't fit.
        CellsFailed: some cells failed; the others are kept.
    """
    if seeds < 1 or tries < 0:
        raise ValueError(f"seeds must be at least 1 and tune at least 0; given {seeds} and {tries}.")
    names = list(dict.fromkeys(name.strip() for name in methods if name.strip()))
    if len(names) < 2:
        raise ValueError(f"A comparison takes two methods or more; given {', '.join(names) or 'none'}.")
    base = with_validation(base) if tries else base
    chosen_metric = metric_of(base, metric)
    entries = {name: entry(base, name) for name in names}
    settings = base.model_dump(mode="json")
    cells = [
        Cell(
            f"{name.replace(':', '.')}/seed{seed}",
            one_method,
            {"base": settings, "section": section, "seed": seed, "tries": tries, "metric": chosen_metric,
             "first": defaults(section, name, base)},
        )
        for seed in range(seeds)
        for name, section in entries.items()
    ]  # fmt: skip
    found = run_grid(cells, folder, workers=workers, fresh=fresh)
    results = {(n, s): found[f"{n.replace(':', '.')}/seed{s}"] for n in names for s in range(seeds)}
    return _collected(results, names, seeds, tries, chosen_metric)


def base_config(what: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the base run of a comparison: of a preset, of a file, or for a folder of clients' files.

    For a folder it is a small network on tables: 30 rounds of two passes over the data in batches of 16.

    Args:
        what: a preset, a YAML file, or a folder with one file for each client.
        overrides: settings, as of ``archipel run``.
    """
    if not Path(what).is_dir():
        return read_config(what, overrides)
    data = ["data.source=arrays", f"data.data_dir={json.dumps(str(Path(what)))}", f"name={json.dumps(_word(what))}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the preset's own data are replaced
        return read_config("heart-fedavg", ["rounds=30", *data, *overrides])


def _word(what: str) -> str:
    return Path(what).resolve().name or "data"


def with_validation(base: RunConfig) -> RunConfig:
    """Return the configuration with validation examples, a fifth of all where it sets none."""
    if base.data.validation:
        return base
    settings = base.model_dump()
    return validate(settings | {"data": settings["data"] | {"validation": VALIDATION}}, "the base run")


def metric_of(base: RunConfig, metric: str | None) -> str:
    """Return the metric to compare by, which is one of the data's kind."""
    regression = federation_from(base).classes is None
    allowed = REGRESSION if regression else CLASSIFICATION
    if metric is not None and metric not in allowed:
        kind = "numbers as targets" if regression else "classes"
        raise ValueError(f"These data have {kind}, so that metric is one of {', '.join(allowed)}; given {metric!r}.")
    return metric or ("r2" if regression else "auc")


def _collected(
    results: dict[tuple[str, int], dict[str, Any]], names: list[str], seeds: int, tries: int, metric: str
) -> Comparison:
    scores: dict[str, dict[str, dict[int, float]]] = {name: {} for name in names}
    failed: dict[str, str] = {}
    for (name, seed), result in results.items():
        if "why" in result:
            failed[name] = f"seed {seed}: {result['why']}"
        for site, value in result["scores"].items():
            scores[name].setdefault(site, {})[seed] = value
    sizes = [n for result in results.values() for n in result.get("sizes", {}).values()]
    train, test = (sum(n[k] for n in sizes) for k in (0, 1))
    titles = {name: next((results[name, s]["method"] for s in range(seeds) if "method" in results[name, s]), name)
              for name in names}  # fmt: skip
    sent = {name: [r["uplink"] for s in range(seeds) if "uplink" in (r := results[name, s])] for name in names}
    return Comparison(
        metric=metric,
        methods=names,
        titles=titles,
        seeds=seeds,
        tries=tries,
        scores=scores,
        chosen={name: {seed: results[name, seed]["chosen"] for seed in range(seeds)} for name in names},
        bytes={name: sum(found) / len(found) if found else 0.0 for name, found in sent.items()},
        ratio=test / train if train else 0.0,
        failed=failed,
    )
