"""Groups of clients: who they are, what a round sees of them, and where they are given."""

import pytest
import torch
from torch import nn

from archipel import SGD, Ditto, FedAvg, PFedMac, Sample, classification, fit
from archipel.algorithms.compressed import Compressing
from archipel.compress import Identity
from archipel.core.groups import numbered
from archipel.experiments import read_config, train

GROUPS = ((0, 3), (1, 2))


class Watching(FedAvg):
    """FedAvg that notes the groups it sees, and averages within them."""

    def round(self, server, clients, key):
        seen.append([(g.ids.tolist(), g.everyone.ids.tolist(), len(g.groups), g.population) for g in clients.groups])
        for group in clients.groups:
            if len(group.ids):
                message = {"model": server["model"], "lr": self.local.rate(0, 1)}
                _, share = group.mean_and_share(self.train, message, key)
                shares.append((group.ids.tolist(), share))
        return super().round(server, clients, key)


seen, shares = [], []


@pytest.fixture(autouse=True)
def forgotten():
    seen.clear()
    shares.clear()


def watching(federation):
    return Watching(classification(nn.Linear(3, 2), federation), SGD(lr=0.1, steps=1))


def test_a_round_sees_those_of_each_group_who_take_part(uneven):
    fit(watching(uneven), uneven, rounds=4, cohort=Sample(count=2), groups=GROUPS)
    for round in seen:
        assert [everyone for _, everyone, _, _ in round] == [[0, 3], [1, 2]]
        assert sum(len(ids) for ids, *_ in round) == 2
        assert all(set(ids) <= set(everyone) and not below and m == 4 for ids, everyone, below, m in round)
    assert len({str(round) for round in seen}) > 1  # not always the same two
    for ids, share in shares:  # of the group's examples, not of all
        group = next(list(group) for group in GROUPS if ids[0] in group)
        assert share == pytest.approx(float(uneven.sizes[ids].sum() / uneven.sizes[group].sum()))


def test_without_groups_there_are_none(uneven):
    fit(watching(uneven), uneven, rounds=1)
    assert seen == [[]]


@pytest.mark.parametrize("around", ["inside ditto", "compressing"])
def test_an_algorithm_inside_another_sees_them_too(uneven, around):
    algorithm = watching(uneven)
    outer = Ditto(algorithm, SGD(lr=0.1, steps=1)) if around == "inside ditto" else Compressing(algorithm, Identity())
    fit(outer, uneven, rounds=1, groups=GROUPS)
    assert [everyone for _, everyone, _, _ in seen[0]] == [[0, 3], [1, 2]]


def test_names_and_numbers_mean_the_same(uneven):
    names = [client.name for client in uneven.clients]
    algorithm = PFedMac(classification(nn.Linear(3, 2), uneven), SGD(lr=0.1, steps=2), local_rounds=1)
    by_number = fit(algorithm, uneven, rounds=2, groups=GROUPS).server["edges"]["head"]["weight"]
    by_name = fit(algorithm, uneven, rounds=2, groups=[[names[3], names[0]], [1, names[2]]])
    assert torch.equal(by_number, by_name.server["edges"]["head"]["weight"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], [2]], r"must hold each of the 4 clients, .* exactly once, and none may be empty; given \[\[0, 1\]"),
        ([[0, 1], [1, 2, 3]], "exactly once"),
        ([[0, 1, 2, 3], []], "none may be empty"),
        ([[0, 1, 2, 4]], r"groups names 4; the clients are a, b, c, d, or 0 to 3"),
        ([["a", "b", "e", "d"]], r"groups names 'e'; the clients are a, b"),
        ([0, 1, 2, 3], r"groups must be a list of lists of clients"),
        ("abcd", r"groups must be a list of lists of clients"),
        (3, r"groups must be a list of lists of clients.*given 3"),
    ],
)
def test_what_does_not_share_out_the_clients_is_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        numbered(groups, ["a", "b", "c", "d"])


def test_they_are_part_of_a_run(uneven, tmp_path):
    algorithm = watching(uneven)
    fit(algorithm, uneven, rounds=4, groups=GROUPS, folder=tmp_path, until=2)
    with pytest.raises(ValueError, match="holds a run with another groups"):
        fit(algorithm, uneven, rounds=4, groups=((0, 1), (2, 3)), folder=tmp_path)
    assert len(fit(algorithm, uneven, rounds=4, groups=[[3, 0], [2, 1]], folder=tmp_path).history) == 4


def test_configurations_have_them(tmp_path):
    settings = ["algorithm.name=pfedmac", "rounds=1", "data.clients=3", "groups=[[client-0, 2], [client-1]]"]
    run = train(read_config("digits-fedavg", settings), tmp_path).run
    assert run.server["edges"]["head"]["bias"].shape == (2, 10)
