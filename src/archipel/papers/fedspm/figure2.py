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

from archipel.drm.bridge.errors import BridgeErrors, Estimates, estimates
from archipel.experiments.grids.grid import Cell, run_grid
from archipel.experiments.reading import validate
from archipel.experiments.running import train
from archipel.papers.fedspm import baselines
from archipel.papers.fedspm.baselines import LIGHT, Setting
from archipel.papers.fedspm.report import Benchmark, foot
from archipel.reports.provenance import provenance

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
    """Return a small setting: Fashion-MNIST at 16 × 16 pixels, multi-layer perceptrons and the exact E-step."""
    small = {"name": "mlp", "features": 16, "options": {"hidden": [32]}}
    return Setting({"source": "fashion-mnist", "size": 16, **data}, small, small, rounds)


def full(encoder: str = "resnet18", rounds: int = 200, **data: Any) -> Setting:
    """Return the paper's setting: 200 rounds, a light CNN as router."""
    setting = baselines.full("fashion-mnist", encoder, **data)
    return replace(setting, router={**LIGHT, "features": 32}, rounds=rounds, evaluate_every=None)


def cells(setting: Setting, momenta: Sequence[float], seeds: int, every: int) -> list[Cell]:
    """Return a run for each momentum and seed; learning rates of both blocks are constant."""
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
    """Train with :class:`archipel.drm.bridge.BridgeErrors`, and return the measured errors and the last metrics."""
    run = train(validate(config, str(folder)), folder, callbacks=[BridgeErrors(every)]).run
    return {
        "history": [{"bridge": record["bridge"]} for record in run.history if "bridge" in record],
        "loss": [record["routing_loss"] for record in run.history],
        "metrics": run.metrics,
    }


def figure2(
    setting: Setting, benchmark: Benchmark, *, momenta: Sequence[float] = MOMENTA, every: int = 1
) -> dict[str, Any]:
    """Make Figure 2: the running mean of ‖∇_φ F‖² and normalised cumulative sums of ε̂ and δ̂ for each momentum.

    Args:
        setting: of Fashion-MNIST.
        benchmark: where and how it runs.
        momenta: μ of the density-ratio block.
        every: rounds between measurements.

    Returns:
        What each run measured; ``figure2.png``, ``.pdf``, ``.md`` and ``.json`` are in ``benchmark.out``.
    """
    if setting.rounds < 2:
        raise ValueError(f"Bridge errors compare consecutive rounds: give rounds=2 or more, not {setting.rounds}.")
    made = cells(setting, momenta, benchmark.seeds, every)
    results = run_grid(made, benchmark.out / "runs", workers=benchmark.workers, fresh=benchmark.fresh)
    by = {
        (place, momentum): [
            estimates(results[f"momentum{momentum:g}/seed{seed}"]["history"], place) for seed in range(benchmark.seeds)
        ]
        for place in PLACES
        for momentum in momenta
    }
    from archipel.papers.fedspm.figure2_plot import draw
    from archipel.reports.figures import save

    paths = save(
        draw({(place, momentum): found[0] for (place, momentum), found in by.items()}), benchmark.out, "figure2"
    )
    lines = [f"- {line}" for line in foot([_described(made[0])], benchmark.seeds, benchmark.command, benchmark.notes)]
    text = "\n".join([*(table(place, by, momenta) for place in PLACES), MEANING, "", *lines]) + "\n"
    (benchmark.out / "figure2.md").write_text(text)
    numbers = [
        {"place": place, "momentum": momentum, "seed": seed} | asdict(found)
        for (place, momentum), all_seeds in by.items()
        for seed, found in enumerate(all_seeds)
    ]
    (benchmark.out / "figure2.json").write_text(
        json.dumps({"about": provenance(), "runs": [_plain(entry) for entry in numbers]}, indent=1) + "\n"
    )
    if benchmark.console is not None:
        written = [*paths, benchmark.out / "figure2.md", benchmark.out / "figure2.json"]
        benchmark.console.print(text, markup=False, highlight=False, soft_wrap=True)
        benchmark.console.print(*written, sep="\n", markup=False, highlight=False, soft_wrap=True)
    return results


def table(place: Place, by: Mapping[tuple[Place, float], Sequence[Estimates]], momenta: Sequence[float]) -> str:
    """Return the first seed's last values for each momentum in Markdown."""
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
    """Replace NaN, which JSON does not have, by ``None``."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in entry.items()}
