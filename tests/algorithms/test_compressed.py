"""Compressing: the inner algorithm as it is, bytes by formula, and what error feedback is for."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from quadratics import ENGINES, SIZES, TWO, meeting, of_server, power, scalars, shares, vectors
from torch import nn

from archipel import (
    SCAFFOLD,
    SGD,
    Adapts,
    Compressing,
    Ditto,
    FedAvg,
    FedPer,
    FedSPM,
    Local,
    Network,
    Predicts,
    PredictsGlobally,
    Routes,
    Sample,
    classification,
    fit,
)
from archipel.algorithms.fpfc import FPFC
from archipel.compress import BlockQuantisation, Dithering, Identity, Natural, TopK
from archipel.core.trees import flatten
from archipel.engines import Loop, Wire
from archipel.engines.setting import Setting
from archipel.experiments import build
from archipel.experiments.reading import validate
from archipel.learning.quadratic import Quadratic, quadratic_federation

BLOCK = SGD(lr=0.2, steps=3, batch=4, momentum=0.9, keep_momentum=True, schedule="cosine")
FINE = Dithering(levels=100)


@pytest.fixture(scope="module")
def task(uneven):
    return classification(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), uneven)


def same_bits(one, other):
    one, other = flatten(one), flatten(other)
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_compression_it_is_the_inner_algorithm_to_the_bit(uneven, task, engine):
    inner = FedAvg(task, BLOCK)
    alone, wrapped = (
        fit(algorithm, uneven, rounds=3, cohort=Sample(count=3), setting=Setting(engine=ENGINES[engine]))
        for algorithm in (inner, Compressing(inner, Identity()))
    )
    same_bits(wrapped.server, alone.server)
    for one, other in zip(wrapped.clients, alone.clients, strict=True):
        same_bits(one, other)
    assert wrapped.metrics == alone.metrics
    drop = ("seconds",)
    strip = [[{k: v for k, v in r.items() if k not in drop} for r in run.history] for run in (wrapped, alone)]
    assert strip[0] == strip[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("uplink", [Dithering(levels=3), Natural(), TopK(fraction=0.2), BlockQuantisation(block=7)])
def test_the_uplink_is_what_the_formula_says(uneven, task, uplink, engine):
    run = fit(
        Compressing(FedAvg(task, BLOCK), uplink),
        uneven,
        rounds=2,
        cohort=Sample(count=3),
        setting=Setting(engine=ENGINES[engine]),
    )
    # Each tensor by itself, in whole bytes, where that saves something; and the loss, a float32.
    a_model = sum(min(-(-uplink.bits(n) // 8), 4 * n) for n in (3 * 5, 5, 5 * 3, 3))
    assert [r["uplink"] for r in run.history] == [3 * (a_model + 4)] * 2
    plain = fit(FedAvg(task, BLOCK), uneven, rounds=2, cohort=Sample(count=3), setting=Setting(engine=ENGINES[engine]))
    assert [r["downlink"] for r in run.history] == [r["downlink"] for r in plain.history]


def test_a_client_sends_its_difference_and_keeps_what_was_left_out():
    """One client, by hand: θ_1 − θ = −η A (θ − a) with θ = 0, of which the largest entry is sent."""
    a = torch.tensor([[1.0, -4.0, 2.0]], dtype=torch.float64)
    algorithm = Compressing(FedAvg(Quadratic(3), SGD(lr=0.5, steps=1, batch=None)), TopK(k=1))
    run = fit(algorithm, quadratic_federation(torch.eye(3)[None], a), rounds=3, setting=Setting(engine=Loop))
    theta, error, a = np.zeros(3), np.zeros(3), a[0].numpy()
    for _ in range(3):
        whole = -0.5 * (theta - a) + error
        sent = np.where(np.abs(whole) == np.abs(whole).max(), whole, 0)
        theta, error = theta + sent, whole - sent
    assert of_server(run) == pytest.approx(theta, abs=1e-15)
    assert run.clients[0]["errors"]["model"]["theta"].numpy() == pytest.approx(error, abs=1e-15)
    assert np.abs(error).max() > 0.1


def cycle():
    """Three quadratics with one minimum, at −1, whose gradients at 0 cancel in all but the entry that top-1 takes.

    f_i(x) = ⟨a_i, x⟩² + ‖x‖²/4 of the counter-example of A. Beznosikov et al., On biased compression for distributed
    learning, JMLR 2023: top-1 takes x = t (1, 1, 1) to (1 + 11 γ / 6) x.
    """
    a = torch.tensor([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]])
    A = 2 * a[:, :, None] * a[:, None, :] + 0.5 * torch.eye(3)
    return quadratic_federation(A, -torch.ones(3, 3))


def test_error_feedback_converges_where_top_k_alone_runs_away():
    rate, rounds = 0.02, 60
    plain = Compressing(FedAvg(Quadratic(3), SGD(lr=rate, steps=1, batch=None)), TopK(k=1), feedback=False)
    runaway = fit(plain, cycle(), rounds=rounds, setting=Setting(engine=Loop))
    assert of_server(runaway) + 1 == pytest.approx((1 + 11 * rate / 6) ** rounds, rel=1e-9)
    assert "errors" not in runaway.clients[0]
    run = fit(replace(plain, feedback=True), cycle(), rounds=rounds, setting=Setting(engine=Loop))
    # All clients' gradients vanish at the minimum, so that nothing is left out there. To first order in γ the rate is
    # gradient descent's on the mean, whose flattest direction is (1, 1, 1), with the eigenvalue 2/3 + 1/2.
    assert np.abs(of_server(run) + 1).max() < 1.5 * (1 - rate * 7 / 6) ** rounds


@pytest.mark.parametrize("uplink", [Natural(), BlockQuantisation(block=2, norm=1)])
def test_unbiased_compression_ends_at_a_common_minimum_exactly(uplink):
    # Where everybody agrees differences vanish, and so does what compression adds: ω ‖θ_i − θ‖².
    A, _ = vectors()
    federation = quadratic_federation(A, torch.full((4, 3), 2.0), SIZES)
    run = fit(
        Compressing(FedAvg(Quadratic(3), SGD(lr=0.25, steps=2, batch=None)), uplink),
        federation,
        rounds=40,
        setting=Setting(engine=Loop),
    )
    # Eigenvalues are above 1/2: without noise a round shrinks by (1 − 0.25/2)² or more, 0.766^40 = 2e-5.
    assert of_server(run) == pytest.approx(2, abs=1e-3)


def test_fedavg_with_dithering_stays_about_where_fedavg_ends():
    A, a = vectors()
    federation, local = quadratic_federation(A, a, SIZES), SGD(lr=0.1, steps=2, batch=None)
    rounds, burn = 100, 20
    seen = []
    fit(
        Compressing(FedAvg(Quadratic(3), local), Dithering(levels=8)),
        federation,
        rounds=rounds,
        setting=Setting(engine=Loop),
        callbacks=[lambda moment: seen.append(moment.server["model"]["theta"].numpy())],
    )
    N, rho = np.eye(3) - power(np.eye(3) - 0.1 * A.numpy(), 2), shares("examples", SIZES)
    end = meeting(N, a, rho)
    # θ ← M θ + const + noise, with M = I − Σ ρ N. The noise of a round has variance Σ ρ² ω ‖θ_i − θ‖² at most, the mean
    # of T rounds a standard deviation of (I − M)⁻¹ times that of the noise over √T, and each round's θ one of noise
    # over √(1 − ‖M‖²).
    M = np.eye(3) - np.einsum("k,kij->ij", rho, N)
    steps = np.einsum("kij,kj->ki", N, end - a.numpy())
    noise = np.sqrt((rho**2 * Dithering(levels=8).omega(3) * (steps**2).sum(axis=1)).sum())
    of_mean = np.linalg.norm(np.linalg.inv(np.eye(3) - M), 2) * noise / np.sqrt(rounds - burn)
    of_one = noise / np.sqrt(1 - np.linalg.norm(M, 2) ** 2)
    settled = np.stack(seen[burn:])
    assert np.linalg.norm(settled.mean(axis=0) - end) < 4 * of_mean
    spread = np.sqrt(((settled - end) ** 2).sum(axis=1).mean())
    assert 0 < spread < 1.5 * of_one
    assert of_mean < 0.05 * np.linalg.norm(end)


@dataclass(frozen=True)
class Noting(Identity):
    """Notes its keys, and claims to be small."""

    keys: list[int] = field(default_factory=list)

    def bits(self, size, dtype=torch.float32):
        return 0

    def __call__(self, x, key):
        self.keys.append(key.item())
        return super().__call__(x, key)


def test_draws_differ_between_rounds_clients_and_tensors(uneven, task):
    noting = Noting()
    fit(Compressing(FedAvg(task, BLOCK), noting), uneven, rounds=3, setting=Setting(engine=Loop))
    assert len(set(noting.keys)) == len(noting.keys) == 3 * 4 * 4


def test_entries_that_the_message_has_not_got_are_compressed_as_they_are(uneven, task):
    plain = replace(BLOCK, momentum=0.0, keep_momentum=False)
    inner = SCAFFOLD(task, plain)
    some, both = Compressing(inner, FINE), Compressing(inner, FINE, entries=("model", "change"))
    model = sum(min(-(-FINE.bits(n) // 8), 4 * n) for n in (15, 5, 15, 3))
    uplink = [fit(x, uneven, rounds=1, setting=Setting(engine=Loop)).history[0]["uplink"] for x in (some, both)]
    assert uplink == [4 * (model + 4 * 38 + 4), 4 * (2 * model + 4)]


@pytest.mark.parametrize("engine", ENGINES)
def test_inside_ditto_and_around_it(uneven, task, engine):
    fedavg = FedAvg(task, BLOCK)
    within = Ditto(Compressing(fedavg, TopK(fraction=0.3)), BLOCK, 0.5)
    around = Compressing(Ditto(fedavg, BLOCK, 0.5), Dithering(levels=3))
    alone = [
        fit(Compressing(fedavg, uplink), uneven, rounds=2, setting=Setting(engine=ENGINES[engine]))
        for uplink in (TopK(fraction=0.3), Dithering(levels=3))
    ]
    runs = [fit(algorithm, uneven, rounds=2, setting=Setting(engine=ENGINES[engine])) for algorithm in (within, around)]
    for run, shared in zip(runs, alone, strict=True):
        same_bits(run.server["inner"], shared.server)
        assert [r["uplink"] for r in run.history] == [r["uplink"] for r in shared.history]
    same_bits(runs[0].clients[2]["inner"]["errors"], alone[0].clients[2]["errors"])


def test_ditto_around_it_crosses_a_wire(uneven, task):
    algorithm = Compressing(Ditto(Compressing(FedAvg(task, BLOCK), TopK(fraction=0.3)), BLOCK, 0.5), Natural())
    looped, wired = (fit(algorithm, uneven, rounds=2, setting=Setting(engine=engine)) for engine in (Loop, Wire))
    same_bits(wired.server, looped.server)
    assert [r["uplink"] for r in wired.history] == [r["uplink"] for r in looped.history]


def test_it_offers_what_the_inner_algorithm_offers(uneven, task):
    spm = FedSPM(task, Network(nn.Linear(3, 4), uneven.inputs), components=2, local=BLOCK, routing=BLOCK)
    for inner in (FedAvg(task, BLOCK), FedPer(task, BLOCK), spm):
        algorithm = Compressing(inner, FINE)
        for protocol in (Predicts, PredictsGlobally, Adapts, Routes):
            assert isinstance(algorithm, protocol) == isinstance(inner, protocol), protocol
    run = fit(replace(algorithm, uplink=Natural()), uneven, rounds=1, setting=Setting(engine=Loop))
    assert "routing_accuracy" in run.metrics


def test_a_configuration_names_the_inner_algorithm_and_the_compressor(tmp_path):
    def built(uplink):
        np.savez(tmp_path / "island.npz", x=np.eye(20, 4), y=np.arange(20) % 2)
        settings = {
            "rounds": 1,
            "data": {"source": "arrays", "data_dir": str(tmp_path)},
            "encoder": {"name": "mlp", "features": 4, "options": {"hidden": [4]}},
            "algorithm": {"name": "compressing", "inner": {"name": "fedper"}, "uplink": uplink},
        }
        return build(validate(settings, "a run"))[0]

    algorithm = built({"name": "dithering", "levels": 3, "norm": math.inf})
    assert type(algorithm.inner) is FedPer
    assert algorithm.uplink == Dithering(levels=3, norm=math.inf)
    for uplink, message in (
        ({"name": "zip"}, "no compressor 'zip'; there are .*dithering"),
        ({"name": "dithering", "level": 3}, "dithering's settings are levels, norm; given level"),
        ({"name": "topk", "fraction": 3}, "TopK's fraction must be above 0 and at most 1; given 3"),
    ):
        with pytest.raises(ValueError, match=message):
            built(uplink)


def test_what_cant_be_is_refused(uneven, task):
    fedavg = FedAvg(task, BLOCK)
    with pytest.raises(TypeError, match=r"inner must be an algorithm.*given the class FedAvg"):
        Compressing(FedAvg, FINE)
    with pytest.raises(TypeError, match=r"uplink must be a compressor.*given the class Natural"):
        Compressing(fedavg, Natural)
    with pytest.raises(TypeError, match=r"entries must be a list of names.*given a str"):
        Compressing(fedavg, FINE, entries="model")
    with pytest.raises(ValueError, match="entries must name at least one entry"):
        Compressing(fedavg, FINE, entries=())
    with pytest.raises(ValueError, match=r"Nothing that clients of Local send can be compressed.*their replies hold"):
        fit(Compressing(Local(Quadratic(), SGD(lr=0.1, steps=1, batch=None)), FINE), scalars(*TWO), rounds=1)
    fpfc = FPFC(task, replace(BLOCK, keep_momentum=False), penalty=0.5, xi=0.05)
    with pytest.raises(ValueError, match=r"Nothing that clients of FPFC send.*entries.*model/head/weight"):
        fit(Compressing(fpfc, FINE), uneven, rounds=1, setting=Setting(engine=Loop))
    assert (
        fit(Compressing(fpfc, FINE, entries=("model",)), uneven, rounds=1, setting=Setting(engine=Loop)).history[0][
            "uplink"
        ]
        < 4 * 156
    )
    with pytest.raises(ValueError, match=r"TopK needs error feedback.*the entries model.*RandK"):
        fit(Compressing(fpfc, TopK(fraction=0.1), entries=("model",)), uneven, rounds=1, setting=Setting(engine=Loop))
    scaffold = SCAFFOLD(task, replace(BLOCK, momentum=0.0, keep_momentum=False))
    with pytest.raises(
        ValueError, match="TopK needs error feedback, and 'change/encoder/0/weight' isn't in the server"
    ):
        fit(
            Compressing(scaffold, TopK(fraction=0.1), ("model", "change")),
            uneven,
            rounds=1,
            setting=Setting(engine=Loop),
        )
    with pytest.raises(ValueError, match="k = 9 is more than the 5 entries"):
        fit(Compressing(fedavg, TopK(k=9)), uneven, rounds=1, setting=Setting(engine=Loop))
