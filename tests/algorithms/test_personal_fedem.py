"""PersonalFedEM: a client's weights after a round, by hand; EM and the estimators' tests are in tests/em."""

import numpy as np
import pytest
import torch

from archipel import Federation, PersonalFedEM, fit
from archipel.compress import Dithering
from archipel.families import FactorModel, PoissonMixture

COUNTS = [np.array([0, 1, 2, 9.0]), np.array([8.0, 10.0])]
START = {
    "weight": torch.tensor([0.5, 0.5], dtype=torch.float64),
    "rate": torch.tensor([[1.0], [9.0]], dtype=torch.float64),
}
FAMILY = PoissonMixture(2, 1)


def federation():
    return Federation.from_arrays([(x[:, None], np.zeros(len(x))) for x in COUNTS], test=0.0)


def shares(x, weights, rates):
    """Responsibilities by Bayes' rule, (n, 2)."""
    p = weights * rates ** x[:, None] * np.exp(-rates)
    return p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("settings", [{}, {"batch": 4}, {"compressor": Dithering(levels=2)}, {"memory": "off"}])
def test_a_round_moves_weights_by_their_own_m_step(settings):
    # The first M-step is everybody's, from θ_0; compression and memories come after it
    r = shares(np.concatenate(COUNTS), np.array([0.5, 0.5]), np.array([1.0, 9.0]))
    weights = r.mean(0)
    rates = (r * np.concatenate(COUNTS)[:, None]).sum(0) / r.sum(0)
    for a in (0.0, 3.0):
        run = fit(PersonalFedEM(FAMILY, START, pseudo_count=a, **settings), federation(), rounds=1)
        for x, client in zip(COUNTS, run.clients, strict=True):
            expected = (shares(x, weights, rates).sum(0) + a / 2) / (len(x) + a)
            # The family's pseudo-counts are 1e-6
            assert client["weight"].numpy() == pytest.approx(expected, abs=1e-5)


def test_minibatches_move_weights_by_their_share():
    run = fit(PersonalFedEM(FAMILY, START, pseudo_count=0.0, batch=1), federation(), rounds=1)
    before = shares(np.concatenate(COUNTS), np.array([0.5, 0.5]), np.array([1.0, 9.0])).mean(0)
    rates = np.array([[1.0], [9.0]])
    for x, client in zip(COUNTS, run.clients, strict=True):
        moved = client["weight"].numpy() - (1 - 1 / len(x)) * before
        # What is left is 1/n of one example's responsibilities, which sum to one
        assert moved.sum() == pytest.approx(1 / len(x), abs=1e-9)
        near = shares(x, before, rates[:, 0]) / len(x)
        assert np.abs(near - moved).sum(1).min() < 0.1 / len(x)  # the parameters have moved a little from θ_0


def test_what_cant_be_is_refused():
    with pytest.raises(TypeError, match=r"family must be a mixture.*given a FactorModel"):
        PersonalFedEM(FactorModel(2, 1), START)
    with pytest.raises(ValueError, match="pseudo_count must be 0 or above"):
        PersonalFedEM(FAMILY, START, pseudo_count=-1.0)
    with pytest.raises(ValueError, match="batch must be a whole number"):
        PersonalFedEM(FAMILY, START, batch=0)
