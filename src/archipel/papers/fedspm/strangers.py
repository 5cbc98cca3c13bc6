"""Digits and letters among the queries to a FedSPM of Fashion-MNIST, and the calibration of its router.

The strangers come in two forms: grey, as in their data sets, and transformed like a client's images, with the colours
and light of a client drawn at random and its components' inversion. In the second form only their content differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from torch import Tensor

from archipel.algorithms.fedspm import FedSPM
from archipel.data.dual_heterogeneity import dual_transform, sized
from archipel.data.federation import Federation
from archipel.data.sources.catalogue import load_source
from archipel.data.sources.scikit import digits
from archipel.drm.refit import refitted
from archipel.drm.reliability import reliability
from archipel.drm.strangers import Watch, p_values
from archipel.experiments.building import federation_from
from archipel.experiments.reading import read_config
from archipel.experiments.running import train
from archipel.papers.fedspm.routing_figure import draw_reliability
from archipel.reports.figures import COLOURS, bare, save
from archipel.reports.provenance import provenance
from archipel.runs.answers import PIECE
from archipel.runs.run import Run

Score = Callable[[Tensor], Tensor]
LEVEL = 0.05


def strange_queries(components: int, clients: int, data_dir: Path | None, most: int = 1500) -> dict[str, Tensor]:
    """Return scikit-learn's digits and FEMNIST's letters, grey and transformed, uint8 ``(n, 3, 28, 28)`` each.

    Args:
        components: C of the federation whose transformations are applied.
        clients: m.
        data_dir: where FEMNIST is.
        most: largest number of queries of each kind.
    """
    femnist = load_source("femnist", data_dir)
    letters = 255 - femnist.x[femnist.y >= 10]  # black background, like the others
    grey = {"digits": sized(digits(), 28), "letters": letters if letters.dim() == 4 else letters[:, None]}
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, images in grey.items():
        chosen = images[torch.randperm(len(images), generator=generator)[:most]]
        found[name] = chosen.expand(-1, 3, -1, -1).contiguous()
        transformed = torch.empty_like(found[name])
        owner = torch.randint(clients, (len(chosen),), generator=generator)
        component = torch.randint(components, (len(chosen),), generator=generator)
        for i in range(clients):
            transformed[owner == i] = dual_transform(chosen[owner == i], component[owner == i], i)
        found[f"transformed {name}"] = transformed
    return found


def contenders(run: Run, watch: Watch) -> dict[str, Score]:
    """Return scores that are low for strangers: the density of :class:`Watch`, and two of density ratios."""
    algorithm, server = run.algorithm, run.server
    assert isinstance(algorithm, FedSPM)

    @torch.no_grad()
    def log_weighted(x: Tensor) -> Tensor:
        """Return log Σ_c exp(log τ_ic + γ_ic + ξ_icᵀh(x)), ``(n, m)``."""
        ratios = [algorithm.log_ratios(server["ratio"], piece)[0] for piece in x.split(PIECE)]
        return torch.logsumexp(torch.cat(ratios).double() + server["tau"].double().log(), dim=2)

    return {
        "density": watch.scores,
        "energy": lambda x: log_weighted(x).logsumexp(1),
        "largest posterior": lambda x: log_weighted(x).softmax(1).max(1).values,
    }


def judge(run: Run, federation: Federation, data_dir: Path | None = None) -> tuple[dict[str, Any], Figure]:
    """Measure false alarms on test examples, detected strangers, and areas under ROC curves, for each score.

    Args:
        run: of FedSPM on Fashion-MNIST under dual heterogeneity, with validation examples.
        federation: the run's.
        data_dir: where FEMNIST is.

    Returns:
        The numbers, and a figure of ROC curves beside reliability diagrams of the router as trained and refitted.
    """
    watch = Watch.of(run, federation)
    own = torch.cat([client.test["x"] for client in federation.clients])
    held_out = torch.cat([client.splits["validation"]["x"] for client in federation.clients])
    strange = strange_queries(2, len(federation.clients), data_dir)
    table: dict[str, Any] = {}
    values: dict[str, dict[str, Tensor]] = {}
    for name, score in contenders(run, watch).items():
        calm, normal = score(held_out), score(own)
        values[name] = {"own": normal} | {kind: score(x) for kind, x in strange.items()}
        alarms = p_values(calm, normal) <= LEVEL
        table[name] = {"false alarms": float(alarms.double().mean())}
        for kind in strange:
            seen = values[name][kind]
            told = float((p_values(calm, seen) <= LEVEL).double().mean())
            ours = np.repeat([1, 0], [len(normal), len(seen)])
            area = float(roc_auc_score(ours, torch.cat([normal, seen]).numpy()))
            table[name][kind] = {"told": told, "area under ROC": area}
    origin = torch.repeat_interleave(
        torch.arange(len(federation.clients)), torch.tensor([len(c.test["y"]) for c in federation.clients])
    )
    routers = {"FedSPM": run, "tilts refitted": refitted(run, federation)}
    found = {name: reliability(one.route(own).probabilities, origin) for name, one in routers.items()}
    labels = torch.cat([client.test["y"] for client in federation.clients])
    numbers = {
        "level": LEVEL,
        "held out": len(held_out),
        "queries": {"own": len(own)} | {kind: len(x) for kind, x in strange.items()},
        "scores": table,
        "routing": {
            name: {
                "accuracy": float((one.route(own).clients == origin).double().mean()),
                "expected calibration error": found[name].error,
                "of a right posterior at most": found[name].chance,
                "system accuracy": float((one.predict(own).values.argmax(1) == labels).double().mean()),
            }
            for name, one in routers.items()
        },
    }
    drawn = Figure(figsize=(10.6, 3.6), layout="constrained")
    axes = drawn.subplots(1, 3)
    for place, transformed in zip(axes[:2], (False, True), strict=True):
        _roc(place, values, [kind for kind in strange if kind.startswith("transformed") == transformed])
        place.set_title("strangers transformed like clients" if transformed else "strangers, grey", fontsize=10)
    draw_reliability(axes[2], found)
    return numbers, drawn


def report(rounds: int, out_dir: Path, *, fresh: bool = False, data_dir: Path | None = None) -> list[Path]:
    """Train the preset fmnist-fedspm-incremental with validation examples, or resume it, and measure its scores.

    Returns:
        ``strangers.json``, and the figure in its two forms.
    """
    where = [] if data_dir is None else [f"data.data_dir={data_dir}"]
    config = read_config("fmnist-fedspm-incremental", [f"rounds={rounds}", "data.validation=0.1", *where])
    federation = federation_from(config)
    run = train(config, out_dir / "run", federation=federation, fresh=fresh).run
    numbers, drawn = judge(run, federation, data_dir)
    about = {"command": f"archipel bench strangers --rounds {rounds}"}
    table = out_dir / "strangers.json"
    table.write_text(json.dumps({"about": about | provenance()} | numbers, indent=1) + "\n")
    return [table, *save(drawn, out_dir, "strangers")]


def _roc(axes: Any, values: Mapping[str, Mapping[str, Tensor]], kinds: list[str]) -> None:
    for i, (name, scores) in enumerate(values.items()):
        for kind, dash in zip(kinds, ("-", ":"), strict=True):
            thresholds = scores["own"].quantile(torch.linspace(0, 1, 201, dtype=scores["own"].dtype))
            told = [(scores[kind] <= t).double().mean() for t in thresholds]
            axes.plot(torch.linspace(0, 1, 201), told, dash, color=COLOURS[i], label=f"{name}, {kind.split()[-1]}")
    axes.axvline(LEVEL, color="#8C8C8C", linewidth=0.8)
    axes.set(xlabel="false alarms", ylabel="strangers told", xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    bare(axes)
