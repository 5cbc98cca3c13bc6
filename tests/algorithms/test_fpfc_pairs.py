"""FPFC's pairs, row by row: against the plain loop over pairs."""

import numpy as np
import pytest
import torch
from stepwise import PAIRS, arrays, federation_of, rounds_of

from archipel import FPFC, SGD
from archipel.core.pairs import ascend, lengths, pulls, rows
from archipel.learning.quadratic import Quadratic

M, D = 6, 3
EVERY = [(i, j) for i in range(M) for j in range(i + 1, M)]
ACTIVE = [[], [0], [5], [1, 4], [0, 2, 3], [1, 2, 3, 4, 5], list(range(M))]


def among(members):
    return torch.tensor([i in members for i in range(M)])


def normal(*shape):
    return torch.tensor(np.random.default_rng(len(shape) + shape[0]).normal(size=shape))


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("members", ACTIVE)
def test_rows_name_each_pair_that_is_due_once_and_where_it_lies(members, both):
    found = []
    for i, j, at in rows(among(members), both=both):
        found += [(i, int(j), int(p)) for j, p in zip(torch.arange(M)[j], torch.arange(len(EVERY))[at], strict=True)]
    due = [(i, j) for i, j in EVERY if (i in members) + (j in members) >= (2 if both else 1)]
    assert found == [(i, j, EVERY.index((i, j))) for i, j in due]
    assert torch.triu_indices(M, M, 1).T.tolist() == [list(pair) for pair in EVERY]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("members", ACTIVE)
def test_due_pairs_ascend_and_the_others_keep_their_bits(members, both):
    before, kept, omega = normal(len(EVERY), D), normal(len(EVERY)), normal(M, D)
    given, length = before.clone(), lengths(before)
    assert length.numpy() == pytest.approx(np.sqrt((before.numpy() ** 2).sum(1)), rel=1e-12)
    delta, length = ascend(given, length, kept, omega, among(members), both=both)
    assert torch.equal(given, before)
    for place, (i, j) in enumerate(EVERY):
        if (i in members) + (j in members) >= (2 if both else 1):
            expected = omega[i] - omega[j] + kept[place] * before[place]
            assert delta[place].numpy() == pytest.approx(expected.numpy(), abs=1e-14)
        else:
            assert torch.equal(delta[place], before[place])
    assert length.numpy() == pytest.approx(np.sqrt((delta.numpy() ** 2).sum(1)), rel=1e-12)


@pytest.mark.parametrize("members", ACTIVE)
def test_pulls_are_the_sums_over_pairs_with_either_sign(members):
    delta, factor = normal(len(EVERY), D), normal(len(EVERY))
    found = pulls(delta, factor, among(members))
    for i in members:
        terms = [
            factor[p] * delta[p] * (1 if pair[0] == i else -1) for p, pair in enumerate(EVERY) if i in pair
        ]  # δ_ji = −δ_ij
        assert found[i].numpy() == pytest.approx(sum(terms).numpy(), abs=1e-14)


def test_pairs_take_no_memory_before_the_first_round_and_a_state_stays_what_it_was():
    fpfc = FPFC(Quadratic(3), SGD(lr=0.3, steps=2, batch=None), xi=0.1)
    start = fpfc.init_server(type("Four", (), {"population": 4}), torch.tensor([0, 0]))["pairs"]
    assert start.shape == (6, 3)
    assert start.untyped_storage().nbytes() == 8
    assert not start.any()
    states = [server["pairs"] for _, server, *_ in rounds_of(fpfc, federation_of(*arrays()), 4, PAIRS)]
    assert len({pairs.data_ptr() for pairs in states}) == len(states)
