"""The paths between local optima and consensus: theory against brute force, and runs against theory."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from archipel.papers.consensus import path_theory
from archipel.papers.consensus.path_theory import CURVATURES, MINIMA
from archipel.papers.consensus.paths import PATHS
from archipel.papers.consensus.paths_plot import draw

BY_NAME = {path.name: path for path in PATHS}


def losses(omega):
    gaps = omega - MINIMA
    return 0.5 * np.einsum("ki,kij,kj", gaps, CURVATURES, gaps)


def lowest(objective, shape):
    found = minimize(lambda x: objective(x.reshape(shape)), np.zeros(np.prod(shape)), tol=1e-12)
    return found.x.reshape(shape)


def test_the_matrices_do_not_commute():
    a, b, c = CURVATURES
    for one, other in ((a, b), (b, c), (a, c)):
        assert abs(one @ other - other @ one).max() > 0.5


def test_theory_is_where_brute_force_finds_the_minimum():
    # by finite differences, hence 1e-5
    weak = lowest(lambda w: losses(w) + 0.7 / 2 * ((w - w.mean(0)) ** 2).sum(), (3, 2))
    assert path_theory.envelopes(0.7) == pytest.approx(weak, abs=1e-5)
    consensus = lowest(lambda w: losses(np.tile(w, (3, 1))), (2,))
    assert path_theory.optimum() == pytest.approx(consensus, abs=1e-5)
    near = lowest(lambda w: losses(w) + 0.7 / 2 * ((w - consensus) ** 2).sum(), (3, 2))
    assert path_theory.about_the_optimum(0.7) == pytest.approx(near, abs=1e-5)

    def correlated(both):
        omega, theta = both[:3], both[3]
        return losses(omega) - 0.4 * (omega @ theta).sum() + 3 * 0.4 / 2 * theta @ theta

    assert path_theory.outwards(0.4) == pytest.approx(lowest(correlated, (4, 2))[:3], abs=1e-4)


def test_correlation_has_no_minimum_beyond_its_bound():
    bound = path_theory.largest_correlation()
    theta = lambda penalty: np.abs(path_theory.outwards(penalty)).max()  # noqa: E731
    assert theta(0.999 * bound) > 100 * theta(0.5 * bound)


def test_fusion_is_stationary():
    for penalty in (0.05, 0.6, 2.5):
        assert path_theory.pulls(path_theory.fused(penalty), penalty) == pytest.approx(np.zeros((3, 2)), abs=1e-9)


@pytest.mark.parametrize("name", ["L2SGD", "pFedMe", "FedProx, local ends", "Ditto", "FPFC"])
def test_paths_lead_from_the_local_optima_to_the_consensus(name):
    path = BY_NAME[name]
    curve = path.curve(count=2)
    assert curve[0] == pytest.approx(MINIMA, abs=0.01)
    # FPFC's pull ends at a curvature of λ/ξ
    assert curve[1] == pytest.approx(np.tile(path_theory.optimum(), (3, 1)), abs=0.02)


@pytest.mark.parametrize(
    ("name", "penalty", "tolerance"),
    [
        ("L2SGD", 3.0, 5e-3),  # what is left after extrapolation is O(η²), with ηλ = 0.3
        ("pFedMe", 1.0, 1e-6),
        ("FedProx, local ends", 0.3, 1e-6),
        ("Ditto", 1.0, 1e-6),
        ("APFL", 0.7, 1e-3),
        ("pFedMac", 0.3, 1e-6),
        ("FPFC", 0.9, 1e-6),
    ],
)
def test_algorithms_end_where_theory_says(name, penalty, tolerance):
    path = BY_NAME[name]
    assert path.run(penalty) == pytest.approx(path.theory(penalty), abs=tolerance)
    if path.theory is not path_theory.own_optima:
        assert abs(path.theory(penalty) - MINIMA).max() > 0.1  # not where they would be alone


def test_apfl_is_between_only_on_the_way():
    measured, expected = BY_NAME["APFL"].early
    assert measured(0.2) == pytest.approx(expected(0.2), abs=1e-12)
    assert expected(0.0) == pytest.approx(np.tile(path_theory.optimum(), (3, 1)), abs=1e-6)
    assert abs(expected(0.2) - MINIMA).max() > 0.3


def test_every_method_gets_a_panel():
    figure = draw([replace(path, run=path.theory, early=None) for path in PATHS])
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split(", $")[0] for title in titles if title] == list(BY_NAME)
    ends = {line.get_marker(): line.get_xydata()[0] for line in figure.axes[3].lines if line.get_marker() in "os^"}
    assert ends["^"] == pytest.approx(path_theory.about_the_optimum(10.0)[2])
