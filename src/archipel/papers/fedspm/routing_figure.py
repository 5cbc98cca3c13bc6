"""The figure of ``archipel bench routing``: fitted density ratios against the Bayes rule, and their calibration.

Clients are normal with known centres, so the Bayes rule is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from archipel.data.gaussian_clients import GaussianClients
from archipel.drm.model import DensityRatioModel, pool
from archipel.drm.reliability import Reliability, reliability
from archipel.reports.figures import COLOURS, MARKERS, bare

FEWEST = 10
"""Smallest number of queries of a bin that is drawn."""


@dataclass(frozen=True)
class Lesson:
    """A router fitted to samples of one size.

    Args:
        size: examples of all clients together.
        accuracy: share of queries routed to their own client, one number for each repetition.
        regret: largest true posterior less that of the chosen client, averaged over queries; one number for each
            repetition.
        reliability: of the first repetition's posterior.
    """

    size: int
    accuracy: tuple[float, ...]
    regret: tuple[float, ...]
    reliability: Reliability


def three_clients() -> GaussianClients:
    """Return clients N(μ_i, I) in the plane with shares 0.5, 0.3 and 0.2.

    Their log density ratios are linear in x, and they overlap.
    """
    means = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.5, 1.5]]).reshape(3, 1, 1, 2)
    return GaussianClients(torch.tensor([0.5, 0.3, 0.2]), torch.ones(3, 1), torch.ones(3, 1, 1), means, std=1.0)


def draw(truth: GaussianClients, sizes: Sequence[int], rng: np.random.Generator) -> list[Tensor]:
    """Draw examples of each client, float64 ``(n_i, d)`` each."""
    centres = truth.means[:, 0, 0]
    return [
        centre + truth.std * torch.from_numpy(rng.normal(size=(n, len(centre))))
        for centre, n in zip(centres, sizes, strict=True)
    ]


def learn(
    truth: GaussianClients, sizes: Sequence[int], queries: int = 50_000, repetitions: int = 10
) -> tuple[float, Reliability, list[Lesson]]:
    """Fit density ratios to samples of several sizes, and compare their routing with the Bayes rule.

    Args:
        truth: normal clients of one component and one class each.
        sizes: examples of all clients together, divided among them by ρ.
        queries: number of queries, divided by ρ.
        repetitions: samples of each size.

    Returns:
        The Bayes rule's accuracy and reliability, and a lesson for each size.
    """
    shares = truth.rho
    x, origin = _with_origin(draw(truth, _counts(queries, shares), np.random.default_rng(0)))
    best = truth.route(x).exp()
    lessons = []
    for size in sizes:
        accuracy, regret, first = [], [], None
        for repetition in range(repetitions):
            sample = draw(truth, _counts(size, shares), np.random.default_rng([size, repetition]))
            posterior = DensityRatioModel.fit(*pool(sample)).route(x, shares).exp()
            chosen = posterior.argmax(1)
            accuracy.append(float((chosen == origin).double().mean()))
            regret.append(float((best.max(1).values - best.gather(1, chosen[:, None])[:, 0]).mean()))
            first = first or reliability(posterior, origin)
        assert first is not None
        lessons.append(Lesson(size, tuple(accuracy), tuple(regret), first))
    return float((best.argmax(1) == origin).double().mean()), reliability(best, origin), lessons


def figure(best: float, ideal: Reliability, lessons: Sequence[Lesson]) -> Figure:
    """Draw the accuracy lost against the Bayes rule by sample size, and reliability diagrams."""
    drawn = Figure(figsize=(8.4, 3.7), layout="constrained")
    left, right = drawn.subplots(1, 2)
    sizes = np.array([lesson.size for lesson in lessons])
    means = np.array([np.mean(lesson.regret) for lesson in lessons])
    for lesson in lessons:
        left.plot([lesson.size] * len(lesson.regret), lesson.regret, ".", color=COLOURS[5], markersize=5)
    left.plot(sizes, means, "o-", color=COLOURS[0], label="mean")
    left.plot(sizes, means[-1] * sizes[-1] / sizes, "--", color="#8C8C8C", label="slope −1")
    left.set(xscale="log", yscale="log", xlabel="examples", ylabel="routing accuracy below the Bayes rule's")
    left.set_title(f"Bayes rule: {100 * best:.1f} %", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    bare(left)
    shown = {f"{lesson.size} examples": lesson.reliability for lesson in (lessons[0], lessons[-1])}
    draw_reliability(right, shown | {"Bayes rule": ideal})
    return drawn


def draw_reliability(axes: Axes, found: Mapping[str, Reliability]) -> None:
    """Draw accuracy against confidence ± a standard error for each router, leaving out bins of few queries."""
    axes.plot([0, 1], [0, 1], "--", color="#8C8C8C", linewidth=1)
    for i, (name, one) in enumerate(found.items()):
        full = one.count >= FEWEST
        confidence, accuracy, count = one.confidence[full], one.accuracy[full], one.count[full]
        spread = (accuracy * (1 - accuracy) / count).sqrt()
        axes.errorbar(
            confidence.numpy(),
            accuracy.numpy(),
            spread.numpy(),
            fmt=f"{MARKERS[i % len(MARKERS)]}-",
            color=COLOURS[i % len(COLOURS)],
            markersize=4,
            linewidth=1,
            capsize=2,
            label=f"{name}: ECE {100 * one.error:.1f} %",
        )
    axes.set(xlabel="probability of the most likely client", ylabel="how often it is that client's", aspect="equal")
    lowest = min(float(one.confidence.min()) for one in found.values())
    axes.set(xlim=(max(0.0, lowest - 0.05), 1.02), ylim=(max(0.0, lowest - 0.1), 1.02))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    bare(axes)


def _counts(n: int, shares: Tensor) -> list[int]:
    counts: list[int] = (n * shares).round().long().tolist()
    return counts


def _with_origin(samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([len(sample) for sample in samples])
    return torch.cat(list(samples)), torch.repeat_interleave(torch.arange(len(samples)), sizes)
