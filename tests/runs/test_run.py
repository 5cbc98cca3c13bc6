"""A trained run: routing and prediction from raw queries, and the same after a trip to disk."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from archipel import (
    SGD,
    Algorithm,
    FedAvg,
    FedDRM,
    Federation,
    FedSPM,
    Network,
    Run,
    classification,
    fit,
    load,
    regression,
)
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from archipel.runs.answers import vote
from archipel.runs.facts import Facts

QUERIES = np.random.default_rng(0).normal(size=(7, 3)) * 2 + 1


@pytest.fixture(scope="module")
def routed(uneven):
    block = SGD(lr=0.2, steps=5, batch=8)
    spm = FedSPM(
        classification(nn.Linear(3, 4), uneven),
        Network(nn.Linear(3, 4), uneven.inputs),
        components=2,
        local=block,
        routing=block,
    )
    return fit(spm, uneven, rounds=3)


@pytest.fixture(scope="module")
def averaged(uneven):
    return fit(FedAvg(classification(nn.Linear(3, 4), uneven), SGD(lr=0.2, steps=5)), uneven, rounds=2)


@dataclass(frozen=True)
class Personal(Algorithm):
    """Predicts personally and nothing else."""

    def init_server(self, clients, key):
        return {}

    def init_client(self, message, data, key):
        return {"index": message["index"]}

    def round(self, server, clients, key):
        return server, {}

    def predict(self, server, client, x):
        return torch.log_softmax(x * (client["index"] + 1), dim=-1)


def test_routing_ranks_clients_by_probability(routed):
    routing = routed.route(QUERIES)
    assert routing.clients.shape == (7,)
    assert routing.probabilities.shape == (7, 4)
    torch.testing.assert_close(routing.probabilities.sum(1), torch.ones(7))
    expected = routed.algorithm.route(routed.server, torch.tensor(QUERIES, dtype=torch.float32)).exp()
    assert torch.equal(routing.probabilities, expected)
    assert torch.equal(routing.clients, expected.argmax(1))
    ranked = routing.ranked(top=9)
    for row, probabilities in zip(ranked, expected.tolist(), strict=True):
        assert [p for _, p in row] == sorted(probabilities, reverse=True)
        assert [routing.names.index(name) for name, _ in row] == np.argsort(probabilities)[::-1].tolist()
    assert [len(row) for row in routing.ranked(top=2)] == [2] * 7


def test_one_client_answers_by_name_or_number(routed):
    by_name, by_number = routed.predict(QUERIES, client="client-2"), routed.predict(QUERIES, client=2)
    assert torch.equal(by_name.values, by_number.values)
    assert by_name.answered_by == ["client-2"] * 7
    expected = routed.algorithm.predict(routed.server, routed.clients[2], torch.tensor(QUERIES, dtype=torch.float32))
    assert torch.equal(by_name.values, expected.exp())
    torch.testing.assert_close(by_name.values.sum(1), torch.ones(7))
    assert by_name.labels == [routed.facts.classes[k] for k in expected.argmax(1).tolist()]
    assert routed.predict(QUERIES[0], client=0).values.shape == (1, 3)


def test_a_router_lets_each_query_be_answered_where_it_belongs(routed):
    answer, routing = routed.predict(QUERIES), routed.route(QUERIES)
    assert answer.answered_by == [routing.names[i] for i in routing.clients.tolist()]
    assert len(set(answer.answered_by)) > 1
    for j, client in enumerate(routing.clients.tolist()):
        # a matrix product may round otherwise for one row than for several
        torch.testing.assert_close(answer.values[j], routed.predict(QUERIES[j], client=client).values[0])


def test_without_a_router_the_global_model_answers(averaged):
    answer = averaged.predict(QUERIES)
    assert answer.answered_by == ["global model"] * 7
    assert torch.equal(answer.values, averaged.predict(QUERIES, client=1).values)
    with pytest.raises(TypeError, match=r"FedAvg doesn't route queries.*predict\(x, client=NAME\)"):
        averaged.route(QUERIES)


def test_without_either_all_clients_vote(uneven):
    run = fit(Personal(), uneven, rounds=1)
    answer = run.predict(QUERIES)
    assert answer.answered_by == ["vote"] * 7
    each = torch.stack([run.predict(QUERIES, client=i).values for i in range(4)])
    torch.testing.assert_close(answer.values, each.mean(0))
    assert answer.labels == [run.facts.classes[k] for k in vote(each.log()).tolist()]


def test_a_regression_answers_by_values():
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(n, 2, generator=generator) for n in (10, 20)]
    federation = Federation.from_arrays([(x, x[:, 0]) for x in xs])
    run = fit(FedAvg(regression(nn.Identity(), federation), SGD(lr=0.1, steps=2)), federation, rounds=2)
    answer = run.predict(xs[0])
    assert answer.labels is None
    assert answer.values.shape == (10, 1)
    assert torch.equal(answer.values, run.algorithm.predict_global(run.server, xs[0]))


@pytest.mark.parametrize("client", ["nobody", 4, -1, "4", True, 1.5])
def test_an_unknown_client_is_refused_with_those_there_are(routed, client):
    with pytest.raises(ValueError, match=f"no client {client!r}; there are client-0, client-1, .* or 0 to 3"):
        routed.predict(QUERIES, client=client)


@pytest.mark.parametrize("number", ["2", np.int64(2)])
def test_a_number_may_be_text_or_numpys(routed, number):
    assert routed.predict(QUERIES, number).answered_by == ["client-2"] * len(QUERIES)


def test_no_queries_have_no_answers(routed, averaged):
    for run in (routed, averaged):
        answer = run.predict(QUERIES[:0])
        assert (answer.labels, answer.answered_by, answer.values.shape) == ([], [], (0, len(run.facts.classes)))
    assert routed.route(QUERIES[:0]).ranked() == []


def test_queries_of_another_shape_are_refused(routed):
    with pytest.raises(ValueError, match="shape"):
        routed.route(QUERIES[:, :2])


def test_a_run_comes_back_from_disk_as_it_was(routed, tmp_path):
    routed.save(tmp_path)
    again = Run.read(tmp_path, routed.algorithm)
    assert torch.equal(again.route(QUERIES).probabilities, routed.route(QUERIES).probabilities)
    for client in (None, *range(4)):
        one, other = again.predict(QUERIES, client), routed.predict(QUERIES, client)
        assert torch.equal(one.values, other.values)
        assert (one.labels, one.answered_by) == (other.labels, other.answered_by)
    assert (again.history, again.table, again.metrics) == (routed.history, routed.table, routed.metrics)
    for one, other in zip(again.clients, routed.clients, strict=True):
        one, other = flatten(one), flatten(other)
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def test_a_run_is_read_with_the_algorithm_that_made_it_alone(averaged, routed, uneven, tmp_path):
    fit(averaged.algorithm, uneven, rounds=1, folder=tmp_path)
    assert Run.read(tmp_path, averaged.algorithm).metrics
    with pytest.raises(ValueError, match="was trained with FedAvg; given a FedSPM"):
        Run.read(tmp_path, routed.algorithm)
    with pytest.raises(ValueError, match="was trained with FedAvg; given the class FedAvg"):
        Run.read(tmp_path, FedAvg)


def test_facts_survive_json(uneven):
    facts = Facts.of(uneven)
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    assert facts.sizes == tuple(len(client.train["y"]) for client in uneven.clients)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    numbers = Facts.of(Federation.from_arrays([(x, x)]))
    assert Facts.from_json(json.loads(json.dumps(numbers.to_json()))) == numbers
    assert (numbers.classes, numbers.outputs) == (None, 2)


def test_a_folder_without_a_run_is_refused(routed, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        Run.read(tmp_path, routed.algorithm)


def test_a_run_prints_what_it_is_and_none_of_its_weights(averaged):
    shown = repr(averaged)
    assert shown.startswith("Run(FedAvg, 4 clients, 2 rounds: global_accuracy 0.")
    assert "tensor" not in shown


def test_evaluating_again_gives_what_training_recorded(uneven, averaged, routed):
    for run in (averaged, routed):
        before = [dict(flatten(state)) for state in (run.server, *run.clients)]
        found = run.evaluate(uneven)
        assert found.metrics == run.metrics
        assert found.clients == run.table
        after = [dict(flatten(state)) for state in (run.server, *run.clients)]
        assert all(torch.equal(new[name], old[name]) for new, old in zip(after, before, strict=True) for name in old)


@pytest.mark.parametrize("engine", ["loop", "batched", "threads"])
def test_a_run_is_evaluated_on_other_examples_of_its_clients(uneven, averaged, engine):
    """On the training examples, by brute force: one model, and weights n_i/n."""
    other = replace(uneven, clients=tuple(replace(client, test=client.train) for client in uneven.clients))
    found = averaged.evaluate(other, Setting(engine=engine))
    right = [
        (averaged.algorithm.predict_global(averaged.server, c.train["x"]).argmax(1) == c.train["y"]).double()
        for c in uneven.clients
    ]
    assert found.metrics["global_accuracy"] == pytest.approx(torch.cat(right).mean().item())
    assert found.metrics["average_accuracy"] == pytest.approx(torch.cat(right).mean().item())  # n_i/n · 1/n_i
    assert [row["accuracy"] for row in found.clients] == pytest.approx([one.mean().item() for one in right])
    assert averaged.metrics != found.metrics


def test_averages_have_the_weights_of_the_training(uneven, averaged):
    """Clients may bring fewer training examples to an evaluation than they trained on."""
    fewer = [replace(c, train={name: column[:1] for name, column in c.train.items()}) for c in uneven.clients]
    found = averaged.evaluate(replace(uneven, clients=tuple(fewer)))
    assert found.metrics == averaged.metrics
    assert [row["train"] for row in found.clients] == list(averaged.facts.sizes)


def test_a_run_read_from_disk_is_evaluated_as_it_was(uneven, routed, tmp_path):
    routed.save(tmp_path)
    assert Run.read(tmp_path, routed.algorithm).evaluate(uneven).metrics == routed.metrics


def _with_bytes(federation):
    return replace(federation, inputs=replace(federation.inputs, scale=255.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: replace(f, clients=f.clients[:3]),
            r"has the clients client-0, .*the same clients in the same order",
        ),
        (lambda f: replace(f, clients=f.clients[::-1]), r"client-3, client-2.*the same clients in the same order"),
        (lambda f: replace(f, classes=("x", "y", "z")), r"the classes x, y, z; the run was trained for the classes"),
        (lambda f: replace(f, classes=None), "has numbers as targets; the run was trained for the classes"),
        (lambda f: replace(f, inputs=replace(f.inputs, shape=(2,), mean=(0, 0), std=(1, 1))), r"shape \(2,\).*\(3,\)"),
        (_with_bytes, r"scale 255.0; the run was trained on scale 1.0"),
    ],
)
def test_a_federation_of_another_form_is_not_evaluated_on(uneven, averaged, change, said):
    with pytest.raises(ValueError, match=said):
        averaged.evaluate(change(uneven))


def test_facts_of_another_format_are_refused(uneven):
    facts = Facts.of(uneven).to_json()
    for other in (facts | {"format": 0}, {name: value for name, value in facts.items() if name != "format"}):
        with pytest.raises(ValueError, match=r"format (0|None); this version of archipel reads format 1"):
            Facts.from_json(other)


def test_a_run_is_read_with_the_frozen_parameters_it_was_trained_with(uneven, tmp_path):
    def algorithm(value):
        encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        encoder[0].weight.data.fill_(value)
        encoder[0].requires_grad_(False)
        encoder[0].bias.data.zero_()
        return FedAvg(classification(encoder, uneven), SGD(lr=0.2, steps=5))

    run = fit(algorithm(0.5), uneven, rounds=2, folder=tmp_path)
    again = load(tmp_path, algorithm(0.5))
    assert torch.equal(again.predict(QUERIES).values, run.predict(QUERIES).values)
    with pytest.raises(ValueError, match=r"other frozen parameters \(requires_grad=False\)"):
        load(tmp_path, algorithm(0.25))
    with pytest.raises(ValueError, match="another rounds and algorithm"):
        fit(algorithm(0.25), uneven, rounds=3, folder=tmp_path)


def test_a_prior_is_put_in_place_of_the_shares_of_the_training(routed):
    """Bayes' rule by hand: the posterior under n_i/n, divided by n_i and multiplied by the new shares."""
    own, sizes = routed.route(QUERIES).probabilities.double(), torch.tensor(routed.facts.sizes, dtype=torch.float64)
    for prior, shares in (
        ("uniform", torch.ones(4, dtype=torch.float64)),
        ([0.1, 0.0, 2.0, 1.0], torch.tensor([0.1, 0.0, 2.0, 1.0], dtype=torch.float64)),
        (np.array([1, 2, 3, 4]), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)),
    ):
        expected = own / sizes * shares
        found = routed.route(QUERIES, prior=prior)
        torch.testing.assert_close(
            found.probabilities.double(), expected / expected.sum(1, keepdim=True), rtol=1e-5, atol=1e-6
        )
        assert torch.equal(found.clients, expected.argmax(1))
        answers = routed.predict(QUERIES, prior=prior)
        assert answers.answered_by == [routed.facts.names[i] for i in expected.argmax(1).tolist()]
    same = routed.route(QUERIES, prior=routed.facts.sizes).probabilities
    torch.testing.assert_close(same, routed.route(QUERIES).probabilities)


def test_a_method_with_a_prior_of_its_own_has_it_replaced(uneven):
    drm = FedDRM(classification(nn.Linear(3, 4), uneven), SGD(lr=0.2, steps=5))
    run = fit(drm, uneven, rounds=2)
    flat = replace(run, algorithm=replace(drm, prior="uniform"))
    torch.testing.assert_close(run.route(QUERIES, prior="uniform").probabilities, flat.route(QUERIES).probabilities)
    torch.testing.assert_close(
        flat.route(QUERIES, prior=flat.facts.sizes).probabilities, run.route(QUERIES).probabilities
    )
    torch.testing.assert_close(flat.route(QUERIES, prior="uniform").probabilities, flat.route(QUERIES).probabilities)


@pytest.mark.parametrize(
    "prior", ["flat", [1.0], [1, 1, 1, -1], [0, 0, 0, 0], [1, 1, 1, float("nan")], ["a"] * 4, 3, {"client-0": 1}]
)
def test_what_is_no_prior_is_refused(routed, prior):
    for ask in (routed.route, routed.predict):
        with pytest.raises(ValueError, match="a share of 0 or above for each of the 4 clients"):
            ask(QUERIES, prior=prior)
