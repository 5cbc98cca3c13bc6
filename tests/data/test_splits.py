"""Partitions and splits: nothing lost, nothing twice, whatever the arguments; and the law they claim."""

import time

import numpy as np
import pytest

from archipel.data.partitions.splits import dirichlet_by_class, iid, train_test_split


def counts(parts, labels):
    return np.array([[np.sum(labels[part] == label) for label in np.unique(labels)] for part in parts])


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-3, 0.1, 1.0, 100.0, 1e6, 1e300])
@pytest.mark.parametrize("clients", [1, 2, 7, 30])
def test_every_index_exactly_once_for_any_alpha(alpha, clients):
    labels = np.random.default_rng(0).integers(5, size=200)
    parts = dirichlet_by_class(labels, clients, alpha, seed=3)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert min(map(len, parts)) >= 1


def test_classes_smaller_than_the_number_of_clients_keep_all_their_examples():
    labels = np.array([0] * 3 + [1] * 2 + [7] * 100)
    parts = dirichlet_by_class(labels, clients=10, alpha=1.0, seed=1, minimum=0)
    assert counts(parts, labels).sum(0).tolist() == [3, 2, 100]


def test_rounding_favours_no_client_in_classes_of_one_example():
    # Each of 8000 classes gives its one example to client i with probability 1/8: mean 1000, sd √(8000·7/64) < 30.
    parts = dirichlet_by_class(np.arange(8000), clients=8, alpha=1e6, seed=0, minimum=0)
    assert all(abs(len(part) - 1000) < 4 * 30 for part in parts)


def test_large_alpha_divides_every_class_evenly():
    # p_ki = 1/8 up to 1.2e-4, so n_ik = 1000/8 up to 0.5 (four sd) and less than 1 by rounding.
    labels = np.repeat(np.arange(10), 1000)
    parts = dirichlet_by_class(labels, clients=8, alpha=1e6, seed=0)
    assert np.abs(counts(parts, labels) - 125).max() <= 1.5


def test_class_shares_have_the_mean_and_variance_of_the_dirichlet():
    # A share is Beta(α, (m−1)α): mean 1/m, variance (1/m)(1−1/m)/(mα+1). Rounding adds less than 1/200² to it.
    clients, alpha, classes, size = 4, 0.5, 2000, 200
    labels = np.repeat(np.arange(classes), size)
    parts = dirichlet_by_class(labels, clients, alpha, seed=0)
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / size
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.mean(1) == pytest.approx(np.full(clients, 1 / clients), abs=4 * (variance / classes) ** 0.5)
    # Sd of a sample variance: variance·√((κ−1)/N), with kurtosis κ < 4 here: 4 %. Three sd of it.
    assert shares.var(1) == pytest.approx(np.full(clients, variance), rel=0.12)


def test_small_alpha_gives_each_class_to_one_client():
    # To first order in α, P(the largest share < 0.98) = (m−1)·α·ln 49 = 0.012: 2.3 of 200 classes; 12 is six sd more.
    labels = np.repeat(np.arange(200), 50)
    parts = dirichlet_by_class(labels, clients=4, alpha=1e-3, seed=0)
    divided = (counts(parts, labels).max(0) < 49).sum()
    assert divided <= 12


@pytest.mark.parametrize("minimum", [1, 10, 24, 25])
def test_minimum_is_met_by_taking_from_the_largest(minimum):
    labels = np.repeat([0, 1], 50)
    free = dirichlet_by_class(labels, clients=4, alpha=0.05, seed=5, minimum=0)
    parts = dirichlet_by_class(labels, clients=4, alpha=0.05, seed=5, minimum=minimum)
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))
    sizes, before = np.array([*map(len, parts)]), np.array([*map(len, free)])
    assert sizes.min() >= minimum
    # Who lacked examples gets just enough; who gave was larger than those who didn't still are.
    assert (sizes[before < minimum] == minimum).all()
    givers = sizes[sizes < before]
    assert givers.size == 0 or givers.max() - givers.min() <= 1


def test_infeasible_minimum_is_refused_at_once():
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"100000 examples can't give 8 clients 12501 each, which takes 100008"):
        dirichlet_by_class(np.zeros(100_000, int), clients=8, alpha=0.1, seed=0, minimum=12_501)
    assert time.perf_counter() - start < 1


def test_a_minimum_that_just_fits_is_quick():
    start = time.perf_counter()
    parts = dirichlet_by_class(np.zeros(100_000, int), clients=8, alpha=1e-3, seed=0, minimum=12_500)
    assert [len(part) for part in parts] == [12_500] * 8
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "partition", [lambda y, seed: dirichlet_by_class(y, 5, 1.0, seed), lambda y, seed: iid(y, 5, seed)]
)
def test_the_seed_determines_the_partition(partition):
    labels = np.repeat(np.arange(10), 30)
    first, again, other = partition(labels, 0), partition(labels, 0), partition(labels, 1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_deals_out_all_in_equal_parts():
    parts = iid(np.zeros(23), clients=4, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    assert sorted(map(len, parts)) == [5, 6, 6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"clients": 0}, "clients is 0"),
        ({"minimum": -1}, "minimum is -1"),
        ({"labels": np.zeros((4, 2))}, r"shape \(4, 2\)"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        dirichlet_by_class(**{"labels": np.zeros(10), "clients": 2, "alpha": 1.0, "seed": 0, **arguments})


@pytest.mark.parametrize("count", [3, 4, 5, 10, 101])
@pytest.mark.parametrize(("test", "validation"), [(0.3, 0.0), (0.3, 0.1), (0.9, 0.05), (0.01, 0.98), (0.0, 0.0)])
def test_split_is_a_partition_with_something_in_each_part(count, test, validation):
    parts = train_test_split(count, test, validation, seed=0)
    assert sorted(np.concatenate([*parts.values()]).tolist()) == list(range(count))
    assert len(parts["train"]) >= 1
    assert (len(parts["test"]) >= 1) == (test > 0)
    assert ("validation" in parts) == (validation > 0)
    if count > 50 and test + validation < 0.95:
        assert len(parts["test"]) == pytest.approx(count * test, abs=0.5)


def test_validation_is_cut_from_training_and_leaves_the_test_part():
    without, with_it = train_test_split(50, 0.3, 0.0, seed=4), train_test_split(50, 0.3, 0.2, seed=4)
    assert np.array_equal(without["test"], with_it["test"])
    assert set(without["train"]) == set(with_it["train"]) | set(with_it["validation"])


@pytest.mark.parametrize(
    ("count", "test", "validation", "message"),
    [
        (1, 0.3, 0.0, "client 'A' holds 1 example, too few"),
        (2, 0.3, 0.1, "client 'A' holds 2 examples, too few"),
        (10, -0.1, 0.0, "test is -0.1"),
        (10, 0.0, 1.0, "validation is 1.0"),
        (10, 0.5, 0.5, "leaves nothing to train on"),
    ],
)
def test_impossible_splits_are_refused(count, test, validation, message):
    with pytest.raises(ValueError, match=message):
        train_test_split(count, test, validation, 0, "client 'A'")
