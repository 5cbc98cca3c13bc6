"""Portraits of federations: areas, bars and pictures hold what they claim."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

from archipel import Federation
from archipel.cli.data import app
from archipel.data import digits, dual_heterogeneity, synthetic
from archipel.reports import portraits
from archipel.reports.figures import HATCHES, MOST_CLIENTS


@pytest.fixture(scope="module")
def federation() -> Federation:
    return dual_heterogeneity(digits(), clients=3)


def true_labels(client):
    return client.truth["train"]["label"]


def test_samples_are_of_their_client_and_component_and_of_one_class(federation):
    figure = portraits.samples(federation)
    grid = np.array(figure.axes).reshape(2, 3)
    classes = set()
    for c in range(2):
        for client, axes in zip(federation.clients, grid[c], strict=True):
            shown = torch.from_numpy(np.asarray(axes.images[0].get_array())).permute(2, 0, 1)
            matches = (client.train["x"] == shown).flatten(1).all(1)
            assert matches.any()
            assert (client.truth["train"]["component"][matches] == c).all()
            classes |= {*true_labels(client)[matches].tolist()}
    assert len(classes) == 1
    assert [axes.get_title() for axes in grid[0]] == ["client-0", "client-1", "client-2"]


def test_areas_are_to_scale_over_all_panels(federation):
    other = dual_heterogeneity(digits(), clients=2, alpha_inter=0.1)
    figure = portraits.labels({"α = 1": federation, "α = 0.1": other})
    ratios = []
    for axes, made in zip(figure.axes, (federation, other), strict=True):
        dots = axes.collections[0]
        for (i, k), area in zip(dots.get_offsets().data, dots.get_sizes(), strict=True):
            ratios.append(area / (true_labels(made.clients[int(i)]) == k).sum().item())
        held = sum(len(torch.unique(true_labels(client))) for client in made.clients)
        assert len(dots.get_offsets()) == held
    assert np.ptp(ratios) < 1e-9 * max(ratios)
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks[1] == f"1\n{federation.sizes[1]}"


def test_bars_hold_the_components_and_differ_without_colour(federation):
    axes = portraits.weights(federation).axes[0]
    widths = np.array([bar.get_width() for bar in axes.patches]).reshape(2, 3)
    for i, client in enumerate(federation.clients):
        assert widths[:, i].tolist() == torch.bincount(client.truth["train"]["component"]).tolist()
    assert {bar.get_hatch() or "" for bar in axes.patches} == set(HATCHES[:2])


def test_many_clients_say_so():
    many = synthetic(clients=40, sizes=[30] * 40, features=3, classes=3)
    axes = portraits.labels(many).axes[0]
    assert axes.get_title() == f"the first {MOST_CLIENTS} of 40 clients"
    assert len(axes.get_xticks()) == MOST_CLIENTS


def test_what_there_is_not_is_refused(federation):
    tables = synthetic(clients=2, sizes=[30, 30])
    regression = Federation.from_arrays([(torch.randn(10, 2), torch.randn(10))])
    for draw, made, message in [
        (portraits.samples, tables, "holds table data"),
        (portraits.weights, tables, "no latent components"),
        (portraits.labels, regression, "aren't regressions"),
        (portraits.labels, {"a": federation, "b": synthetic(clients=2, classes=3)}, "have the same classes"),
    ]:
        with pytest.raises(ValueError, match=message):
            draw(made)


def test_show_prints_the_card_and_draws(federation, tmp_path):
    runner = CliRunner()
    result = runner.invoke(app, ["show", "digits-fedavg", "data.clients=3", "--figures", str(tmp_path / "figures")])
    assert result.exit_code == 0, result.output
    assert "3 clients" in result.output
    assert "label distance" in result.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("samples", "labels", "weights") for kind in ("pdf", "png")}
    assert min(imread(tmp_path / "figures" / "labels.png").shape[:2]) > 300


def test_show_reads_a_saved_federation(federation, tmp_path):
    federation.save(tmp_path / "lab")
    result = CliRunner().invoke(app, ["show", str(tmp_path / "lab"), "--markdown"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("**digits, dual heterogeneity: 3 clients")
    refused = CliRunner().invoke(app, ["show", str(tmp_path / "lab"), "data.clients=3"])
    assert "has no settings" in str(refused.exception)
