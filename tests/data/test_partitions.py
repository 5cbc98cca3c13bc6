"""All partitions: every index exactly once whatever the arguments, and the laws they claim."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma, entr

from archipel.data.partitions.by_name import PARTITIONS, check_partition, make_partition
from archipel.data.partitions.label_mixtures import dirichlet_by_client, pachinko
from archipel.data.partitions.skews import by_owner, pathological, quantity, shards
from archipel.data.partitions.splits import dirichlet_by_class

laws = settings(max_examples=60, deadline=None, database=None, derandomize=True)
LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=90).map(np.array)
CLIENTS = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)
ALPHAS = st.sampled_from([1e-300, 1e-6, 0.1, 1.0, 30.0, 1e6])


def is_partition(parts, count):
    ordered = all((np.diff(part) > 0).all() for part in parts)
    return ordered and sorted(np.concatenate(parts).tolist()) == list(range(count))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in itertools.zip_longest(a, b))


OPTIONS = {
    "iid": st.just({}),
    "dirichlet": st.fixed_dictionaries({"alpha": ALPHAS}),
    "dirichlet-by-client": st.fixed_dictionaries({"alpha": ALPHAS}),
    "quantity": st.fixed_dictionaries({"exponent": st.floats(0, 50)}),
    "shards": st.fixed_dictionaries({"per_client": st.integers(1, 4)}),
    "pachinko": st.fixed_dictionaries({"alpha": ALPHAS, "beta": ALPHAS}),
}


@pytest.mark.parametrize("name", OPTIONS)
@given(data=st.data(), labels=LABELS, clients=CLIENTS, minimum=st.integers(0, 4), seed=SEEDS)
@laws
def test_partitions_that_can_repair_their_minimum(name, data, labels, clients, minimum, seed):
    options = data.draw(OPTIONS[name]) | {"minimum": minimum}
    if name == "pachinko":
        options["coarse"] = labels // 2
    fits = len(labels) >= clients * minimum and len(labels) >= clients * options.get("per_client", 0)
    if not fits:
        with pytest.raises(ValueError, match=r"examples (can't give|make between)"):
            make_partition(name, labels, clients, seed, **options)
        return
    parts = make_partition(name, labels, clients, seed, **options)
    assert len(parts) == clients
    assert is_partition(parts, len(labels))
    assert min(map(len, parts)) >= minimum
    assert same(parts, make_partition(name, labels, clients, seed, **options))


@given(labels=LABELS, clients=CLIENTS, classes=st.integers(1, 6), seed=SEEDS)
@laws
def test_pathological_clients_have_exactly_k_classes(labels, clients, classes, seed):
    present, sizes = np.unique(labels, return_counts=True)
    K = len(present)
    if classes > K or clients * classes < K or sizes.min() < -(-clients * classes // K):
        try:
            parts = pathological(labels, clients, classes, seed, minimum=0)
        except ValueError:
            return  # refused at once; a small class may also have had luck, and few holders
    parts = pathological(labels, clients, classes, seed, minimum=0)
    assert is_partition(parts, len(labels))
    counts = np.array([[np.sum(labels[part] == k) for k in present] for part in parts])
    assert ((counts > 0).sum(1) == classes).all()
    holders = (counts > 0).sum(0)
    assert np.ptp(holders) <= 1
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


@given(owners=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40))
@laws
def test_owners_keep_what_is_theirs(owners):
    parts = by_owner(owners)
    assert [part.tolist() for part in parts] == [
        [i for i, owner in enumerate(owners) if owner == who] for who in sorted(set(owners))
    ]


@given(labels=LABELS, clients=CLIENTS, alpha=ALPHAS, seed=SEEDS)
@laws
def test_replication_repeats_nothing_within_a_client(labels, clients, alpha, seed):
    if len(labels) < clients:
        return
    parts = dirichlet_by_client(labels, clients, alpha, seed, replicate=True)
    assert sum(map(len, parts)) == len(labels)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert set(np.concatenate(parts).tolist()) <= set(range(len(labels)))


def shares(parts, labels, K):
    counts = np.array([np.bincount(labels[part], minlength=K) for part in parts])
    return counts / counts.sum(1, keepdims=True)


def bits(parts, labels, K):
    return (entr(shares(parts, labels, K)).sum(1) / np.log(2)).mean()


def by_superclass(labels, clients, alpha, seed):
    return pachinko(labels, labels // 2, clients, seed, alpha)


@pytest.mark.parametrize("divide", [dirichlet_by_class, dirichlet_by_client, by_superclass])
def test_label_entropy_rises_with_alpha(divide):
    labels = np.repeat(np.arange(10), 400)
    entropies = [bits(divide(labels, 20, alpha, seed=0), labels, 10) for alpha in (0.1, 0.5, 2.0, 10.0)]
    assert entropies == sorted(entropies)


@pytest.mark.parametrize("divide", [dirichlet_by_class, dirichlet_by_client])
def test_label_entropy_ends_at_that_of_the_pool(divide):
    labels = np.repeat(np.arange(10), 400)
    found = bits(divide(labels, 20, 1e5, seed=0), labels, 10)
    # Plug-in entropy of n = 200 draws is short of log2(10) by (K−1)/(2 n ln 2) = 0.032 on average (Miller–Madow).
    assert found == pytest.approx(np.log2(10), abs=0.05)


@pytest.mark.parametrize("divide", [dirichlet_by_class, dirichlet_by_client])
def test_a_very_large_alpha_is_close_to_iid(divide):
    labels = np.repeat(np.arange(4), (4000, 2000, 1000, 1000))
    p = np.array([0.5, 0.25, 0.125, 0.125])
    found = shares(divide(labels, 8, 1e5, seed=1), labels, 4)
    # Of n = 1000 draws from p: sd √(p(1−p)/n); q itself varies by 1/√(1e5) of that and less. Five sd.
    assert (np.abs(found - p) < 5 * np.sqrt(p * (1 - p) / 1000) * 1.01).all()


def test_clients_own_distributions_have_the_dirichlets_moments_and_entropy():
    # Drawn from a pool that's never exhausted, so that q_i ~ Dir(α p) is sampled without interference.
    K, m, alpha, size = 5, 300, 1.0, 400
    labels = np.repeat(np.arange(K), m * size // K)
    found = shares(dirichlet_by_client(labels, m, alpha, seed=0, replicate=True), labels, K)
    # Var q = p(1−p)/(α+1); multinomial sampling adds E[q(1−q)]/n = p(1−p) α/(α+1)/n.
    p = 1 / K
    variance = p * (1 - p) / (alpha + 1) * (1 + alpha / size)
    assert found.mean(0) == pytest.approx(np.full(K, p), abs=4 * np.sqrt(variance / m))
    fourth = ((found - p) ** 4).mean(0)
    assert (np.abs(((found - p) ** 2).mean(0) - variance) < 4 * np.sqrt((fourth - variance**2) / m)).all()
    # E H(q) = ψ(α+1) − ψ(α p + 1), less the plug-in bias, at most (K−1)/(2n) = 0.005.
    nats = entr(found).sum(1)
    expected = digamma(alpha + 1) - digamma(alpha * p + 1)
    assert nats.mean() == pytest.approx(expected, abs=4 * nats.std() / np.sqrt(m) + 0.005)


def test_no_client_is_left_with_the_rest():
    # Clients draw at once: the first and the last are alike. In turn, the last would get what nobody wanted.
    labels = np.repeat(np.arange(10), 100)
    distance = []
    for seed in range(60):
        q = shares(dirichlet_by_client(labels, 10, 0.5, seed), labels, 10)
        distance.append([np.square(q[0]).sum(), np.square(q[-1]).sum()])
    first, last = np.array(distance).T
    assert abs(first.mean() - last.mean()) < 4 * np.sqrt((first.var() + last.var()) / 60)


def test_pachinko_draws_superclasses_then_classes():
    # 100 classes of 20 superclasses with 500 examples each; the first 50 of 500 clients exhaust nothing.
    fine = np.repeat(np.arange(20), 200)
    coarse = fine // 4
    parts = pachinko(fine, coarse, clients=100, seed=0, alpha=0.5, beta=10.0)[:20]
    top = shares(parts, coarse, 5)
    # E Σθ² = (α+1)/(Sα+1) for S = 5; of n = 40 draws, E Σθ̂² = Σθ² + (1 − Σθ²)/n.
    square = 1.5 / 3.5
    found = np.square(top).sum(1)
    assert found.mean() == pytest.approx(square + (1 - square) / 40, abs=4 * found.std() / np.sqrt(20))
    # Within a superclass, classes are spread evenly: β = 10 gives E Σφ² = 11/41, far below superclasses' 0.43.
    inner = np.concatenate([np.bincount(fine[part], minlength=20).reshape(5, 4) for part in parts])
    inner = inner[inner.sum(1) >= 10]
    ratio = np.square(inner / inner.sum(1, keepdims=True)).sum(1)
    n = inner.sum(1)
    expected = 11 / 41 + (1 - 11 / 41) / n
    assert (ratio - expected).mean() == pytest.approx(0, abs=4 * ratio.std() / np.sqrt(len(ratio)))


def test_pachinko_renormalises_within_a_superclass_that_ran_out():
    # Superclass 0 has one class with one example; whoever draws it again must take superclass 1.
    parts = pachinko([0] + [1] * 9, [0] + [1] * 9, clients=2, seed=0, alpha=1.0)
    assert is_partition(parts, 10)
    with pytest.raises(ValueError, match="two superclasses"):
        pachinko([0, 0], [0, 1], clients=1, seed=0)


def test_sizes_fall_by_the_power_law():
    sizes = np.array([*map(len, quantity(np.zeros(100_000), 10, exponent=1.5, seed=0))])
    law = np.arange(1, 11) ** -1.5
    assert sizes == pytest.approx(100_000 * law / law.sum(), abs=1)  # two cuts, each rounded by half at most


def test_shards_hold_few_classes():
    labels = np.repeat(np.arange(10), 60)
    parts = shards(labels, clients=10, per_client=2, seed=0)
    assert all(len(part) == 60 for part in parts)
    assert max(len(np.unique(labels[part])) for part in parts) <= 2  # 20 shards of 30 don't cross borders here


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dirichlet", {"alpha": -1.0}, "alpha is -1.0"),
        ("dirichlet-by-client", {"alpha": 0.0}, "alpha is 0.0"),
        ("pachinko", {"coarse": [0] * 12, "beta": 0.0}, "beta is 0.0"),
        ("pachinko", {"coarse": [0] * 3}, "coarse has 3 entries for 12 labels"),
        ("quantity", {"exponent": -0.5}, "exponent is -0.5"),
        ("pathological", {"classes": 0}, "classes is 0"),
        ("pathological", {"classes": 1}, r"leave classes that nobody has. Take classes=2"),
        ("shards", {"per_client": 5}, "per_client is 5; 12 examples make between 1 and 4 shards"),
        ("iid", {"minimum": 5}, "12 examples can't give 3 clients 5 each, which takes 15"),
    ],
)
def test_what_cannot_be_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition(name, [0, 1, 2, 3] * 3, 3, 0, **options)


def test_pathological_clients_cannot_be_topped_up():
    with pytest.raises(ValueError, match="a client would hold 2 examples, fewer than minimum=3"):
        pathological([0] * 6 + [1] * 2, clients=2, classes=1, seed=0, minimum=3)
    with pytest.raises(ValueError, match="class number 1 has 1 examples for 2 clients"):
        pathological([0] * 6 + [1], clients=2, classes=2, seed=0)


def test_names_and_options_say_the_nearest():
    for name, options, message in [
        ("dirichlt", {}, "no partition 'dirichlt'. Did you mean 'dirichlet'"),
        ("shards", {"per_clients": 2}, "Did you mean 'per_client'"),
        ("shards", {}, "needs the option 'per_client'"),
        ("iid", {"alpha": 1}, "It takes: minimum"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_partition(name, options)
    with pytest.raises(ValueError, match="partition iid needs the number of clients: clients="):
        make_partition("iid", [0, 1])
    with pytest.raises(ValueError, match="partition pachinko needs the superclass of each example: coarse="):
        make_partition("pachinko", [0, 1], 2)
    assert set(PARTITIONS) == {*OPTIONS, "pathological", "natural"}


def test_a_poor_owner_is_named():
    with pytest.raises(ValueError, match=r"1 of 2 owners have fewer than minimum=2 examples \(the first: b\)"):
        make_partition("natural", ["a", "b", "a"], minimum=2)
