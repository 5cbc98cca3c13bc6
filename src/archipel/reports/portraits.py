"""Portraits of federations, as the FedSPM paper draws them: samples, labels by client, component weights by client.

Areas, positions and hatches carry the information, so that they can be read in grey and by colour-blind people.

Source: the FedSPM paper, App. D.2, Figs. 5 to 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from archipel.data.card import true_labels
from archipel.data.client import Client
from archipel.data.federation import Federation
from archipel.reports.figures import COLOURS, HATCHES, MOST_CLIENTS, bare, save, show_image


def samples(federation: Federation) -> Figure:
    """Draw an image for each client and component, all of the same class where all have one (Fig. 5).

    Raises:
        ValueError: data that aren't images.
    """
    if federation.inputs.kind != "image":
        raise ValueError(f"{federation.name!r} holds {federation.inputs.kind} data; samples are drawn of images.")
    clients = federation.clients[:MOST_CLIENTS]
    mixed = _components(federation)
    wanted = _common_class(federation, mixed)
    rows = mixed or 1
    figure = Figure(figsize=(1.0 + 0.9 * len(clients), 0.35 + 0.9 * rows), layout="constrained")
    grid = figure.subplots(rows, len(clients), squeeze=False)
    for i, client in enumerate(clients):
        for c in range(rows):
            show_image(grid[c, i], _sample(client, c if mixed else None, wanted))
            if i == 0 and mixed:
                grid[c, i].set_ylabel(f"component {c}", fontsize=8)
        grid[0, i].set_title(client.name, fontsize=8)
    return figure


def labels(federations: Federation | Mapping[str, Federation]) -> Figure:
    """Draw how many training examples of each class each client has, before any permutation: areas, to scale (Fig. 6).

    Args:
        federations: one, or several by title that are compared side by side, to the same scale.

    Raises:
        ValueError: a regression.
    """
    panels = _panels(federations)
    known = next(iter(panels.values())).classes
    if known is None or any(federation.classes != known for federation in panels.values()):
        raise ValueError("the figure shows labels: of federations that aren't regressions and have the same classes.")
    counts = {title: _counts(federation, len(known)) for title, federation in panels.items()}
    cell, most = 0.3, max(float(table.max()) for table in counts.values())
    widths = [len(table) for table in counts.values()]
    step = 1 if len(known) <= 30 else 10
    height = cell if step == 1 else 0.1
    figure = Figure(figsize=(1.9 + 1.4 * cell * sum(widths), 1.3 + height * len(known)), layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axes, (title, table) in zip(row, counts.items(), strict=True):
        i, k = np.nonzero(table)
        # A full square of the cell for the largest count; 72 points an inch.
        side = 0.86 * 72 * min(cell, height) * np.sqrt(table[i, k] / most)
        axes.scatter(i, k, s=side**2, marker="s", color=COLOURS[0], linewidths=0)
        axes.set(xlim=(-0.6, len(table) - 0.4), ylim=(len(known) - 0.4, -0.6))
        axes.set_xticks(range(len(table)), [f"{j}\n{int(total):,}" for j, total in enumerate(table.sum(1))], fontsize=7)
        axes.set_yticks(range(0, len(known), step), known[::step], fontsize=8)
        axes.set_xlabel("client, and its training examples", fontsize=8)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        _title(axes, title, len(panels), len(panels[title]))
        bare(axes)
    figure.supxlabel(f"areas to scale; the largest square: {int(most):,} examples", fontsize=8)
    return figure


def weights(federations: Federation | Mapping[str, Federation]) -> Figure:
    """Draw how many training examples of each latent component each client has, stacked (Fig. 7).

    Args:
        federations: one, or several by title that are compared side by side, to the same scale.

    Raises:
        ValueError: components that aren't known.
    """
    panels = _panels(federations)
    for federation in panels.values():
        if not _components(federation):
            raise ValueError(f"{federation.name!r} has no latent components that are known.")
    components = max(_components(federation) for federation in panels.values())
    tallest = max(min(len(federation), MOST_CLIENTS) for federation in panels.values())
    figure = Figure(figsize=(1.4 + 2.6 * len(panels), 1.1 + 0.24 * tallest), layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, (title, federation) in zip(row, panels.items(), strict=True):
        clients = federation.clients[:MOST_CLIENTS]
        counts = np.stack(
            [torch.bincount(client.truth["train"]["component"], minlength=components).numpy() for client in clients]
        )
        left = np.zeros(len(clients))
        for c in range(components):
            style = {"color": COLOURS[c % len(COLOURS)], "hatch": HATCHES[c % len(HATCHES)], "edgecolor": "white"}
            axes.barh(range(len(clients)), counts[:, c], 0.75, left, label=f"component {c}", **style)
            left += counts[:, c]
        axes.set_yticks(range(len(clients)), [client.name for client in clients], fontsize=8)
        axes.set_ylim(len(clients) - 0.4, -0.6)
        axes.set_xlabel("training examples", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.tick_params(axis="x", labelsize=8)
        axes.tick_params(axis="y", length=0)
        _title(axes, title, len(panels), len(federation))
        bare(axes)
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def draw(federation: Federation, folder: Path) -> list[Path]:
    """Write all the portraits that can be drawn of a federation, as PDF and PNG."""
    paths = save(samples(federation), folder, "samples") if federation.inputs.kind == "image" else []
    paths += save(labels(federation), folder, "labels") if federation.classes is not None else []
    paths += save(weights(federation), folder, "weights") if _components(federation) else []
    return paths


def _panels(federations: Federation | Mapping[str, Federation]) -> Mapping[str, Federation]:
    return {federations.name: federations} if isinstance(federations, Federation) else federations


def _title(axes: Axes, title: str, panels: int, clients: int) -> None:
    parts = [title] * (panels > 1) + [f"the first {MOST_CLIENTS} of {clients} clients"] * (clients > MOST_CLIENTS)
    axes.set_title(", ".join(parts), fontsize=9)


def _components(federation: Federation) -> int:
    """C, or 0 where components aren't known."""
    truths = [client.truth.get("train", {}).get("component") for client in federation.clients]
    return 1 + max(int(c.max()) for c in truths if c is not None) if all(c is not None for c in truths) else 0


def _counts(federation: Federation, classes: int) -> np.ndarray:
    clients = federation.clients[:MOST_CLIENTS]
    return np.stack([torch.bincount(true_labels(client), minlength=classes).numpy() for client in clients])


def _common_class(federation: Federation, mixed: int) -> int | None:
    """Choose the class that most pictures can show; of those, the one with the most examples in the poorest cell."""
    if federation.classes is None:
        return None
    cells = []
    for client in federation.clients[:MOST_CLIENTS]:
        label = true_labels(client)
        component = client.truth["train"]["component"] if mixed else torch.zeros_like(label)
        cell = component * len(federation.classes) + label
        cells.append(torch.bincount(cell, minlength=(mixed or 1) * len(federation.classes)))
    counts = torch.cat(cells).view(-1, len(federation.classes))
    return max(range(len(federation.classes)), key=lambda k: ((counts[:, k] > 0).sum(), counts[:, k].min()))


def _sample(client: Client, component: int | None, wanted: int | None) -> Tensor | None:
    """Choose an image of a component, of the wanted class if it has one."""
    train = client.train
    mine = torch.ones(len(train["y"]), dtype=torch.bool)
    if component is not None:
        mine = client.truth["train"]["component"] == component
    right = mine & (true_labels(client) == wanted) if wanted is not None else mine
    rows = (right if bool(right.any()) else mine).nonzero()[:, 0]
    return train["x"][rows[0]] if len(rows) else None
