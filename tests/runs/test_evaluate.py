"""Evaluation: votes, averages and routing against brute force over single examples."""

import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from archipel import (
    IFCA,
    SCAFFOLD,
    SGD,
    Adapts,
    Algorithm,
    Ditto,
    DivergenceError,
    Embeds,
    FedAvg,
    FedBABU,
    FedCR,
    FedDRM,
    FedEMExperts,
    Federation,
    FedGMM,
    FedPer,
    FedRep,
    FedSPM,
    Local,
    Network,
    classification,
    evaluate,
    fit,
    regression,
)
from archipel.core import keys
from archipel.core.trees import flatten
from archipel.data import Client
from archipel.engines import Loop
from archipel.engines.carrier import client_data
from archipel.engines.setting import Setting
from archipel.runs.answers import AnswerSteps, Questions, vote
from archipel.runs.calibration import calibration_error


@dataclass(frozen=True)
class Constant(Algorithm):
    """Every client answers by log-probabilities that it holds; ``adapt`` and ``predict_global`` come below."""

    def init_server(self, clients, key):
        return {"shift": torch.tensor(0.0)}

    def init_client(self, message, data, key):
        return {"favourite": message["index"] % 3}

    def round(self, server, clients, key):
        return server, {}

    def predict(self, server, client, x):
        logits = torch.arange(3) == client["favourite"]
        return torch.log_softmax(2.0 * logits + server["shift"] + 0.0 * x[:, :1], dim=-1)


@dataclass(frozen=True)
class Adapting(Constant):
    """Adapts to the commonest class of its training data; its global model always says 2."""

    def adapt(self, server, client, data, key):
        counts = torch.stack([((data.train["y"] == k) & data.train.mask).sum() for k in range(3)])
        return {"favourite": counts.argmax()}

    def predict_global(self, server, x):
        return torch.log_softmax(5.0 * (torch.arange(3) == 2) + 0.0 * x[:, :1], dim=-1)


def by_hand(federation, favourites):
    """Each client's accuracy on its own tests if it always names its favourite."""
    return [(c.test["y"] == k).double().mean().item() for c, k in zip(federation.clients, favourites, strict=True)]


def weighted(federation, values):
    sizes = federation.sizes.tolist()
    return sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)


def test_the_majority_wins_and_ties_go_to_the_highest_sum():
    generator = torch.Generator().manual_seed(0)
    # probabilities in quarters make ties of votes common, and those of sums too
    answers = torch.randint(1, 5, (4, 300, 3), generator=generator).double()
    answers = answers / answers.sum(-1, keepdim=True)
    winners = vote(answers.log())
    ties = 0
    for j in range(300):
        ballots = Counter(answers[i, j].argmax().item() for i in range(4))
        most = max(ballots.values())
        leading = [k for k, count in ballots.items() if count == most]
        ties += len(leading) > 1
        sums = answers[:, j].sum(0)
        best = max(sums[k].item() for k in leading)
        assert winners[j].item() in [k for k in leading if sums[k].item() >= best - 1e-12]
    assert ties > 50


def test_one_ballot_more_beats_any_confidence():
    sure, hesitant = [0.998, 0.001, 0.001], [0.30, 0.36, 0.34]
    # two ballots of 0.36 against one of 0.998 twice the sum
    assert vote(torch.tensor([[sure], [hesitant], [hesitant]]).log()).tolist() == [1]
    assert vote(torch.tensor([[sure], [hesitant]]).log()).tolist() == [0]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_system_and_average_accuracy_by_brute_force(uneven, engine):
    run = fit(Constant(), uneven, rounds=1, setting=Setting(engine=engine))
    # clients 0 and 3 favour class 0, so it has two of four ballots for every example
    pooled = torch.cat([client.test["y"] for client in uneven.clients])
    assert run.metrics["system_accuracy"] == pytest.approx((pooled == 0).double().mean().item())
    own = by_hand(uneven, [0, 1, 2, 0])
    assert run.metrics["average_accuracy"] == pytest.approx(weighted(uneven, own))
    assert set(run.metrics) == {
        "system_accuracy",
        "average_accuracy",
        "worst_accuracy",
        "worst_decile_accuracy",
        "ece",
    }
    assert [row["accuracy"] for row in run.table] == pytest.approx(own)
    assert [(row["client"], row["train"], row["test"]) for row in run.table] == [
        (c.name, len(c.train["y"]), len(c.test["y"])) for c in uneven.clients
    ]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_global_personal_and_adapted_models_are_separate_series(uneven, engine):
    run = fit(Adapting(), uneven, rounds=1, setting=Setting(engine=engine))
    commonest = [torch.bincount(c.train["y"], minlength=3).argmax().item() for c in uneven.clients]
    assert commonest != [0, 1, 2, 0]
    pooled = torch.cat([client.test["y"] for client in uneven.clients])
    expected = {
        "average_accuracy": weighted(uneven, by_hand(uneven, commonest)),
        "average_before_accuracy": weighted(uneven, by_hand(uneven, [0, 1, 2, 0])),
        "global_accuracy": (pooled == 2).double().mean().item(),
    }
    assert {name: run.metrics[name] for name in expected} == pytest.approx(expected)
    # what adapted was never kept
    assert [int(client["favourite"]) for client in run.clients] == [0, 1, 2, 0]


def test_a_shared_model_is_the_system_and_everybodys_own(uneven):
    run = fit(FedAvg(classification(nn.Linear(3, 4), uneven), SGD(lr=0.2, steps=5)), uneven, rounds=3)
    model = run.server["model"]
    right = [run.algorithm.task.predict(model, c.test["x"]).argmax(-1) == c.test["y"] for c in uneven.clients]
    pooled = torch.cat(right).double().mean().item()
    assert run.metrics["system_accuracy"] == run.metrics["global_accuracy"] == pytest.approx(pooled)
    assert run.metrics["average_accuracy"] == pytest.approx(weighted(uneven, [r.double().mean().item() for r in right]))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_models_that_are_adapted_before_evaluation_vote(uneven, engine):
    @dataclass(frozen=True)
    class Tuned(Adapting):
        """Keeps nothing at its clients, as fine-tuning doesn't, and has a global model beside."""

        def init_client(self, message, data, key):
            return {}

        def adapt(self, server, client, data, key):
            return {"favourite": (data.train.count > 10).long()}

        def predict(self, server, client, x):
            return super().predict(server, {"favourite": torch.tensor(2)} | client, x)

    run = fit(Tuned(), uneven, rounds=1, setting=Setting(engine=engine))
    assert (uneven.sizes > 10).tolist() == [False, True, True, True]  # three of four say 1 then
    pooled = torch.cat([client.test["y"] for client in uneven.clients])
    assert run.metrics["system_accuracy"] == pytest.approx((pooled == 1).double().mean().item())
    assert run.metrics["global_accuracy"] == pytest.approx((pooled == 2).double().mean().item())


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_router_answers_by_the_client_it_routes_to(uneven, engine):
    task = classification(nn.Linear(3, 4), uneven)
    block = SGD(lr=0.2, steps=10, batch=8)
    spm = FedSPM(task, Network(nn.Linear(3, 4), uneven.inputs), components=2, local=block, routing=block)
    run = fit(spm, uneven, rounds=3, setting=Setting(engine=engine))
    right, home, own = [], [], []
    for i, client in enumerate(uneven.clients):
        for x, y in zip(client.test["x"], client.test["y"], strict=True):
            j = spm.route(run.server, x[None])[0].argmax().item()
            home.append(j == i)
            right.append(spm.predict(run.server, run.clients[j], x[None])[0].argmax() == y)
        own.append((spm.predict(run.server, run.clients[i], client.test["x"]).argmax(-1) == client.test["y"]).double())
    assert run.metrics["system_accuracy"] == pytest.approx(torch.stack(right).double().mean().item())
    assert run.metrics["routing_accuracy"] == pytest.approx(sum(home) / len(home))
    assert run.metrics["average_accuracy"] == pytest.approx(weighted(uneven, [o.mean().item() for o in own]))
    ends = torch.tensor([len(c.test["y"]) for c in uneven.clients]).cumsum(0).tolist()
    for row, start, end in zip(run.table, [0, *ends], ends, strict=False):
        assert row["routed"] == pytest.approx(sum(home[start:end]) / (end - start))
    assert 0 < sum(home) < len(home)  # otherwise the system's accuracy would be the average one


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_regression_is_scored_by_its_root_mean_squared_error(engine):
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(n, 2, generator=generator) for n in (10, 20)]
    federation = Federation.from_arrays([(x, x[:, 0] + i) for i, x in enumerate(xs)])

    @dataclass(frozen=True)
    class Guess(Constant):
        def predict(self, server, client, x):
            return client["favourite"].float() + 0.0 * x[:, :1]

    run = fit(Guess(), federation, rounds=1, setting=Setting(engine=engine))
    own = [(c.test["y"] - i).square().mean().item() for i, c in enumerate(federation.clients)]
    pooled = torch.cat([c.test["y"] for c in federation.clients])
    # the system answers by the mean of 0 and 1
    assert run.metrics["system_rmse"] == pytest.approx((pooled - 0.5).square().mean().sqrt().item(), rel=1e-6)
    assert run.metrics["average_rmse"] == pytest.approx(weighted(federation, own) ** 0.5, rel=1e-6)
    assert [row["rmse"] for row in run.table] == pytest.approx([v**0.5 for v in own], rel=1e-6)
    assert run.metrics["worst_rmse"] == pytest.approx(max(own) ** 0.5, rel=1e-6)
    assert set(run.metrics) == {"system_rmse", "average_rmse", "worst_rmse"}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("algorithm", [Constant(), Adapting()])
def test_a_client_without_tests_is_left_out_of_averages(uneven, engine, algorithm):
    bare = uneven.clients[1]
    bare = replace(bare, test={name: column[:0] for name, column in bare.test.items()})
    federation = Federation("some", (uneven.clients[0], bare, *uneven.clients[2:]), uneven.inputs, uneven.classes)
    run = fit(algorithm, federation, rounds=1, setting=Setting(engine=engine))
    whole = fit(algorithm, uneven, rounds=1, setting=Setting(engine=engine))
    keep = [0, 2, 3]
    own = [whole.table[i]["accuracy"] for i in keep]
    sizes = uneven.sizes[keep].tolist()
    assert run.metrics["average_accuracy"] == pytest.approx(
        sum(n * v for n, v in zip(sizes, own, strict=True)) / sum(sizes)
    )
    assert "accuracy" not in run.table[1]
    assert run.table[1]["test"] == 0


def test_without_tests_there_are_no_metrics():
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays([(x, torch.arange(10) % 3)] * 2, test=0.0)
    run = fit(Constant(), federation, rounds=1)
    assert run.metrics == {}
    assert [row["train"] for row in run.table] == [10, 10]


def test_evaluation_leaves_state_alone(uneven):
    runs = [fit(Adapting(), uneven, rounds=3, evaluate_every=every) for every in (None, 1)]
    assert [client["favourite"] for client in runs[0].clients] == [client["favourite"] for client in runs[1].clients]
    assert ["metrics" in record for record in runs[1].history] == [True] * 3
    assert ["metrics" in record for record in runs[0].history] == [False, False, True]
    assert flatten(runs[0].server).keys() == flatten(runs[1].server).keys()


def test_validation_is_not_evaluated_on():
    # A client's class of validation examples is found nowhere else; a model that only knows it is never right.
    x = torch.zeros(4, 2)
    columns = {part: {"x": x, "y": torch.full((4,), k)} for k, part in enumerate(("train", "test", "validation"))}
    other = Federation.from_arrays([(torch.randn(9, 2), torch.arange(9) % 3)])
    federation = Federation("split", (Client("one", **columns),), other.inputs, other.classes)

    @dataclass(frozen=True)
    class Last(Constant):
        def init_client(self, message, data, key):
            return {"favourite": torch.tensor(2)}

    assert fit(Last(), federation, rounds=1).metrics["average_accuracy"] == 0


def brute_force_ece(rows):
    """ECE of (weight, confidence, right) triples, bin by bin; a confidence on a border belongs to the bin below it."""
    total = sum(weight for weight, _, _ in rows)
    error = 0.0
    for b in range(15):
        inside = [row for row in rows if b / 15 < row[1] <= (b + 1) / 15 or (b == 0 and row[1] == 0)]
        error += abs(sum(weight * (right - confidence) for weight, confidence, right in inside))
    return error / total


def test_calibration_by_brute_force_and_by_hand():
    generator = torch.Generator().manual_seed(0)
    # off the borders k/15, where one rounding decides
    confidence = (torch.randint(0, 1000, (500,), generator=generator).double() + 0.4) / 1000
    right = torch.rand(500, generator=generator) < 0.6
    rows = [(1.0, c, r) for c, r in zip(confidence.tolist(), right.tolist(), strict=True)]
    assert calibration_error(confidence, right) == pytest.approx(brute_force_ece(rows), rel=1e-12)
    # nine of ten right at 0.9, three of four at 0.75: perfect (0.9 and 1/14 are no binary fractions: rounding)
    confidence = torch.tensor([0.9] * 10 + [0.75] * 4, dtype=torch.float64)
    right = torch.tensor([1] * 9 + [0] + [1] * 3 + [0])
    assert calibration_error(confidence, right) == pytest.approx(0.0, abs=1e-15)
    # the same answers taken for certain: 2 wrong of 14
    assert calibration_error(torch.ones(14), right) == pytest.approx(2 / 14, rel=1e-12)
    # over- and underconfidence in one bin cancel, in two they don't
    assert calibration_error(torch.tensor([0.95, 0.95]), torch.tensor([1, 1])) == pytest.approx(0.05, rel=1e-6)
    assert calibration_error(torch.tensor([0.0, 1.0]), torch.tensor([0, 1])) == 0.0


def test_a_calibrated_forecaster_has_a_small_error():
    generator = torch.Generator().manual_seed(1)
    confidence = torch.rand(100_000, generator=generator, dtype=torch.float64)
    right = torch.rand(100_000, generator=generator, dtype=torch.float64) < confidence
    # a bin of n_b has E|gap| <= 0.5 / sqrt(n_b); with n/15 examples each, their weighted sum is below 0.5 sqrt(15/n)
    assert calibration_error(confidence, right) < 0.5 * (15 / 100_000) ** 0.5


def test_perfect_and_hopeless_forecasts():
    assert calibration_error(torch.ones(10), torch.ones(10)) == 0.0
    assert calibration_error(torch.ones(10), torch.zeros(10)) == 1.0


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_worst_clients_and_calibration_by_brute_force(uneven, engine):
    task = classification(nn.Linear(3, 4), uneven)
    block = SGD(lr=0.2, steps=10, batch=8)
    spm = FedSPM(task, Network(nn.Linear(3, 4), uneven.inputs), components=2, local=block, routing=block)
    run = fit(spm, uneven, rounds=3, setting=Setting(engine=engine))
    own, rows, routed = [], [], []
    for i, client in enumerate(uneven.clients):
        answers = spm.predict(run.server, run.clients[i], client.test["x"]).exp()
        right = (answers.argmax(-1) == client.test["y"]).tolist()
        own.append(sum(right) / len(right))
        share = len(client.train["y"]) / len(right)
        rows += [(share, c, r) for c, r in zip(answers.max(-1).values.tolist(), right, strict=True)]
        posterior = spm.route(run.server, client.test["x"]).exp()
        routed += [(1.0, p.max().item(), p.argmax().item() == i) for p in posterior]
    assert len(set(own)) > 1
    assert run.metrics["worst_accuracy"] == pytest.approx(min(own))
    assert run.metrics["worst_decile_accuracy"] == pytest.approx(min(own))  # a tenth of four clients is one
    # float32 answers of two forward passes: some 1e-7 each
    assert run.metrics["ece"] == pytest.approx(brute_force_ece(rows), abs=1e-5)
    assert run.metrics["routing_ece"] == pytest.approx(brute_force_ece(routed), abs=1e-5)


@pytest.mark.parametrize(("clients", "worst"), [(10, 1), (11, 2), (20, 2)])
def test_the_worst_tenth_is_rounded_up(clients, worst):
    # client i holds 20 test examples of class 0, but for i of them, and always says 0
    @dataclass(frozen=True)
    class Zero(Constant):
        def init_client(self, message, data, key):
            return {"favourite": torch.tensor(0)}

    parts = []
    for i in range(clients):
        y = torch.where(torch.arange(20) < i, 1, 0)
        columns = {"x": torch.zeros(20, 2), "y": y}
        parts.append(Client(f"{i}", train=columns, test=columns))
    inputs = Federation.from_arrays([(torch.zeros(9, 2), torch.arange(9) % 3)]).inputs
    run = fit(Zero(), Federation("ordered", tuple(parts), inputs, ("a", "b", "c")), rounds=1)
    accuracies = sorted((20 - i) / 20 for i in range(clients))
    assert run.metrics["worst_accuracy"] == pytest.approx(accuracies[0])
    assert run.metrics["worst_decile_accuracy"] == pytest.approx(sum(accuracies[:worst]) / worst)


def without_tests(federation, i):
    bare = federation.clients[i]
    bare = replace(bare, test={name: column[:0] for name, column in bare.test.items()})
    return replace(federation, clients=(*federation.clients[:i], bare, *federation.clients[i + 1 :]))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_regressions_client_without_tests_is_left_out_too(engine):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    federation = without_tests(
        Federation.from_arrays([(x[:8], x[:8, 0]), (x[8:18], x[8:18, 0]), (x[18:], x[18:, 1])]), 0
    )
    task, solver = regression(nn.Identity(), federation), SGD(lr=0.1, steps=2)
    run = fit(Ditto(FedAvg(task, solver), solver), federation, rounds=1, setting=Setting(engine=engine))
    squares = []
    for client, state in zip(federation.clients[1:], run.clients[1:], strict=True):
        answers = run.algorithm.predict(run.server, state, client.test["x"])
        squares.append((answers - client.test["y"].reshape(answers.shape)).square().mean().item())
    assert run.metrics["average_rmse"] == pytest.approx(weighted_last(federation, squares) ** 0.5, rel=1e-5)  # float32
    assert "rmse" not in run.table[0]


def weighted_last(federation, values):
    sizes = federation.sizes[1:].tolist()
    return sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)


@dataclass(frozen=True)
class Overflowing(Constant):
    """Finite states, and no finite answers at clients from ``first`` on."""

    first: int = 0

    def init_client(self, message, data, key):
        return {"favourite": message["index"] % 3, "scale": torch.where(message["index"] < self.first, 0.0, 1e38)}

    def predict(self, server, client, x):
        answers = Constant.predict(self, server, client, x)
        return answers + 10 * client["scale"] - 10 * client["scale"]


@dataclass(frozen=True)
class Posting(Overflowing):
    """Sends every query to client 2."""

    def route(self, server, x):
        return torch.log_softmax(9.0 * (torch.arange(4) == 2) + 0.0 * x[:, :1], dim=-1)


def test_answers_that_overflow_are_told_by_client_and_round(uneven, caplog):
    with pytest.raises(
        DivergenceError, match=r"After round 2 .* not finite at client-0, client-1, client-2, client-3\. A lower"
    ):
        fit(Overflowing(), uneven, rounds=2)
    with pytest.raises(DivergenceError, match=r"After round 1 .* not finite at client-2\."):
        fit(Posting(first=2), uneven, rounds=1)
    run = fit(Overflowing(first=3), uneven, rounds=1)
    assert "not finite at client-3. A lower" in caplog.text
    assert "They are left out of the metrics." in caplog.text
    whole = fit(Constant(), uneven, rounds=1)
    assert [row.get("accuracy") for row in run.table[:3]] == [row["accuracy"] for row in whole.table[:3]]
    assert "accuracy" not in run.table[3]
    tested = replace(uneven, clients=tuple(replace(c, test=c.test) for c in uneven.clients))
    for i in range(3):
        tested = without_tests(tested, i)
    with pytest.raises(DivergenceError, match=r"not finite at client-3\."):
        fit(Overflowing(first=3), tested, rounds=1)


class Counting(nn.Module):
    """A small encoder that counts the examples it has seen since it was last reset, all its copies together."""

    seen: ClassVar[int] = 0

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), *([nn.BatchNorm1d(5)] if norm else []), nn.Tanh())

    def forward(self, x):
        Counting.seen += len(x)
        return self.layers(x)


class Plain(Algorithm):
    """The same algorithm without the protocols that an evaluation is fast by: every client is asked for everything."""

    def __init__(self, inner):
        self.inner = inner
        for name in ("predict", "predict_global", "adapt", "route"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    def init_server(self, clients, key):
        raise NotImplementedError

    def round(self, server, clients, key):
        raise NotImplementedError


STEP, WHOLE = SGD(lr=0.3, steps=3, batch=8), SGD(lr=0.3, steps=3, batch=None)
SHARING = {
    "FedPer": lambda task, router: FedPer(task, STEP),
    "FedRep": lambda task, router: FedRep(task, STEP, STEP),
    "FedBABU": lambda task, router: FedBABU(task, STEP, STEP),
    "FedCR": lambda task, router: FedCR(task, STEP),
    "FedDRM": lambda task, router: FedDRM(task, STEP),
    "FedSPM": lambda task, router: FedSPM(task, router, 2, STEP, STEP),
    "FedSPM, own": lambda task, router: FedSPM(task, router, 2, STEP, STEP, encoders="own"),
    "FedGMM": lambda task, router: FedGMM(task, STEP, router=router, components=2, gaussians=2),
    "FedEMExperts": lambda task, router: FedEMExperts(task, STEP, components=2),
    "IFCA": lambda task, router: IFCA(task, STEP, clusters=2),
    "SCAFFOLD": lambda task, router: SCAFFOLD(task, STEP),
    "FedAvg": lambda task, router: FedAvg(task, SGD(lr=0.3, steps=3, batch=8, momentum=0.9, keep_momentum=True)),
}
# Encoders over all test examples: one of each (two for g and h, or for two experts or clusters). FedGMM's embedding is
# a pass more, since it routes by itself; FedBABU's global model is another. Batching doesn't matter: what is shared is
# no step.
PASSES = {"FedBABU": 2, "FedSPM": 2, "FedSPM, own": 4, "FedGMM": 4, "FedEMExperts": 2, "IFCA": 2}


def evaluated(algorithm, federation):
    """A run, and its evaluation as it is and by the plain algorithm, each with the examples that encoders saw in it."""
    found = []

    def look(moment):
        for view in (algorithm, Plain(algorithm)) if moment.round == 2 else ():
            Counting.seen = 0
            found.append((evaluate(view, moment.server, moment.clients, federation, keys.key(5)), Counting.seen))

    return fit(algorithm, federation, rounds=2, setting=Setting(engine="loop"), callbacks=[look]), *found


@pytest.mark.parametrize("name", SHARING)
def test_what_models_share_is_computed_once_and_the_metrics_stay(uneven, name):
    task, router = classification(Counting(), uneven), Network(Counting(), uneven.inputs)
    run, (found, seen), (plain, more) = evaluated(SHARING[name](task, router), uneven)
    pooled = sum(len(client.test["y"]) for client in uneven.clients)
    Counting.seen = 0
    for i, client in enumerate(run.clients if isinstance(run.algorithm, Adapts) else []):
        run.algorithm.adapt(run.server, client, client_data(uneven, i, training=False), keys.fold(keys.key(5), i))
    assert seen == PASSES.get(name, 1) * pooled + Counting.seen  # what tuning on training data has seen
    assert more > seen
    # float32 answers of passes over other rows: some 1e-7 each, and no example is that near to a tie
    assert found.metrics == pytest.approx(plain.metrics, abs=1e-6)
    assert [list(row) for row in found.clients] == [list(row) for row in plain.clients]
    for one, other in zip(found.clients, plain.clients, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("policy", ["share", "local"])
@pytest.mark.parametrize("name", [name for name in SHARING if name not in ("IFCA", "FedDRM")])
def test_an_encoder_with_statistics_of_each_client_is_not_shared(uneven, name, policy):
    task, router = classification(Counting(norm=True), uneven), Network(Counting(norm=True), uneven.inputs)
    algorithm = SHARING[name](task, router)
    solvers = [field for field in ("local", "head", "tuning", "routing") if hasattr(algorithm, field)]
    # BatchNorm can't train on one example, which minibatches may leave over.
    algorithm = replace(algorithm, batch_norm=policy, **dict.fromkeys(solvers, WHOLE))
    run, (found, seen), (plain, _) = evaluated(algorithm, uneven)
    assert found.metrics == pytest.approx(plain.metrics, abs=1e-6)
    x, pooled = uneven.clients[0].test["x"], sum(len(client.test["y"]) for client in uneven.clients)
    alone = [algorithm.predict(run.server, client, x) for client in run.clients]
    if isinstance(algorithm, Embeds):
        made = algorithm.embed(run.server, x)
        for answers, client in zip(alone, run.clients, strict=True):
            torch.testing.assert_close(algorithm.predict_embedded(run.server, client, made), answers)
    shared = seen == PASSES.get(name, 1) * pooled
    # Tuning moves statistics on, so that FedBABU's clients have their own under any policy.
    assert shared == (policy == "share" and name != "FedBABU")


def test_models_of_a_kept_body_share_nothing(uneven):
    task = classification(Counting(), uneven)
    for algorithm in (FedPer(task, STEP, personal=["encoder"]), FedBABU(task, STEP, STEP, tune="all")):
        run, (found, _), (plain, _) = evaluated(algorithm, uneven)
        x = uneven.clients[0].test["x"]
        assert algorithm.embed(run.server, x) is x
        assert found.metrics == pytest.approx(plain.metrics, abs=1e-6)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_clients_are_asked_for_uneven_parts_of_the_queries(uneven, engine):
    # All counts from 0 on, so that batches are padded, and one client gets most.
    owner = torch.tensor([3] * 700 + [0, 2, 2, 0, 2])[torch.randperm(705, generator=torch.Generator().manual_seed(0))]
    query = torch.arange(705) % 50
    queries = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))

    @dataclass(frozen=True)
    class Naming(Constant):
        def predict(self, server, client, x):
            return torch.where(client["favourite"] == 1, torch.inf, x * (client["favourite"] + 1))

    seen = {}

    def ask(moment):
        questions = Questions(moment.clients, moment.server, queries, 3, keys.key(0))
        seen["answers"] = questions.ask_pairs(AnswerSteps(moment.algorithm).answer, owner, query)
        seen["one"] = questions.ask_pairs(
            AnswerSteps(moment.algorithm).answer, torch.tensor([1, 2]), torch.tensor([4, 4])
        )

    bare = uneven
    for i in range(4):
        bare = without_tests(bare, i)
    fit(Naming(), bare, rounds=1, setting=Setting(engine=engine), callbacks=[ask])
    assert torch.equal(seen["answers"], queries[query] * (owner % 3 + 1)[:, None])
    assert seen["one"].isnan().tolist() == [[True] * 3, [False] * 3]  # client 1's aren't finite


def test_many_clients_vote_some_at_a_time(uneven, monkeypatch):
    whole = fit(Constant(), uneven, rounds=1, setting=Setting(engine="loop"))
    monkeypatch.setattr("archipel.runs.answers.TOGETHER", 1)
    assert fit(Constant(), uneven, rounds=1, setting=Setting(engine="loop")).metrics == whole.metrics


def test_where_too_many_answers_were_needed_nobody_votes_and_the_rest_stays(uneven, monkeypatch, caplog):
    algorithm = Local(classification(nn.Linear(3, 4), uneven), SGD(lr=0.3, steps=2, batch=4))
    whole = fit(algorithm, uneven, rounds=2)
    monkeypatch.setattr(sys.modules["archipel.runs.evaluate"], "VOTES", 4)  # the package has a function of that name
    with caplog.at_level("INFO", "archipel"):
        run = fit(algorithm, uneven, rounds=2)
    assert run.metrics == {name: value for name, value in whole.metrics.items() if name != "system_accuracy"}
    assert "system_accuracy" in whole.metrics
    assert [m for m in caplog.messages if m.startswith("4 clients don't vote on ")]


def test_a_global_model_is_evaluated_without_asking_anybody(uneven):
    class Deaf(Loop):
        def run(self, step, message, ids, key, *, training):
            assert training, step
            return super().run(step, message, ids, key, training=training)

    for name in ("FedAvg", "SCAFFOLD"):
        run = fit(
            SHARING[name](classification(nn.Linear(3, 4), uneven), None), uneven, rounds=1, setting=Setting(engine=Deaf)
        )
        assert run.metrics["system_accuracy"] == run.metrics["global_accuracy"]
        assert len(run.clients[0]) > 0  # they keep something, but not a model
