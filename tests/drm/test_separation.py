"""Populations that the basis separates have no finite ratio; whether they do is decided exactly."""

import itertools

import numpy as np
import pytest
import torch

from archipel.drm import DensityRatioModel, goodness_of_fit, pool, quadratic
from archipel.drm.goodness import distance
from archipel.drm.separation import separation


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("tolerance", [1e-6, 1e-9, 1e-12])
def test_quasi_complete_separation_is_told_at_any_tolerance(tolerance):
    samples = [torch.zeros(100, 1), torch.cat([torch.zeros(70, 1), torch.ones(30, 1)])]
    with pytest.raises(ValueError, match=r"population 1 from population 0: in some direction 30 points.*ridge=1e-3"):
        DensityRatioModel.fit(*pool(samples), tolerance=tolerance)
    assert bool(DensityRatioModel.fit(*pool(samples), ridge=1e-3).xi.isfinite().all())
    # One of the other population's ones, and there is a maximum: the odds at 1 are 30 to 1, at 0 they are 70 to 99.
    samples[0][0] = 1
    model = DensityRatioModel.fit(*pool(samples), tolerance=tolerance)
    slope = float(model.xi[1] - model.xi[0])
    assert slope == pytest.approx(np.log(30 / 1) - np.log(70 / 99), rel=1e-4)


def test_one_column_is_separated_iff_the_samples_lie_side_by_side():
    """Two populations on a line: separated iff max of one ≤ min of the other, unless all points are equal."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a, b = rng.integers(0, 4, size=3), rng.integers(0, 4, size=4) + rng.integers(0, 3)
        beside = a.max() <= b.min() or b.max() <= a.min()
        expected = beside and len({*a, *b}) > 1
        try:
            DensityRatioModel.fit(*pool([column(*a), column(*b)]))
            found = False
        except ValueError as error:
            assert "separates" in str(error)  # noqa: PT017
            found = True
        assert found == expected, (a, b)


def test_three_populations_are_separated_iff_some_direction_does_so():
    """Brute force over β on a grid of small whole numbers, which is enough for points that are small whole numbers."""
    grid = np.array(list(itertools.product((-2, -1, 0, 1, 2), repeat=4)))
    for seed in range(60):
        rng = np.random.default_rng(seed)
        samples = [rng.integers(0, 3, size=n) + shift for n, shift in ((2, 0), (3, 1), (3, rng.integers(0, 3)))]
        x = np.concatenate(samples)
        own = np.repeat([0, 1, 2], [len(s) for s in samples])
        h = np.stack([np.ones_like(x), x - x.min()], axis=1)
        wide = np.array(list(itertools.product(range(-6, 7), (-2, -1, 0, 1, 2), range(-6, 7), (-2, -1, 0, 1, 2))))
        beta = np.concatenate([np.zeros((len(wide), 2)), wide], axis=1).reshape(-1, 3, 2)
        scores = beta @ h.T  # (β, population, point)
        margins = np.take_along_axis(scores, own[None, None], axis=1) - scores
        expected = bool(((margins >= 0).all((1, 2)) & (margins > 0).any((1, 2))).any())
        found = separation(
            torch.from_numpy(h).double(),
            torch.eye(3, dtype=torch.float64)[own],
            torch.zeros(len(x), 3, dtype=torch.float64),
        )
        assert (found is not None) == expected, samples
    assert len(grid)


def test_shared_points_are_not_separated_and_repeated_features_do_not_matter():
    x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    w = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="separates"):  # the shared point lies on the boundary
        DensityRatioModel.fit(x, w)
    between = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    assert bool(DensityRatioModel.fit(x, between).xi.isfinite().all())
    overlapping = [column(0, 1, 3), column(2, 4, 1)]
    twice = DensityRatioModel.fit(*pool(overlapping), lambda v: torch.cat([v, v, 0 * v], 1))
    assert bool(twice.xi.isfinite().all())


def test_separated_replicates_count_in_the_p_value_with_their_limit():
    """Five points each: many replicates are separated. Their limit's distance is that of a fit far on the way."""
    samples = [column(0, 1, 2, 3, 4), column(3, 4, 5, 6, 7)]
    model = DensityRatioModel.fit(*pool(samples))
    found = goodness_of_fit(model, replicates=99)
    assert 0 < found.separated < 99
    assert len(found.replicates) == 99
    assert bool(found.replicates.isfinite().all())
    assert found.p_value == (1 + int((found.replicates >= found.statistic * (1 - 1e-12)).sum())) / 100
    # A completely separated sample is fitted by its own points: no distance at all.
    limit, apart = DensityRatioModel.fit_limit(*pool([column(0, 1), column(5, 6)]), quadratic, None, 0.0, 1e-12, 100)
    assert apart is not None
    assert distance(limit, limit.points) < 1e-9
    # Quasi-complete: the masses at 0 are shared by both, 1 is the second population's alone.
    quasi, apart = DensityRatioModel.fit_limit(*pool([column(0, 0), column(0, 1)]), quadratic, None, 0.0, 1e-12, 100)
    assert apart is not None
    torch.testing.assert_close(
        quasi.distributions,
        torch.tensor([[1 / 3, 1 / 6]] * 3 + [[0.0, 0.5]], dtype=torch.float64),
        rtol=0,
        atol=1e-9,
    )


def test_prints_show_no_points():
    x = torch.tensor([[123.456], [200.5], [201.5], [124.5]])
    model = DensityRatioModel.fit(*pool([x[:2], x[2:]]), ridge=1.0)
    assert repr(model) == "DensityRatioModel(2 populations, 4 points, 1 features, basis=linear)"
    assert "tensor" not in repr(goodness_of_fit(model, replicates=3, ridge=1.0))
