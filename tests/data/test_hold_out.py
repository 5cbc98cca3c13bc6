"""Clients that never train."""

import pytest
import torch

from archipel import Federation
from archipel.data.dual_heterogeneity import dual_heterogeneity
from archipel.data.inputs import Inputs
from archipel.data.sources.scikit import digits


def test_newcomers_are_apart_and_leave_no_trace_in_the_inputs():
    whole = dual_heterogeneity(digits(), clients=5)
    training, newcomers = whole.hold_out(2, seed=3)
    names = [[client.name for client in part.clients] for part in (training, newcomers)]
    assert sorted(names[0] + names[1]) == [client.name for client in whole.clients]
    assert len(names[1]) == 2
    assert training.inputs == newcomers.inputs == Inputs.fit([c.train["x"] for c in training.clients], "image")
    for part in (training, newcomers):
        places = [int(client.name[-1]) for client in part.clients]
        assert torch.equal(part.truth["permutations"], whole.truth["permutations"][places])
        assert part.truth["transforms"] == tuple(whole.truth["transforms"][i] for i in places)
    assert [c.name for c in whole.hold_out(2, seed=3)[1].clients] == names[1]
    assert len({whole.hold_out(2, seed=s)[1].clients[0].name for s in range(20)}) > 1


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (0, "of 3 clients, 1 to 2 can be held out"),
        (3, "of 3 clients, 1 to 2 can be held out"),
        (["client-9"], "no client 'client-9'. Did you mean 'client-"),
        ([], "clients names 0 of 3"),
        (["client-0", "client-1", "client-2"], "clients names 3 of 3"),
    ],
)
def test_somebody_stays_on_both_sides(clients, message):
    with pytest.raises(ValueError, match=message):
        dual_heterogeneity(digits(), clients=3).hold_out(clients)


def test_truth_without_a_row_a_client_is_refused():
    made = dual_heterogeneity(digits(), clients=3)
    odd = Federation("odd", made.clients, made.inputs, made.classes, {"angle": 3.0})
    with pytest.raises(ValueError, match=r"'angle' hasn't a row for each of 3 clients"):
        odd.hold_out(1)
    kept = Federation("even", made.clients, made.inputs, made.classes, {"shared": {"angle": 3.0}}).hold_out(1)
    assert kept[0].truth == {"shared": {"angle": 3.0}}
