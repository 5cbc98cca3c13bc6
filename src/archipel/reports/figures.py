"""Figures of runs and federations as PDF and PNG, readable without colour.

Colours are Okabe and Ito's. Markers, dashes or hatches repeat every distinction that a colour makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.runs.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#8C8C8C"
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "///", "...", "xxx")
MOST_CLIENTS = 16
"""More columns than this can't be read; the first ones are shown."""

LEAST_HEIGHT = 1.6
"""Inches of the panel of labels: below, its captions leave nothing of it."""


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.pdf`` and ``name.png``, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    paths = [folder / f"{name}.{kind}" for kind in ("pdf", "png")]
    for path in paths:
        # No date, so that the same run gives the same file.
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
        figure.savefig(path, dpi=160, bbox_inches="tight", metadata=metadata)
    return paths


def accuracy_curves(histories: Mapping[str, Sequence[dict[str, Any]]], oracle: float | None = None) -> Figure:
    """Draw system and average accuracy against rounds, a colour for each method.

    Args:
        histories: by method's name, its run's history.
        oracle: accuracy of a model that knows client and component, drawn as a dashed line.
    """
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for i, (method, history) in enumerate(histories.items()):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        # A large open marker below a small filled one: where the two metrics agree, both are seen.
        for metric, dash, size, face in (("average", ":", 8, "white"), ("system", "-", 4, colour)):
            name = f"{metric}_accuracy"
            points = [(r["round"], 100 * r["metrics"][name]) for r in history if name in r.get("metrics", {})]
            rounds, values = [x for x, _ in points], [y for _, y in points]
            (line,) = axes.plot(rounds, values, dash, color=colour, label=f"{method}, {metric}")
            line.set(marker=marker, markersize=size, markerfacecolor=face)
    if oracle is not None:
        axes.axhline(100 * oracle, linestyle="--", color="black", linewidth=1.2, label="oracle")
    axes.set(xlabel="round", ylabel="accuracy on test examples (%)", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    bare(axes)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def routing_confusion(run: Run, federation: Federation) -> Figure:
    """Draw the shares of each client's test examples that were routed to each client."""
    names = run.facts.names
    rows = [
        torch.bincount(run.route(client.test["x"]).clients, minlength=len(names)).double()
        if len(client.test["y"])
        else torch.zeros(len(names), dtype=torch.float64)
        for client in federation.clients
    ]
    counts = torch.stack(rows)
    shares = (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
    side = 1.8 + 0.5 * min(len(names), 20)
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set(xlabel="routed to", ylabel="test examples of")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    if len(names) <= 12:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.05:
                shade = "white" if share > 55 else "black"
                axes.text(column, row, f"{share:.3g}", ha="center", va="center", color=shade, fontsize=8)
    figure.colorbar(picture, ax=axes, label="share of the row (%)", shrink=0.8)
    return figure


def federation_figure(federation: Federation) -> Figure:
    """Draw how clients differ, a column for each client: an image of each component, component weights, and labels.

    Of labels the true ones are shown, before any permutation, where the truth is known.

    Raises:
        ValueError: a regression, of which there is nothing to show.
    """
    if federation.classes is None:
        raise ValueError(f"{federation.name} is a regression; the figure shows images and classes.")
    clients = federation.clients[:MOST_CLIENTS]
    mixed = all("component" in client.truth.get("train", {}) for client in clients)
    components = 1 + max(int(client.truth["train"]["component"].max()) for client in clients) if mixed else 1
    pictures = components if federation.inputs.kind == "image" else 0
    heights = [1.0] * pictures + [0.9] * mixed + [max(0.24 * len(federation.classes) + 0.3, LEAST_HEIGHT)]
    figure = Figure(figsize=(2.0 + 0.85 * len(clients), 0.4 + 0.92 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), len(clients), height_ratios=heights)
    for c in range(pictures):
        for i, client in enumerate(clients):
            axes = figure.add_subplot(grid[c, i])
            show_image(axes, _sample(client, c if mixed else None))
            if c == 0:
                axes.set_title(client.name, fontsize=8)
            if i == 0 and mixed:
                axes.set_ylabel(f"component {c}", fontsize=8)
    if mixed:
        _weights(figure.add_subplot(grid[pictures, :]), clients, components)
    _labels(figure.add_subplot(grid[-1, :]), clients, federation.classes, figure)
    return figure


def _sample(client: Client, component: int | None) -> Tensor | None:
    """Return an example of the component, if possible of the client's most frequent class."""
    train, truth = client.train, client.truth.get("train", {})
    label = truth.get("label", train["y"])
    wanted = label == label.mode().values
    if component is not None:
        mine = truth["component"] == component
        wanted = wanted & mine if bool((wanted & mine).any()) else mine
    rows = wanted.nonzero()[:, 0]
    return train["x"][rows[0]] if len(rows) else None


def show_image(axes: Axes, image: Tensor | None) -> None:
    """One image (C, H, W), floats stretched to the grey values there are; "none" if there is none."""
    axes.set(xticks=[], yticks=[])
    if image is None:
        axes.text(0.5, 0.5, "none", ha="center", va="center", fontsize=8, transform=axes.transAxes)
        return
    pixels = image.permute(1, 2, 0).numpy()
    if pixels.dtype != np.uint8:
        low, high = pixels.min(), pixels.max()
        pixels = (pixels - low) / max(high - low, 1e-12)
    axes.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray", interpolation="nearest")


def _weights(axes: Axes, clients: Sequence[Client], components: int) -> None:
    below = np.zeros(len(clients))
    for c in range(components):
        share = np.array([float((client.truth["train"]["component"] == c).double().mean()) for client in clients])
        colour, hatch = COLOURS[c % len(COLOURS)], HATCHES[c % len(HATCHES)]
        axes.bar(range(len(clients)), share, 0.7, below, color=colour, edgecolor="white", hatch=hatch, label=f"{c}")
        below += share
    axes.set(xticks=[], yticks=[0, 1], xlim=(-0.5, len(clients) - 0.5), ylim=(0, 1))
    axes.set_ylabel("weights", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(
        title="component", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, title_fontsize=8
    )
    bare(axes)


def _labels(axes: Axes, clients: Sequence[Client], classes: tuple[str, ...], figure: Figure) -> None:
    labels = [client.truth.get("train", {}).get("label", client.train["y"]) for client in clients]
    shares = np.array([(torch.bincount(y, minlength=len(classes)).double() / len(y)).numpy() for y in labels]).T
    picture = axes.imshow(100 * shares, cmap="Greys", vmin=0, aspect="auto")
    names = [f"{client.name}\n{len(y)}" for client, y in zip(clients, labels, strict=True)]
    axes.set_xticks(range(len(clients)), names, fontsize=8)
    axes.set_yticks(range(len(classes)), classes, fontsize=8)
    axes.set_xlabel("client, and how many examples it trains on", fontsize=8)
    bar = figure.colorbar(picture, cax=axes.inset_axes((1.02, 0, 0.015, 1)))
    bar.set_label("labels (% of client)", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def bare(axes: Axes) -> None:
    """Remove the frame except for the two axes."""
    axes.spines[["top", "right"]].set_visible(False)
