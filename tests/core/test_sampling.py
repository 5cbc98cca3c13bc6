"""Cohorts: who is drawn how often, against binomial and exact probabilities."""

from itertools import combinations, permutations

import pytest
import torch
from scipy import stats

from archipel import Bernoulli, Full, Sample
from archipel.core import keys

LEVEL = 1e-3  # of a false alarm on the day the test was written; keys are fixed
ROUNDS = 4000


def drawn(cohort, sizes, rounds=ROUNDS):
    each = keys.fold(keys.key(0), "cohort", torch.arange(rounds))
    cohorts = torch.func.vmap(lambda key: cohort.draw(torch.tensor(sizes), key))(each)  # all at once: it is faster
    assert cohort.draw(torch.tensor(sizes), each[7]).tolist() == cohorts[7].tolist()
    assert cohorts.dtype == torch.int64
    assert (cohorts.diff(dim=1) > 0).all()  # rising, so without repetition
    return cohorts


@pytest.mark.parametrize(("cohort", "k"), [(Sample(fraction=0.4), 4), (Sample(count=3), 3), (Sample(fraction=0.01), 1)])
def test_everybody_is_drawn_equally_often(cohort, k):
    cohorts = drawn(cohort, [1, 100, 5, 7, 9, 2, 2, 2, 2, 1000])
    assert cohorts.shape[1] == k
    counts = torch.bincount(cohorts.flatten(), minlength=10)
    for count in counts.tolist():
        # ten tests at once: Bonferroni's level
        assert stats.binomtest(count, ROUNDS, k / 10).pvalue > LEVEL / 10


def test_pairs_are_drawn_equally_often():
    _, counts = drawn(Sample(count=2), [1] * 5).unique(dim=0, return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts.numpy()).pvalue > LEVEL


def test_one_weighted_client_is_drawn_in_proportion_to_its_examples():
    sizes = [10, 30, 60, 300]
    counts = torch.bincount(drawn(Sample(count=1, weighted=True), sizes).flatten(), minlength=4)
    expected = torch.tensor(sizes, dtype=torch.float64) / sum(sizes) * ROUNDS
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > LEVEL


def test_two_weighted_clients_are_drawn_one_after_the_other():
    sizes = [1, 2, 3, 4]
    pairs = [tuple(ids) for ids in drawn(Sample(count=2, weighted=True), sizes).tolist()]
    probabilities = dict.fromkeys(sorted(set(pairs)), 0.0)
    for first, second in permutations(range(4), 2):
        p = sizes[first] / 10 * sizes[second] / (10 - sizes[first])
        probabilities[min(first, second), max(first, second)] += p
    counts = [pairs.count(pair) for pair in probabilities]
    assert stats.chisquare(counts, [ROUNDS * p for p in probabilities.values()]).pvalue > LEVEL


def test_a_cohort_follows_from_its_key():
    sample, sizes = Sample(fraction=0.5), torch.arange(1, 21)
    one, same, other = (sample.draw(sizes, keys.key(seed)).tolist() for seed in (0, 0, 1))
    assert one == same != other


def test_a_uniform_cohort_is_the_weighted_one_of_equal_clients():
    # log n is the same for all, and Gumbel noise grows with the word that it is made of
    sizes = torch.full((20_000,), 3)
    for seed in range(5):
        uniform, weighted = (Sample(count=100, weighted=w).draw(sizes, keys.key(seed)) for w in (False, True))
        assert torch.equal(uniform, weighted)


def test_bernoulli_clients_come_one_by_one():
    p, m = 0.3, 4
    each = keys.fold(keys.key(0), "cohort", torch.arange(ROUNDS))
    cohorts = [tuple(Bernoulli(p).draw(torch.tensor([1, 100, 5, 7]), key).tolist()) for key in each]
    # every one of 2^4 cohorts, the empty one among them, by its probability: coins that know nothing of one another
    possible = [ids for k in range(m + 1) for ids in combinations(range(m), k)]
    expected = [ROUNDS * p ** len(ids) * (1 - p) ** (m - len(ids)) for ids in possible]
    counts = [cohorts.count(ids) for ids in possible]
    assert sum(counts) == ROUNDS
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_full_takes_everybody():
    assert Full().draw(torch.tensor([3, 1]), keys.key(0)).tolist() == [0, 1]
    assert Sample(fraction=1.0).draw(torch.tensor([3, 1]), keys.key(0)).tolist() == [0, 1]
    assert Bernoulli(1.0).draw(torch.tensor([3, 1]), keys.key(0)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of fraction and count; given fraction=None, count=None"),
        ({"fraction": 0.5, "count": 2}, "one of fraction and count; given fraction=0.5, count=2"),
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\]; given 0.0"),
        ({"fraction": 1.1}, r"fraction must lie in \(0, 1\]; given 1.1"),
        ({"count": 0}, "count must be a whole number of at least 1; given 0"),
        ({"count": 2.5}, "count must be a whole number of at least 1; given 2.5"),
    ],
)
def test_impossible_cohorts_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sample(**settings)


@pytest.mark.parametrize("p", [0.0, 1.5, "0.5", True])
def test_impossible_probabilities_are_refused(p):
    with pytest.raises(ValueError, match=rf"Bernoulli's p must lie in \(0, 1\]; given {p!r}"):
        Bernoulli(p)


def test_more_clients_than_there_are_is_refused_at_the_draw():
    with pytest.raises(ValueError, match="count is 5, but only 3 clients are enrolled; lower it to 3"):
        Sample(count=5).draw(torch.tensor([1, 1, 1]), keys.key(0))
