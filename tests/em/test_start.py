"""k-means++ over clients: the law of the centres, one a blob, what is told, and the same on every engine."""

import itertools
import pickle

import numpy as np
import pytest
import torch

from archipel import FedEM, Federation, fit
from archipel.core import keys
from archipel.em import KMeansPlusPlus, RandomResponsibilities
from archipel.engines import Batched, Handle, Ledger, Loop
from archipel.engines.setting import Setting
from archipel.families import CategoricalMixture, FactorModel, GaussianMixture, RegressionMixture, Ridge

LINE = torch.tensor([0.0, 1.0, 3.0, 3.0, 7.0])  # split over clients of 1, 3 and 1


def federation(shares, targets=None):
    targets = [torch.zeros(len(share)) for share in shares] if targets is None else targets
    return Federation.from_arrays(list(zip(shares, targets, strict=True)), test=0.0, kind="table")


def handle(data, carrier=Loop):
    return Handle(carrier(None, data), torch.arange(len(data)), data.sizes, 0, 1, Ledger())


def exact(K, d, refinements=0):
    """k-means++ to the letter."""
    return KMeansPlusPlus(GaussianMixture(K, d), neighbours=1, refinements=refinements)


def test_centres_are_drawn_by_squared_distance():
    clients = handle(federation([LINE[:1, None], LINE[1:4, None], LINE[4:, None]]))
    start, draws = exact(2, 1), 150
    pairs = []
    for seed in range(draws):
        key = keys.key(seed)
        first = start._first(clients, keys.fold(key, "first"))
        pairs.append(tuple(start._next(clients, first, 1, keys.fold(key, 1))["centres"].flatten().tolist()))
    x = LINE.numpy()
    expected = dict.fromkeys(itertools.product(set(x), repeat=2), 0.0)
    for a, b in itertools.product(x, repeat=2):
        expected[a, b] += 0.2 * (a - b) ** 2 / ((x - a) ** 2).sum()
    for pair, p in expected.items():
        found = pairs.count(pair) / draws
        assert abs(found - p) <= 5 * (p * (1 - p) / draws) ** 0.5, pair  # standard errors


@pytest.fixture(scope="module")
def blobs():
    """Five blobs of 30 rows at distance 10 and more, spread 0.3, each client with two of them, and 1 row of a third."""
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 0], [0, 10], [10, 10], [20, 5]])
    x = torch.tensor(np.concatenate([c + 0.3 * rng.normal(size=(30, 2)) for c in centres])).float()
    return centres, federation([x[:60], x[60:61], x[61:110], x[110:]])


def covered(centres, found):
    """Whether every blob has a centre within 2."""
    gaps = np.linalg.norm(centres[:, None] - np.asarray(found)[None], axis=-1)
    return bool((gaps.min(1) < 2).all())


@pytest.mark.parametrize("neighbours", [1, 5])
def test_each_blob_has_one(blobs, neighbours):
    # A second centre in a blob has D² ≈ 2 · 2 · 0.3² against 100 elsewhere: less than 1 % a draw, 3 % a start.
    centres, data = blobs
    start = KMeansPlusPlus(GaussianMixture(5, 2), neighbours=neighbours, refinements=3)
    clients = handle(data)
    found = [covered(centres, start(clients, keys.key(seed))["mean"]) for seed in range(12)]
    assert sum(found) >= 10  # 3 failures of 12 at 3 % happen once in 200; five random rows: 5!/5^5 = 4 % succeed
    theta = start(clients, keys.key(0))
    assert covered(centres, theta["mean"])
    assert theta["weight"].numpy() == pytest.approx(0.2, abs=1e-12)
    gaps = np.linalg.norm(centres[:, None] - theta["mean"].numpy()[None], axis=-1)
    assert gaps.min(1).max() < 5 * 0.3 / 30**0.5 * 2**0.5  # means of 30 rows


def test_all_engines_start_alike(blobs):
    _, data = blobs
    family = GaussianMixture(5, 2)
    start = KMeansPlusPlus(family, neighbours=2, refinements=2)
    algorithm = FedEM(family, start=start)
    one, other = (
        fit(algorithm, data, rounds=1, setting=Setting(engine=engine)).server["theta"] for engine in (Loop, Batched)
    )
    assert all(torch.allclose(one[part], other[part], rtol=0, atol=1e-9) for part in one)
    # A wire carries steps by pickling what they are bound to.
    assert pickle.loads(pickle.dumps(start.propose)).__self__ == start


def test_lloyd_finds_the_clusters_means():
    x = torch.tensor([[0.0], [1.0], [2.0], [10.0], [14.0]])
    data = federation([x[:2], x[2:4], x[4:]])
    family = GaussianMixture(2, 1, shrinkage=Ridge(1e-9))
    for seed in range(5):
        theta = KMeansPlusPlus(family, neighbours=1, refinements=5)(handle(data), keys.key(seed))
        order = theta["mean"].flatten().argsort()
        # Clusters {0, 1, 2} and {10, 14}, from whatever pair of rows
        assert theta["mean"].flatten()[order].tolist() == pytest.approx([1, 12], abs=1e-6)
        assert theta["covariance"].flatten()[order].tolist() == pytest.approx([2 / 3, 4], abs=1e-6)
        assert theta["weight"][order].tolist() == pytest.approx([0.6, 0.4], abs=1e-9)


def test_told_points_are_means_of_neighbours():
    data = federation([LINE[:, None]])
    start = KMeansPlusPlus(GaussianMixture(2, 1), neighbours=3, refinements=0)
    told = {start._first(handle(data), keys.key(seed))["centres"][0].item() for seed in range(40)}
    # Around 0: {0, 1, 3}; 1: {1, 0, 3}; 3: {3, 3, 1}; 7: {7, 3, 3}
    assert sorted(told) == pytest.approx([4 / 3, 7 / 3, 13 / 3], abs=1e-12)


def test_fewer_points_than_components_work():
    data = federation([torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0]])])
    theta = KMeansPlusPlus(GaussianMixture(3, 1), neighbours=1)(handle(data), keys.key(0))
    assert all(torch.isfinite(leaf).all() for leaf in theta.values())
    assert theta["weight"].sum().item() == pytest.approx(1, abs=1e-8)


def test_answers_are_compared_not_subtracted():
    # 0, 1 and 2 are three answers: as numbers 1 would be nearer to 0 than 2 is.
    data = federation([torch.tensor([[0.0], [2.0]] * 5)])
    start = KMeansPlusPlus(CategoricalMixture(2, (3,)), neighbours=1)
    points = start.family.points({"x": torch.tensor([[0.0], [1.0], [2.0]])})
    assert torch.equal(torch.cdist(points, points) ** 2 > 1.9, ~torch.eye(3, dtype=torch.bool))
    p = start(handle(data), keys.key(0))["probability"]
    assert p[:, [0, 2]].sort().values.numpy() == pytest.approx(np.array([[0, 1], [0, 1]]), abs=1e-5)


def test_random_responsibilities_start_regressions():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 1))
    y = np.where(np.arange(400) % 2, 3 * x[:, 0], -3 * x[:, 0]) + 0.1 * rng.normal(size=400)
    cuts = (slice(100), slice(100, 400))
    data = federation([x[cut] for cut in cuts], [y[cut] for cut in cuts])
    family = RegressionMixture(2, 1)
    start = RandomResponsibilities(family)
    clients = handle(data)
    one, other = start(clients, keys.key(0)), start(clients, keys.key(1))
    assert one["weight"].numpy() == pytest.approx(0.5, abs=5 * 0.29 / 400**0.5)  # uniform: five standard errors
    assert not torch.allclose(one["slope"], other["slope"])
    run = fit(FedEM(family, start=start), data, rounds=60)
    # Slopes ±3 with standard errors 0.1/√200
    assert run.server["theta"]["slope"].flatten().sort().values.tolist() == pytest.approx([-3, 3], abs=0.04)


def test_what_cant_be_is_refused():
    family = GaussianMixture(2, 2)
    with pytest.raises(ValueError, match=r"KMeansPlusPlus is for a mixture.*given a FactorModel"):
        KMeansPlusPlus(FactorModel(2, 1))
    with pytest.raises(ValueError, match="neighbours must be a whole number of at least 1; given 0"):
        KMeansPlusPlus(family, neighbours=0)
    with pytest.raises(ValueError, match="refinements must be a whole number of at least 0; given -1"):
        KMeansPlusPlus(family, refinements=-1)
    with pytest.raises(ValueError, match="sharpness must be above 0"):
        RandomResponsibilities(family, sharpness=0.0)
