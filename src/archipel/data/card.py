"""A federation's card: what each client holds, and how far clients are from one another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from archipel.core.checks import clean
from archipel.data.client import Client
from archipel.data.federation import Federation

MOST_ROWS = 500
"""Training examples per client, evenly spaced, from which feature distances are estimated."""
MOST_CLIENTS = 12
"""Matrices of distances are shown for up to this many clients; of more, their mean and maximum."""


@dataclass(frozen=True)
class Card:
    """A federation in numbers.

    Attributes:
        title: its name, and what it holds, in a line.
        columns: headings of `rows`.
        rows: a row of text a client.
        names: of the clients.
        label_distances: (m, m) total variation between label distributions; None for a regression.
        feature_distances: (m, m), of `feature_distances`.
        notes: what the numbers mean.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    label_distances: Tensor | None
    feature_distances: Tensor
    notes: tuple[str, ...]

    @property
    def _distances(self) -> list[tuple[str, Tensor]]:
        both = (("label distance", self.label_distances), ("feature distance", self.feature_distances))
        return [(name, matrix) for name, matrix in both if matrix is not None and len(self.names) > 1]

    def _summary(self, name: str, matrix: Tensor) -> str:
        m = len(matrix)
        mean = float(matrix.sum() / (m * (m - 1)))
        far = divmod(int(matrix.argmax()), m)
        pair = f"{self.names[far[0]]}, {self.names[far[1]]}"
        return f"{name}: {mean:.2f} on average, at most {float(matrix.max()):.2f} ({pair})"

    def __str__(self) -> str:
        """Write the card as plain text."""
        parts = [self.title, _aligned([self.columns, *self.rows])]
        for name, matrix in self._distances:
            parts.append(self._summary(name, matrix))
            if len(self.names) <= MOST_CLIENTS:
                parts.append(_aligned(_matrix(self.names, matrix)))
        return clean("\n\n".join([*parts, "\n".join(self.notes)]).strip())

    def markdown(self) -> str:
        """Write the card as Markdown, for a README or a data sheet."""
        parts = [f"**{self.title}**", _pipes([self.columns, *self.rows])]
        for name, matrix in self._distances:
            parts.append(self._summary(name, matrix))
            if len(self.names) <= MOST_CLIENTS:
                parts.append(_pipes(_matrix(self.names, matrix)))
        return clean("\n\n".join([*parts, "  \n".join(self.notes)]).strip())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield f"[bold]{escape(self.title)}[/]"
        yield _table([self.columns, *self.rows])
        for name, matrix in self._distances:
            yield "\n" + escape(self._summary(name, matrix))
            if len(self.names) <= MOST_CLIENTS:
                yield _table(_matrix(self.names, matrix))
        yield Text("\n" + "\n".join(self.notes), style="dim")


def card(federation: Federation) -> Card:
    """Describe a federation: sizes, labels' entropy, component weights where they are known, and distances.

    Args:
        federation: any; a regression's card leaves labels out.

    >>> from archipel.data.sources.scikit import digits
    >>> from archipel.data.dual_heterogeneity import dual_heterogeneity
    >>> card(dual_heterogeneity(digits(), clients=2)).columns
    ('client', 'train', 'test', 'classes', 'entropy', 'weights')
    """
    inputs, classes, clients = federation.inputs, federation.classes, federation.clients
    shape = "×".join(map(str, inputs.shape)) if len(inputs.shape) > 1 else f"{inputs.shape[0]} features"
    task = "regression" if classes is None else f"{len(classes)} classes"
    total = int(federation.sizes.sum())
    columns = ["client", *clients[0].splits]
    rows = [[client.name, *(str(len(part["y"])) for part in client.splits.values())] for client in clients]
    notes, distances = [], None
    if classes is not None:
        shares = label_shares(federation)
        entropies = entropy(shares)
        columns += ["classes", "entropy"]
        for row, share, bits in zip(rows, shares, entropies, strict=True):
            row += [str(int((share > 0).sum())), f"{float(bits):.2f}"]
        distances = 0.5 * (shares[:, None] - shares).abs().sum(2)
        which = "before permutation and noise" if "label" in clients[0].truth.get("train", {}) else "as they are"
        notes += [
            f"entropy: of training labels ({which}), in bits, at most {math.log2(len(classes)):.2f}.",
            "label distance: total variation between clients' label distributions, 0 to 1.",
        ]
        if unseen := [name for name, share in zip(classes, shares.sum(0), strict=True) if share == 0]:
            notes.append(f"No client trains on {', '.join(unseen[:10])}{', …' * (len(unseen) > 10)}.")
    if (weights := component_weights(clients)) is not None:
        columns.append("weights")
        for row, shares_of in zip(rows, weights, strict=True):
            row.append(" ".join(f"{float(share):.2f}" for share in shares_of))
        notes.append("weights: fractions of the client's latent components among its training examples.")
    notes.append(
        "feature distance: root mean square, over features, of the difference between clients' means in units of the "
        f"pooled standard deviation within clients, minus what chance adds; from {MOST_ROWS} examples each at most."
    )
    title = f"{federation.name}: {len(clients)} clients, {total} training examples, {task}, {inputs.kind} {shape}"
    return Card(
        title=title,
        columns=tuple(columns),
        rows=tuple(map(tuple, rows)),
        names=tuple(client.name for client in clients),
        label_distances=distances,
        feature_distances=feature_distances(federation),
        notes=tuple(notes),
    )


def true_labels(client: Client) -> Tensor:
    """(n,) training labels, before any permutation or noise where that is known."""
    labels: Tensor = client.truth.get("train", {}).get("label", client.train["y"])
    return labels


def label_shares(federation: Federation) -> Tensor:
    """(m, K) label distributions of the clients' training examples, before any permutation or noise."""
    if federation.classes is None:
        raise ValueError(f"{federation.name!r} is a regression; it has no labels.")
    counts = [torch.bincount(true_labels(client), minlength=len(federation.classes)) for client in federation.clients]
    shares = torch.stack(counts).double()
    return shares / shares.sum(1, keepdim=True)


def entropy(shares: Tensor) -> Tensor:
    """−Σ p log₂ p over the last axis, with 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    tensor([1., 2.])
    """
    nats: Tensor = torch.special.entr(shares).sum(-1)
    return nats / math.log(2)


def component_weights(clients: Sequence[Client]) -> Tensor | None:
    """(m, C) fractions of latent components among training examples; None where they aren't known."""
    if not all("component" in client.truth.get("train", {}) for client in clients):
        return None
    drawn = [client.truth["train"]["component"] for client in clients]
    C = 1 + max(int(c.max()) for c in drawn)
    return torch.stack([torch.bincount(c, minlength=C) / len(c) for c in drawn])


def feature_distances(federation: Federation) -> Tensor:
    """(m, m) distances between clients' mean examples, in units of the features' spread within clients.

    d_ij² = mean_f [(x̄_if − x̄_jf)² / s_f² − 1/n_i − 1/n_j], and 0 if that is negative; s_f² is the pooled variance
    within clients. The last terms are the expected value for two clients of the same distribution, so that d ≈ 0 for
    them. Features that don't vary within clients are left out; missing values don't count.
    """
    means, squares, counts = [], [], []
    for client in federation.clients:
        x = client.train["x"]
        x = x[torch.linspace(0, len(x) - 1, min(len(x), MOST_ROWS)).long()].flatten(1).double()
        there = (~torch.isnan(x)).sum(0).clamp(min=1)
        mean = x.nansum(0) / there
        means.append(mean)
        squares.append((x - mean).square().nansum(0))
        counts.append(there)
    n, mean = torch.stack(counts).double(), torch.stack(means)
    variance = torch.stack(squares).sum(0) / (n.sum(0) - len(n)).clamp(min=1)
    varies = variance > 1e-12 * mean.square().amax(0).clamp(min=1e-12)
    if not bool(varies.any()):
        return torch.zeros(len(n), len(n), dtype=torch.float64)
    z, chance = mean[:, varies] / variance[varies].sqrt(), 1 / n[:, varies]
    squared = torch.stack([((one - z).square() - mine - chance).mean(1) for one, mine in zip(z, chance, strict=True)])
    return squared.clamp(min=0).sqrt().fill_diagonal_(0)


def _matrix(names: Sequence[str], matrix: Tensor) -> list[tuple[str, ...]]:
    cells = [[f"{float(value):.2f}" for value in row] for row in matrix]
    return [("", *map(str, range(len(names)))), *((f"{i} {names[i]}", *row) for i, row in enumerate(cells))]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    rest = [[cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *cells]) for row, cells in zip(rows, rest, strict=True))


def _pipes(rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in [rows[0], rule, *rows[1:]]
    )


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for j, column in enumerate(rows[0]):
        table.add_column(Text(column), justify="right" if j else "left", no_wrap=bool(j))
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table
