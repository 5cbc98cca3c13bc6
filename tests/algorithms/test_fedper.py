"""FedPer: the joint optimum of a shared body and local heads, and heads that never leave home."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from quadratics import SIZES, shares
from stepwise import PAIRS, Listening, arrays, federation_of, rounds_of
from torch import nn

from archipel import SGD, FedAvg, FedCR, Federation, FedPer, classification, fit
from archipel.core.trees import flatten
from archipel.engines import Loop
from archipel.engines.setting import Setting

BODY = 2


@dataclass(frozen=True)
class Halves:
    """A quadratic in (w, v): the first two coordinates are the body, the last is the head."""

    def init(self, key):
        return {"body": torch.zeros(BODY, dtype=torch.float64), "head": torch.zeros(1, dtype=torch.float64)}

    def loss(self, params, batch):
        gap = torch.cat([params["body"], params["head"]]) - batch["y"]
        return 0.5 * torch.einsum("ni,nij,nj->n", gap, batch["x"], gap), {}

    def predict(self, params, x):
        return torch.cat([params["body"], params["head"]]).expand(len(x), -1)


def together(server, clients):
    return np.stack([np.concatenate([server["model"]["body"], client["head"]["head"]]) for client in clients])


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_one_step_a_round_ends_at_the_joint_optimum(weights):
    (A, a), rho = arrays(), shares(weights, SIZES)
    algorithm = FedPer(Halves(), SGD(lr=0.25, steps=1, batch=None), weights=weights)
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=70, setting=Setting(engine="loop"))
    # Σ ρ_k f_k over (w, v_1, …, v_m): a head's row asks for its own gradient to vanish, the body's for the mean.
    m, system, right = 4, np.zeros((6, 6)), np.zeros(6)
    for k in range(m):
        places = [0, 1, BODY + k]
        for row, place in enumerate(places):
            system[place, places] += rho[k] * A[k][row]
            right[place] += rho[k] * (A[k] @ a[k])[row]
    best = np.linalg.solve(system, right)
    # A round is θ ← θ − η D (system θ − right): a head's gradient comes without its client's weight.
    D = np.diag([1, 1, *(1 / rho)])
    left = 10 * abs(np.linalg.eigvals(np.eye(6) - 0.25 * D @ system)).max() ** 70  # of gaps of a few
    assert left < 1e-4
    expected = np.stack([best[[0, 1, BODY + k]] for k in range(m)])
    assert together(run.server, run.clients) == pytest.approx(expected, abs=left + 1e-12)


def test_rounds_are_those_of_the_paper_whoever_takes_part():
    A, a = arrays()
    rho, x = shares("examples", SIZES), np.zeros((4, 3))
    algorithm = FedPer(Halves(), SGD(lr=0.1, steps=3, batch=None))
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 6, PAIRS):
        end = x.copy()
        for _ in range(3):
            end = end - 0.1 * np.einsum("kij,kj->ki", A, end - a)
        x[asked, BODY:] = end[asked, BODY:]
        x[:, :BODY] = np.average(end[asked, :BODY], axis=0, weights=rho[asked])
        assert together(server, clients) == pytest.approx(x, abs=1e-13)


@pytest.mark.parametrize("method", ["FedPer", "FedCR"])
def test_a_head_never_leaves_its_client(uneven, method):
    task, local = classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=4)
    algorithm = FedPer(task, local) if method == "FedPer" else FedCR(task, local, beta=0.01)
    listening = Listening(algorithm, uneven)
    states = [clients for *_, clients, _ in rounds_of(algorithm, uneven, 3, carrier=listening)][-1]
    heard = [flatten(reply) for reply in listening.heard if reply]
    assert len(heard) == 12
    for reply in heard:
        assert not [name for name in reply if "head" in name]
        # nor under another name: nothing has its shape and values
        for client in states:
            assert not any(
                torch.equal(value[0], head) for head in flatten(client["head"]).values() for value in reply.values()
            )
    assert not [name for message in listening.sent[1:] for name in flatten(message) if "head" in name]
    heads = [client["head"]["head"]["weight"] for client in states]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    sizes = {"encoder": 4 * 3 + 4, "head": 3 * 4 + 3}
    if method == "FedPer":
        run = fit(algorithm, uneven, rounds=1, setting=Setting(engine=Loop))
        assert run.history[0]["uplink"] == 4 * 4 * (sizes["encoder"] + 1)  # four clients, float32, and the loss


def test_one_client_alone_is_fedavg(uneven):
    one = Federation("one", uneven.clients[:1], uneven.inputs, uneven.classes)
    task, local = classification(nn.Linear(3, 4), one), SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True)
    per, avg = (fit(method(task, local), one, rounds=3, setting=Setting(engine="loop")) for method in (FedPer, FedAvg))
    found, expected = flatten(per.server["model"] | per.clients[0]["head"]), flatten(avg.server["model"])
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_is_personal_must_be_there_and_not_everything(uneven):
    task = classification(nn.Linear(3, 4), uneven)
    for personal in (("heads",), (), ("encoder", "head"), ("head", "tail")):
        with pytest.raises(ValueError, match=r"FedPer must keep some .* encoder, head, .*and leave some"):
            fit(FedPer(task, SGD(steps=1), personal=personal), uneven, rounds=1)


class TestBatchNorm:
    """The body's statistics, under each of the three policies: a layer on the inputs themselves, whose pooled mean is 0
    and variance 1 by the federation's normalisation, so that the right statistics are known.
    """

    def run(self, uneven, policy, rounds=3):
        body = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
        algorithm = FedPer(classification(body, uneven), SGD(lr=0.1, epochs=2, batch=None), batch_norm=policy)
        return fit(algorithm, uneven, rounds=rounds, setting=Setting(engine="loop"))

    def test_shared_they_are_averaged_with_the_body(self, uneven):
        run = self.run(uneven, "share")
        assert "buffers" in run.server["model"]
        assert run.server["model"]["buffers"]["0"]["running_mean"].abs().max() > 0
        assert all("buffers" not in client for client in run.clients)

    def test_local_they_stay_with_the_head(self, uneven):
        run = self.run(uneven, "local")
        means = [client["buffers"]["0"]["running_mean"] for client in run.clients]
        assert not torch.equal(means[0], means[1])
        assert torch.equal(run.server["model"]["buffers"]["0"]["running_mean"], torch.zeros(3))  # as they began

    def test_recomputed_they_are_the_pooled_ones(self, uneven):
        run = self.run(uneven, "recompute")
        statistics = run.server["model"]["buffers"]["0"]
        torch.testing.assert_close(statistics["running_mean"], torch.zeros(3), rtol=0, atol=1e-5)  # float32
        assert not torch.equal(run.clients[0]["head"]["head"]["weight"], run.clients[1]["head"]["head"]["weight"])
