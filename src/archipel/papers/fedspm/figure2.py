"""The FedSPM paper's Figure 2: momentum of the density-ratio block, convergence and bridge errors.

Z. Wang, P. Li, G. Yang, Q. Zhang: FedSPM: routing-enabled federated learning under dual heterogeneity via
semiparametric mixture. arXiv 2607.04085, 2026; Sec. 3.2 and App. D.4.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from archipel.drm.bridge import BridgeErrors, Estimates, estimates
from archipel.experiments.grids.grid import Cell, run_grid
from archipel.experiments.reading import validate
from archipel.experiments.running import train
from archipel.papers.fedspm import baselines
from archipel.papers.fedspm.baselines import LIGHT, Setting
from archipel.papers.fedspm.reports import foot
from archipel.papers.fedspm.tables import Grid

Place = Literal["normalised", "balanced"]
MOMENTA = (0.0, 0.3, 0.6, 0.9, 0.95, 0.99)
PLACES: Mapping[Place, str] = {
    "normalised": "a constant added to all γ",
    "balanced": "each γ set to mass one",
}
MEANING = """`gradient`: mean of ‖∇f‖² over the measured rounds, at the iterates; `Γ̂₂`, and `Σδ̂/√T` and `Σε̂/T` over all
T of them: App. D.4. f = −Q₂/n and f̃ = −Q̃₂/n, means over the n training examples. Gaps: measured rounds left out,
since eq. (6) has no solution at one of the two iterates (0 is outside the convex hull, f = +∞). Where a constant is
added to all γ, ∇f is ∇_φ F of the iterate (Lemma 2); where each γ is set to mass one, eq. (6) always has a solution,
and f is the smallest over γ."""


def fast(rounds: int = 25, **data: Any) -> Setting:
    """Fashion-MNIST at 16 × 16 pixels with small multi-layer perceptrons, and the exact E-step."""
    small = {"name": "mlp", "features": 16, "options": {"hidden": [32]}}
    return Setting({"source": "fashion-mnist", "size": 16, **data}, small, small, rounds)


def full(encoder: str = "resnet18", rounds: int = 200, **data: Any) -> Setting:
    """The paper's: 200 rounds, a light CNN as router."""
    setting = baselines.full("fashion-mnist", encoder, **data)
    return replace(setting, router={**LIGHT, "features": 32}, rounds=rounds, evaluate_every=None)


def cells(setting: Setting, momenta: Sequence[float], seeds: int, every: int) -> list[Cell]:
    """A run a momentum and seed; learning rates of both blocks are constant."""
    made = []
    for momentum in momenta:
        for seed in range(seeds):
            config = setting.config(
                "fedspm",
                seed,
                components=baselines.COMPONENTS,
                local={"schedule": "constant"},
                routing={"schedule": "constant", "momentum": momentum},
            )
            arguments = {"config": config.model_dump(mode="json"), "every": every}
            made.append(Cell(f"momentum{momentum:g}/seed{seed}", measured, arguments))
    return made


def measured(folder: Path, config: dict[str, Any], every: int) -> dict[str, Any]:
    """Makes a run with :class:`archipel.drm.bridge.BridgeErrors`, and returns what was measured and where it ended."""
    run = train(validate(config, str(folder)), folder, callbacks=[BridgeErrors(every)]).run
    return {
        "history": [{"bridge": record["bridge"]} for record in run.history if "bridge" in record],
        "loss": [record["routing_loss"] for record in run.history],
        "metrics": run.metrics,
    }


def figure2(setting: Setting, grid: Grid, *, momenta: Sequence[float] = MOMENTA, every: int = 1) -> dict[str, Any]:
    """Figure 2: running mean of ‖∇_φ F‖² and normalised cumulative sums of ε̂ and δ̂, for each momentum.

    Args:
        setting: of Fashion-MNIST.
        grid: how it is carried out.
        momenta: μ of the density-ratio block.
        every: rounds from one measured t to the next.

    Returns:
        What each run measured; ``figure2.png``, ``.pdf``, ``.md`` and ``.json`` are in ``grid.out``.
    """
    if setting.rounds < 2:
        raise ValueError(f"Bridge errors need two rounds or more, before and after; given rounds={setting.rounds}.")
    made = cells(setting, momenta, grid.seeds, every)
    results = run_grid(made, grid.out / "runs", workers=grid.workers, fresh=grid.fresh)
    by = {
        (place, momentum): [
            estimates(results[f"momentum{momentum:g}/seed{seed}"]["history"], place) for seed in range(grid.seeds)
        ]
        for place in PLACES
        for momentum in momenta
    }
    from archipel.papers.fedspm.figure2_drawing import (
        draw,  # matplotlib costs a second, and a grid's processes don't draw
    )
    from archipel.reports.figures import save

    paths = save(draw({(place, momentum): found[0] for (place, momentum), found in by.items()}), grid.out, "figure2")
    lines = [f"- {line}" for line in foot([_described(made[0])], grid.seeds, grid.command, grid.notes)]
    text = "\n".join([*(table(place, by, momenta) for place in PLACES), MEANING, "", *lines]) + "\n"
    (grid.out / "figure2.md").write_text(text)
    numbers = [
        {"place": place, "momentum": momentum, "seed": seed} | asdict(found)
        for (place, momentum), all_seeds in by.items()
        for seed, found in enumerate(all_seeds)
    ]
    (grid.out / "figure2.json").write_text(json.dumps([_plain(entry) for entry in numbers], indent=1) + "\n")
    if grid.console is not None:
        written = [*paths, grid.out / "figure2.md", grid.out / "figure2.json"]
        grid.console.print(text, markup=False, highlight=False, soft_wrap=True)
        grid.console.print(*written, sep="\n", markup=False, highlight=False, soft_wrap=True)
    return results


def table(place: Place, by: Mapping[tuple[Place, float], Sequence[Estimates]], momenta: Sequence[float]) -> str:
    """The last values for each momentum, the first seed's, in Markdown."""
    lines = [
        f"**{place}: {PLACES[place]}**\n",
        "| μ | gradient | Γ̂₂ | Σδ̂/√T | Σε̂/T | T | gaps |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for momentum in momenta:
        found = by[place, momentum][0]
        shown = [_last(found.gradient), _number(found.gamma2), _last(found.delta_sum), _last(found.epsilon_sum)]
        cells = [f"{momentum:g}", *shown, str(len(found.t)), str(len(found.gaps))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _described(cell: Cell) -> str:
    config = cell.arguments["config"]
    algorithm, every = config["algorithm"], cell.arguments["every"]
    routing = algorithm["routing"]
    return (
        f"{config['data']['source']}, {config['data']['clients']} clients, {config['rounds']} rounds, measured every "
        f"{every}; encoder {config['encoder']['name']}, router {algorithm['router']['name']}; C = "
        f"{algorithm['components']}, {routing['steps']} routing steps of batch {routing['batch']}, constant lr "
        f"{routing['lr']:g}; E-step: {algorithm['expectation']}."
    )


def _last(values: Sequence[float]) -> str:
    return _number(values[-1]) if values else "–"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """In JSON's types, which know no NaN."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in entry.items()}
