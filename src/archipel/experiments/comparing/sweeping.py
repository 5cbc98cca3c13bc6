"""``archipel sweep``: a run for every combination of some settings, chosen by validation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipel.algorithm import DivergenceError
from archipel.experiments.comparing.cells import score, trained
from archipel.experiments.comparing.comparison import base_config, metric_of, with_validation
from archipel.experiments.comparing.entries import Settings
from archipel.experiments.config import RunConfig
from archipel.experiments.grids.grid import Cell, run_grid
from archipel.experiments.reading import validate
from archipel.experiments.yaml_text import parse

MOST = 1000


@dataclass(frozen=True)
class Point:
    """A combination of settings.

    Args:
        settings: that differ, by key.
        validation: the metric on validation examples, over all sites; ``None`` if the run diverged.
        why: it diverged.
    """

    settings: dict[str, Any]
    validation: float | None
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """What was found.

    Args:
        metric: the runs are compared by.
        points: in the order of the grid.
        test: the metric of the best point on test examples, which no choice has used.
    """

    metric: str
    points: list[Point]
    test: float | None

    @property
    def best(self) -> Point | None:
        """The point with the best validation metric, the first of equals."""
        done = [point for point in self.points if point.validation is not None]
        return max(done, key=lambda point: point.validation or 0.0, default=None)


def combinations(settings: Sequence[str]) -> list[list[str]]:
    """Return every combination of settings, of which several have values separated by commas.

    A comma inside of brackets separates no values. To give one value with a comma, write a list.

    >>> combinations(["lr=0.1,1", "rounds=5"])
    [['lr=0.1', 'rounds=5'], ['lr=1', 'rounds=5']]
    >>> combinations(["hidden=[8, 8],[16]"])
    [['hidden=[8, 8]'], ['hidden=[16]']]
    """
    choices = []
    for text in settings:
        key, equals, values = text.partition("=")
        choices.append([f"{key}{equals}{value}" for value in _split(values)])
    found = [list(chosen) for chosen in itertools.product(*choices)]
    if len(found) > MOST:
        raise ValueError(f"These settings have {len(found)} combinations; at most {MOST} are run. Leave some out.")
    return found


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def sweep(
    what: str,
    settings: Sequence[str],
    folder: Path,
    *,
    metric: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
) -> Sweep:
    """Train a run for every combination of settings, and choose by the validation examples of all sites.

    Args:
        what: a preset or a file.
        settings: as of ``archipel run``; values separated by commas are swept.
        folder: for the cells; the same call resumes.
        metric: to choose by, as of a comparison; default: AUC, or R².
        workers: processes; default: one a core.
        fresh: start anew.

    Raises:
        ValueError: settings that don't fit, or that have too many combinations.
    """
    chosen = combinations(settings)
    configs = [with_validation(base_config(what, one)) for one in chosen]
    metric = metric_of(configs[0], metric)
    differ = {text.partition("=")[0] for column in zip(*chosen, strict=True) if len(set(column)) > 1 for text in column}
    named = [{key: parse(value) for text in one for key, _, value in [text.partition("=")] if key in differ}
             for one in chosen]  # fmt: skip
    cells = [_cell(f"point{place}", config, metric, choosing=True) for place, config in enumerate(configs)]
    found = run_grid(cells, folder / "points", workers=workers, fresh=fresh)
    results = [found[cell.name] for cell in cells]
    points = [Point(one, result["score"], result.get("why", "")) for one, result in zip(named, results, strict=True)]
    done = Sweep(metric, points, None)
    if done.best is None:
        return done
    best = points.index(done.best)
    final = run_grid([_cell(f"point{best}", configs[best], metric, choosing=False)], folder / "best", workers=1,
                     fresh=fresh)  # fmt: skip
    return Sweep(metric, points, final[f"point{best}"]["score"])


def _cell(name: str, config: RunConfig, metric: str, choosing: bool) -> Cell:
    settings = config.model_dump(mode="json") | {"evaluate_every": None, "workers": 1}
    return Cell(name, one_point, {"config": settings, "metric": metric, "choosing": choosing})


def one_point(folder: Path, config: Settings, metric: str, choosing: bool) -> dict[str, Any]:
    """Train one run, and return its metric over all sites; errors are negative, so that larger is better."""
    try:
        run, shown = trained(validate(config, "a point"), choosing=choosing)
    except DivergenceError as error:
        return {"score": None, "why": str(error)}
    sites = run.evaluate(shown).sites
    if sites is None:
        raise ValueError("The method doesn't predict, so that there is nothing to compare.")
    return {"score": score(sites, type(run.algorithm).__name__, metric).get("")}
