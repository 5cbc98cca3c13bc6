"""FedRep: the alternation by hand, its joint optimum, its limits, and heads that never leave home."""

import numpy as np
import pytest
import torch
from quadratics import SIZES, shares
from stepwise import PAIRS, Listening, arrays, federation_of, rounds_of, unreliable
from test_fedper import BODY, Halves, together
from torch import nn

from archipel import SGD, FedBABU, Federation, FedRep, classification, fit
from archipel.core.trees import flatten
from archipel.data import Client, Inputs
from archipel.engines import Loop
from archipel.engines.setting import Setting


@pytest.mark.parametrize("answers", [None, unreliable])
def test_rounds_are_those_of_the_paper_whoever_takes_part(answers):
    A, a = arrays()
    x, d_body, d_head = np.zeros((4, 3)), np.zeros((4, BODY)), np.zeros((4, 1))
    algorithm = FedRep(
        Halves(),
        local=SGD(lr=0.1, steps=2, batch=None, momentum=0.5, keep_momentum=True),
        head=SGD(lr=0.15, steps=3, batch=None, momentum=0.7, keep_momentum=True),
    )
    for asked, server, clients, _ in rounds_of(algorithm, federation_of(A, a, SIZES), 6, PAIRS, answers):
        for k in asked:
            for _ in range(3):
                d_head[k] = 0.7 * d_head[k] + (A[k] @ (x[k] - a[k]))[BODY:]
                x[k, BODY:] -= 0.15 * d_head[k]
            for _ in range(2):
                d_body[k] = 0.5 * d_body[k] + (A[k] @ (x[k] - a[k]))[:BODY]
                x[k, :BODY] -= 0.1 * d_body[k]
        x[:, :BODY] = np.average(x[asked, :BODY], axis=0, weights=np.array(SIZES)[asked])
        assert together(server, clients) == pytest.approx(x, abs=1e-13)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_one_step_of_the_body_ends_at_the_joint_optimum(weights):
    (A, a), rho = arrays(), shares(weights, SIZES)
    algorithm = FedRep(Halves(), SGD(lr=0.4, steps=1, batch=None), SGD(lr=0.4, steps=2, batch=None), weights=weights)
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=30, setting=Setting(engine="loop"))
    # Where nobody moves, every head is the best for w, v_k = a_k − A_vw (w − a_k)/A_vv, and what is left of f_k is a
    # quadratic in w with the Schur complement S_k: Σ ρ_k S_k (w − a_k) = 0.
    W, c, vv = A[:, :BODY, :BODY], A[:, BODY, :BODY], A[:, BODY, BODY]
    S = W - np.einsum("ki,kj,k->kij", c, c, 1 / vv)
    w = np.linalg.solve(np.einsum("k,kij->ij", rho, S), np.einsum("k,kij,kj->i", rho, S, a[:, :BODY]))
    v = a[:, BODY] - np.einsum("ki,ki->k", c, w - a[:, :BODY]) / vv
    # A round is affine in (w, v_1, …, v_4), and this is its linear part.
    kept = (1 - 0.4 * vv) ** 2
    heads = np.column_stack([-((1 - kept) / vv)[:, None] * c, np.diag(kept)])
    body = np.column_stack([np.eye(BODY) - 0.4 * np.einsum("k,kij->ij", rho, W), np.zeros((BODY, 4))])
    body -= 0.4 * np.einsum("k,ki,kj->ij", rho, c, heads)
    left = 10 * abs(np.linalg.eigvals(np.concatenate([body, heads]))).max() ** 30  # of gaps of a few
    assert left < 1e-6
    expected = np.column_stack([np.tile(w, (4, 1)), v])
    assert together(run.server, run.clients) == pytest.approx(expected, abs=left)


def test_with_a_body_that_stands_still_only_heads_learn():
    A, a = arrays()
    algorithm = FedRep(Halves(), SGD(lr=0.0, steps=1, batch=None), SGD(lr=0.2, steps=2, batch=None))
    run = fit(algorithm, federation_of(A, a, SIZES), rounds=4, setting=Setting(engine="loop"))
    # f_k(0, v) is a parabola with its minimum at a_v + A_vw a_w/A_vv; eight steps shrink the gap by 1 − 0.2 A_vv each.
    best = a[:, BODY] + np.einsum("ki,ki->k", A[:, BODY, :BODY], a[:, :BODY]) / A[:, BODY, BODY]
    expected = best * (1 - (1 - 0.2 * A[:, BODY, BODY]) ** 8)
    found = together(run.server, run.clients)
    assert found[:, BODY] == pytest.approx(expected, abs=1e-13)
    assert (found[:, :BODY] == 0).all()


def test_with_heads_that_stand_still_it_is_fedbabus_training(uneven):
    task = classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)
    local = SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True, weight_decay=0.01)
    still = SGD(lr=0.0, steps=1, batch=4)
    rep, babu = (
        fit(x, uneven, rounds=3, setting=Setting(engine=Loop))
        for x in (FedRep(task, local, still), FedBABU(task, local))
    )
    one, other = (flatten({"server": run.server, "client": run.clients[2]}) for run in (rep, babu))
    other = {name: value for name, value in other.items() if "/adapted/" not in name}
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_two_runs_draw_minibatches_of_their_own():
    seen = []

    class Recording(Halves):
        def loss(self, params, batch):
            seen.extend(batch["y"][:, 0].tolist())
            return super().loss(params, batch)

    x, y = torch.eye(3, dtype=torch.float64).expand(12, 3, 3), torch.arange(36, dtype=torch.float64).reshape(12, 3)
    client = Client("client", {"x": x, "y": y}, {"x": x[:0], "y": y[:0]})
    federation = Federation("one", (client,), Inputs("series", (3, 3), 1.0, (0.0,) * 3, (1.0,) * 3), None)
    block = SGD(lr=0.1, epochs=1, batch=5)
    fit(FedRep(Recording(), block, block), federation, rounds=1, setting=Setting(engine=Loop))
    head, body = seen[:12], seen[12:]
    assert sorted(head) == sorted(body) == y[:, 0].tolist()
    assert head != body


def test_a_head_never_leaves_its_client(uneven):
    block = SGD(lr=0.1, epochs=1, batch=4, momentum=0.9, keep_momentum=True)
    algorithm = FedRep(classification(nn.Linear(3, 4), uneven), block, block)
    listening = Listening(algorithm, uneven)
    states = [clients for *_, clients, _ in rounds_of(algorithm, uneven, 3, carrier=listening)][-1]
    heard = [flatten(reply) for reply in listening.heard if reply]
    assert len(heard) == 12
    assert {name for reply in heard for name in reply} == {"model/encoder/weight", "model/encoder/bias", "loss"}
    # not its velocity under another name either: nothing has the shape of a head, (3, 4) and (3,)
    assert all(value.shape[1:] not in [(3, 4), (3,)] for reply in heard for value in reply.values())
    # nor is one sent to clients once they have begun
    names = {name for message in listening.sent[1:] for name in flatten(message)}
    assert names == {"model/encoder/weight", "model/encoder/bias", "lr", "head_lr"}
    heads = [client["head"]["head"]["weight"] for client in states]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine=Loop))
    assert run.history[0]["uplink"] == 4 * 4 * (4 * 3 + 4 + 1)  # four clients, float32: the encoder and the loss


def test_what_cant_be_is_refused(uneven):
    task, step = classification(nn.Linear(3, 4), uneven), SGD(steps=1)
    for personal in (("heads",), (), ("encoder", "head"), ("head", "tail")):
        with pytest.raises(ValueError, match=r"FedRep must keep some .* encoder, head, .*and leave some"):
            fit(FedRep(task, step, step, personal=personal), uneven, rounds=1)
    with pytest.raises(TypeError, match=r"FedRep's head must be a solver, SGD.*given a str"):
        FedRep(task, step, "head")
    with pytest.raises(TypeError, match=r"FedRep's personal must be a list of names.*given a str"):
        FedRep(task, step, step, personal="head")


class TestBatchNorm:
    """The body's statistics, under each policy: a layer on the inputs themselves, whose pooled mean is 0."""

    def run(self, uneven, policy):
        body = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
        block = SGD(lr=0.1, steps=2, batch=None)
        algorithm = FedRep(classification(body, uneven), block, block, batch_norm=policy)
        return fit(algorithm, uneven, rounds=1, setting=Setting(engine="loop"))

    def own(self, uneven):
        # torch's rule from 0, with its momentum of 0.1: two passes for the head and two for the body
        means = torch.stack([uneven.inputs.normalise(client.train["x"]).mean(0) for client in uneven.clients])
        return (1 - 0.9**4) * means

    def test_shared_they_are_averaged_with_the_body(self, uneven):
        rho = uneven.sizes / uneven.sizes.sum()
        found = self.run(uneven, "share").server["model"]["buffers"]["0"]["running_mean"]
        # float32; single means are of order 1, their pooled mean is 0
        torch.testing.assert_close(found, rho @ self.own(uneven), rtol=0, atol=1e-6)

    def test_local_they_stay_with_the_head(self, uneven):
        run = self.run(uneven, "local")
        for client, mean in zip(run.clients, self.own(uneven), strict=True):
            torch.testing.assert_close(client["buffers"]["0"]["running_mean"], mean, rtol=0, atol=1e-6)
        assert torch.equal(run.server["model"]["buffers"]["0"]["running_mean"], torch.zeros(3))  # as they began

    def test_recomputed_they_are_the_pooled_ones(self, uneven):
        statistics = self.run(uneven, "recompute").server["model"]["buffers"]["0"]
        torch.testing.assert_close(statistics["running_mean"], torch.zeros(3), rtol=0, atol=1e-5)  # float32
        assert (statistics["running_var"] < 1).all()  # within clients; between them lies the rest
