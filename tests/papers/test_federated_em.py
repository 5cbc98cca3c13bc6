"""The benchmark of federated EM: one problem however it is cut, what reaching means, and tables from known runs."""

import numpy as np
import pytest
import torch

from archipel.papers.federated_em import report as em_report
from archipel.papers.federated_em import stationarity as em


def test_the_pool_is_the_same_however_many_clients_share_it():
    pools = [torch.cat([client.train["x"] for client in em.problem(n).clients]) for n in (4, 64)]
    assert torch.equal(*pools)
    assert pools[0].shape == (em.EXAMPLES, em.DIMENSION)
    # ... and clients differ: none of four has its components in the pool's proportions
    for client in em.problem(4).clients:
        shares = torch.bincount(client.train["y"], minlength=em.COMPONENTS) / len(client.train["y"])
        assert (shares - 1 / em.COMPONENTS).abs().max() > 0.3


def test_without_compression_and_with_all_data_the_curve_does_not_depend_on_the_clients(tmp_path):
    few, many = (em.follow(tmp_path, clients=n, rounds=3, seed=n, settings={}) for n in (4, 16))
    # sums in another order
    np.testing.assert_allclose(few["stationarity"], many["stationarity"], rtol=1e-9)
    assert few["expectations"] == [4 * em.EXAMPLES, 5 * em.EXAMPLES, 6 * em.EXAMPLES]
    assert np.diff(many["bits"]).tolist() == [16 * 64 * em.STATISTICS] * 2


def test_the_first_of_five_rounds_whose_mean_is_low_reaches_it():
    trace = {"stationarity": [8.0, 1.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 8.0, 8.0]}
    assert em.reached(trace, 1.0) == 4
    assert em.reached(trace, 2.5) == 2  # (1 + 8 + 1 + 1 + 1) / 5
    assert em.reached(trace, 0.9) is None
    slow = {"stationarity": [8.0] * 5 + [1.0] * 5}
    assert em.fewest([trace, slow], 1.0) == 4
    assert em.fewest([slow, slow], 0.5) is None


def results(seeds):
    """Runs whose ‖h‖² falls by a tenth a round, faster where ω is low."""
    cells = [*em.curves(seeds), *em.compression(), *em.noise()]
    assert len({cell.name for cell in cells}) == len(cells)
    made = {}
    for cell in cells:
        omega = 5 if "omega5" in cell.name else 0
        spent = list(range(1, cell.arguments["rounds"] + 1))
        made[cell.name] = {
            "stationarity": (10.0 ** (-np.array(spent) / (1 + omega))).tolist(),
            "expectations": [100 * t for t in spent],
            "bits": [8000 * t for t in spent],
            "omega": float(omega),
        }
    return made


def test_tables_and_figures_say_what_the_runs_do():
    found = results(seeds=2)
    # the mean of 10^-t over five rounds is 0.22 10^-t: ε = 1e-3 is reached in round 3
    lines = em_report.spent(found, 2).splitlines()
    assert lines[4].startswith("| FedEM | 0.0 | 3, 300, 3 | 5, 500, 5 | 7, 700, 7 |")
    assert len(lines) == 4 + len(em.CURVES)
    regimes = em_report.regimes(found).splitlines()
    # to 1e-5 in 5 rounds; with ω = 5 (a factor of 10^(1/6) a round) the mean of five is .52 of the first: 29 rounds
    assert regimes[4] == "| n = 4 | 5 | 5 * | 5 | 29 (× 5.8) |"
    assert regimes[7] == "| n = 256 | 5 | 5 * | 5 * | 29 * (× 5.8) |"
    assert "| n = 16, b = 64, ω = 5 |" in em_report.noises(found)
    left, middle, right = em_report.field_figure(found, 2).axes
    medians = left.lines[2].get_ydata(), left.lines[2].get_xdata()  # after the two seeds'
    np.testing.assert_allclose(medians, [found["curves/0-seed0"]["stationarity"], np.arange(1, 251)])
    assert middle.lines[2].get_xdata()[-1] == 250 * 100
    assert right.lines[2].get_xdata()[-1] == 250 * 8000
    regimes = em_report.regimes_figure(found).axes[0]
    assert [line.get_ydata().tolist() for line in regimes.lines] == [[5, 5, 5, 29]] * 4


@pytest.mark.parametrize("name", ["FedEM", "VR-FedEM, dithering", "FedEM, dithering, no memory"])
def test_the_methods_of_the_figure_are_made_of_their_settings(tmp_path, name):
    run = em.follow(tmp_path, clients=4, rounds=2, seed=0, settings={"rate": 0.5} | em.CURVES[name])
    assert len(run["stationarity"]) == len(run["bits"]) == 2
    assert (run["omega"] > 0) == ("dithering" in name)
