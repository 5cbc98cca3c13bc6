"""Metrics of sites with their intervals, as tables for the terminal and as texts for pages."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from archipel.runs.metrics.assessment import Assessment
from archipel.runs.metrics.estimate import Estimate

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "f1": "F1",
    "brier": "Brier score",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
}
HOW = (
    "95 % intervals: Wilson (accuracy, sensitivity, specificity, F1), Newcombe (AUC), Student's t (Brier, errors), "
    "MOVER (balanced accuracy). Sites sent counts or sums, and no scores; AUC's and Brier's intervals include the "
    "error of bins."
)
NARROWEST = 11


def title_of(metric: str) -> str:
    """Return a metric's name as tables show it.

    >>> title_of("auc"), title_of("mae[1]")
    ('AUC', 'MAE[1]')
    """
    stem, bracket, rest = metric.partition("[")
    return TITLES.get(stem, stem) + bracket + rest


def number(value: float | None) -> str:
    """Write a value with three digits after the point, or four significant ones if it is large.

    >>> number(0.51249), number(1234.5), number(-0.0001), number(None)
    ('0.512', '1234', '0.000', '–')
    """
    if value is None:
        return "–"
    return _signed(f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}")


def interval(estimate: Estimate) -> str:
    """Write an interval.

    >>> interval(Estimate(0.5, 0.25, 0.75))
    '0.25–0.75'
    """
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (_signed(f"{x:.2f}" if abs(x) < 100 else f"{x:.4g}") for x in (estimate.low, estimate.high))
    return f"{low} to {high}" if low.startswith("−") else f"{low}–{high}"


def _signed(text: str) -> str:
    """Return a number's text with a minus sign, and without one for zero."""
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def about(assessment: Assessment) -> str:
    """Say what the metrics are of: the positive class, or means over classes."""
    if assessment.classes is None:
        return "errors of predictions"
    if assessment.positive is None:
        return "one class against the rest, mean over classes (macro)"
    return f"positive class: {assessment.positive}"


def site_tables(assessment: Assessment, width: int = 80) -> list[Table]:
    """Return tables of all sites and models, as many metrics beside each other as the width takes.

    Args:
        assessment: to show.
        width: of the terminal, in characters.
    """
    metrics = list(assessment.rows[0].metrics)
    names = max(len(text) + 2 for row in assessment.rows for text in (row.site, row.model))
    room = max(1, (width - names - 7) // (NARROWEST + 2))
    pieces = [metrics[start : start + room] for start in range(0, len(metrics), room)]
    tables = []
    for place, piece in enumerate(pieces):
        title = f"Each site, {assessment.part} examples; {about(assessment)}" if place == 0 else None
        table = Table(title=title and escape(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("n", justify="right")
        for metric in piece:
            table.add_column(title_of(metric), justify="right", max_width=max(NARROWEST, 2 + len("−1.00 to −1.00")))
        last = None
        for row in assessment.rows:
            if row.site != last:
                table.add_row(f"[bold]{escape(row.site)}[/]")
                last = row.site
            values = [row.metrics[metric] for metric in piece]
            cells = [f"{number(value.value)}\n[dim]{interval(value)}[/]" for value in values]
            table.add_row(f"  {escape(row.model)}", str(row.n), *cells)
        tables.append(table)
    return tables
