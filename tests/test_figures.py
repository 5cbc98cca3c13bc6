"""Figures: written in both forms, showing what they were given."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from archipel import Federation, Run
from archipel.data import digits, dual_heterogeneity
from archipel.reports.figures import COLOURS, accuracy_curves, federation_figure, routing_confusion, save
from archipel.runs.facts import Facts
from archipel.runs.routing import Routing

HISTORY = [
    {"round": 1},
    {"round": 2, "metrics": {"system_accuracy": 0.25, "average_accuracy": 0.5}},
    {"round": 4, "metrics": {"system_accuracy": 0.75, "average_accuracy": 1.0}},
]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return dual_heterogeneity(digits(), clients=3)


class Stubborn(Run):
    """Routes everything to the last client."""

    def route(self, x):
        m = len(self.facts.names)
        return Routing(torch.full((len(x),), m - 1), torch.ones(len(x), m) / m, self.facts.names)


def test_figures_are_written_and_show_something(federation, tmp_path) -> None:
    paths = save(federation_figure(federation), tmp_path / "figures", "federation")
    assert [path.name for path in paths] == ["federation.pdf", "federation.png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    pixels = imread(paths[1])
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 100


def test_the_same_figure_is_the_same_file(tmp_path) -> None:
    first, second = (save(accuracy_curves({"A": HISTORY}), tmp_path / n, "a")[0].read_bytes() for n in "12")
    assert first == second


def test_curves_hold_the_metrics(tmp_path) -> None:
    axes = accuracy_curves({"A": HISTORY, "B": HISTORY[:2]}, oracle=0.9).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["A, system"].get_xydata().tolist() == [[2, 25], [4, 75]]
    assert lines["A, average"].get_xydata().tolist() == [[2, 50], [4, 100]]
    assert lines["B, system"].get_xydata().tolist() == [[2, 25]]
    assert set(lines["oracle"].get_ydata()) == {90.0}
    styles = {(line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 5, "methods and metrics must differ without colour"


def test_colours_differ_in_grey() -> None:
    weights = np.array([0.299, 0.587, 0.114])
    grey = [sum(weights * [int(colour[i : i + 2], 16) for i in (1, 3, 5)]) for colour in COLOURS[:2]]
    assert abs(grey[0] - grey[1]) > 30


def test_the_federation_figure_shows_images_weights_and_labels(federation) -> None:
    figure = federation_figure(federation)
    pictures = [axes for axes in figure.axes if axes.get_title() or axes.get_ylabel().startswith("component")]
    assert len(pictures) == 3 + 1  # titles above the first row, a name beside the second
    weights = next(axes for axes in figure.axes if axes.get_ylabel() == "weights")
    heights = [bar.get_height() for bar in weights.patches]
    realised = [(client.truth["train"]["component"] == 0).double().mean().item() for client in federation.clients]
    assert heights[:3] == pytest.approx(realised)
    shares = next(axes for axes in figure.axes if "client" in axes.get_xlabel()).images[0].get_array()
    assert np.allclose(shares.sum(0), 100)


def test_tables_have_a_figure_too() -> None:
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    islands = Federation.from_arrays([(x, torch.arange(30) % 3), (x, torch.arange(30) % 2)])
    figure = federation_figure(islands)
    shares = next(axes for axes in figure.axes if axes.images).images[0].get_array()
    assert shares.shape == (3, 2)


def test_no_figure_of_a_regression() -> None:
    islands = Federation.from_arrays([(torch.randn(10, 2), torch.randn(10))])
    with pytest.raises(ValueError, match="regression"):
        federation_figure(islands)


def test_routing_confusion_counts_rows(federation) -> None:
    run = Stubborn(None, {}, [], Facts.of(federation))
    shares = routing_confusion(run, federation).axes[0].images[0].get_array()
    assert np.array_equal(shares, [[0, 0, 100]] * 3)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("kind", ["table", "image"])
def test_no_panel_of_the_federation_figure_vanishes(classes, kind) -> None:
    rng = np.random.default_rng(0)
    shape = (4,) if kind == "table" else (1, 8, 8)
    arrays = [(rng.normal(size=(20, *shape)), np.arange(20) % classes) for _ in range(3)]
    figure = federation_figure(Federation.from_arrays(arrays, names=["Nice", "Lyon", "Sophia Antipolis"]))
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        inches = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        assert inches.height > (0.15 * classes if axes is figure.axes[-1] else 0.3)
        assert inches.width > 0.3
