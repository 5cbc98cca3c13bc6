"""FedCR: products of experts and the divergence by numerical integration, a step by hand, and FedPer as its limit."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from scipy.integrate import quad
from scipy.stats import norm
from stepwise import rounds_of
from torch import nn

from archipel import SGD, FedCR, Federation, FedPer, classification, fit, regression
from archipel.algorithms.fedcr import FLOOR, product
from archipel.core import keys
from archipel.core.trees import flatten
from archipel.data import Client
from archipel.engines import Batched, Loop
from archipel.engines.setting import Setting
from archipel.learning.gaussians import divergence


def test_the_product_of_experts_is_the_normalised_product_of_densities():
    mean, variance = product(torch.tensor(1 / 1 + 1 / 0.5), torch.tensor(1 / 1 + 3 / 0.5))
    assert (float(mean), float(variance)) == pytest.approx((1.75, 0.25))  # docs/methods/representation.md

    def density(z):
        return norm.pdf(z) * norm.pdf(z, 1, 1) * norm.pdf(z, 3, 0.5**0.5)

    total, first, second = (quad(lambda z, k=k: z**k * density(z), -8, 10)[0] for k in range(3))
    assert first / total == pytest.approx(1.75, abs=1e-7)
    assert second / total - (first / total) ** 2 == pytest.approx(0.25, abs=1e-7)


def test_the_divergence_is_the_integral_and_goes_from_global_to_local():
    one, other = (0.5, 0.6), (-0.3, 1.7)

    def integrand(z):
        log_ratio = norm.logpdf(z, one[0], one[1] ** 0.5) - norm.logpdf(z, other[0], other[1] ** 0.5)
        return norm.pdf(z, one[0], one[1] ** 0.5) * log_ratio

    found = divergence(*(torch.tensor([value], dtype=torch.float64) for value in (*one, *other)))
    assert float(found) == pytest.approx(quad(integrand, -10, 10)[0], abs=1e-9)
    reverse = divergence(*(torch.tensor([value], dtype=torch.float64) for value in (*other, *one)))
    assert abs(float(found - reverse)) > 0.1
    assert float(divergence(*(torch.tensor([value]) for value in (*one, *one)))) == 0


@pytest.fixture
def task(uneven):
    return classification(nn.Linear(3, 4), uneven)


def by_hand(task, model, batch, posterior, beta, epsilon):
    """Eq. (23) on a batch, written out."""
    mean = task.encoder.inputs.normalise(batch["x"]) @ model["encoder"]["weight"].T + model["encoder"]["bias"]
    variance = F.softplus(mean @ model["spread"]["weight"].T + model["spread"]["bias"]) + FLOOR
    z = mean + variance.sqrt() * epsilon
    fit = F.cross_entropy(z @ model["head"]["weight"].T + model["head"]["bias"], batch["y"], reduction="none")
    mu, sigma = (posterior[name][batch["y"]] for name in ("mean", "variance"))
    kl = 0.5 * ((variance / sigma).log() + (sigma + (mu - mean) ** 2) / variance - 1).sum(1)
    return (fit + beta * kl).mean()


@pytest.mark.parametrize("engine", [Loop, Batched])
def test_a_full_step_is_the_gradient_of_the_objective_with_its_noise(uneven, task, engine):
    beta, lr = 0.3, 0.2
    algorithm = FedCR(task, SGD(lr=lr, steps=1, batch=None), beta=beta)
    start = fit(algorithm, uneven, rounds=2, until=1, setting=Setting(engine="loop"))
    after = fit(algorithm, uneven, rounds=2, setting=Setting(engine=engine))
    root = keys.fold(keys.key(0), "round", 1)
    encoders = []
    for k, client in enumerate(uneven.clients):
        model = start.server["model"] | start.clients[k]["head"]
        model = {part: {n: t.clone().requires_grad_() for n, t in model[part].items()} for part in model}
        epsilon = keys.normal_rows(keys.fold(root, k, "noise"), len(client.train["y"]), 4)
        by_hand(task, model, client.train, start.server, beta, epsilon).backward()
        stepped = {part: {n: t.detach() - lr * t.grad for n, t in model[part].items()} for part in model}
        for name, value in stepped["head"].items():
            torch.testing.assert_close(after.clients[k]["head"]["head"][name], value, rtol=1e-4, atol=1e-6)  # float32
        encoders.append(stepped)
    for part in ("encoder", "spread"):  # uniform means; the gradient of the KL term is in both
        for name in encoders[0][part]:
            mean = torch.stack([stepped[part][name] for stepped in encoders]).mean(0)
            torch.testing.assert_close(after.server["model"][part][name], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_the_posterior_is_the_product_over_clients_and_examples(uneven, task, weights):
    algorithm = FedCR(task, SGD(lr=0.0, steps=1), beta=0.1, weights=weights)  # at rate 0 the encoders stay
    asked = [0, 1, 3]
    run = fit(
        algorithm, uneven, rounds=1, setting=Setting(engine="loop"), answers=lambda round, client: client in asked
    )
    model = {part: {n: t.double() for n, t in tree.items()} for part, tree in run.server["model"].items()}
    precision, shift = torch.ones(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for k in asked:
        x, y = (uneven.clients[k].train[name] for name in ("x", "y"))
        mean = uneven.inputs.normalise(x).double() @ model["encoder"]["weight"].T + model["encoder"]["bias"]
        variance = F.softplus(mean @ model["spread"]["weight"].T + model["spread"]["bias"]) + FLOOR
        for c in range(3):
            precision[c] += (1 / variance[y == c]).mean(0)
            shift[c] += (mean / variance)[y == c].mean(0)
    torch.testing.assert_close(run.server["variance"].double(), 1 / precision, rtol=1e-5, atol=1e-6)  # float32
    torch.testing.assert_close(run.server["mean"].double(), shift / precision, rtol=1e-5, atol=1e-5)


def test_a_class_that_nobody_has_keeps_its_posterior(uneven):
    def without(client, label):
        kept = client.train["y"] != label
        return Client(client.name, {name: t[kept] for name, t in client.train.items()}, client.test)

    lacking = Federation("lacking", tuple(without(c, 2) for c in uneven.clients), uneven.inputs, uneven.classes)
    mixed = Federation("mixed", (*lacking.clients[:3], uneven.clients[3]), uneven.inputs, uneven.classes)
    algorithm = FedCR(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, steps=2, batch=5), beta=0.1)
    server = fit(algorithm, lacking, rounds=2).server
    assert torch.equal(server["mean"][2], torch.zeros(4))
    assert torch.equal(server["variance"][2], torch.ones(4))
    assert (server["variance"][:2] < 1).all()
    rounds = list(rounds_of(algorithm, mixed, 3, answers=lambda round, client: client < 3 or round == 0))
    first, last = rounds[0][1], rounds[2][1]
    assert (first["variance"][2] < 1).all()  # one client had it
    assert torch.equal(first["variance"][2], last["variance"][2])
    assert torch.equal(first["mean"][2], last["mean"][2])
    assert not torch.equal(first["mean"][1], last["mean"][1])


def test_without_beta_and_noise_it_is_fedper_to_the_bit(uneven, task):
    local = SGD(lr=0.2, steps=5, batch=4, momentum=0.9, keep_momentum=True)
    limit = FedCR(task, local, beta=0.0, encoder="deterministic")
    per, cr = (fit(method, uneven, rounds=3) for method in (FedPer(task, local, weights="uniform"), limit))
    assert flatten(per.server).keys() == flatten(cr.server).keys()
    for one, other in zip([per.server, *per.clients], [cr.server, *cr.clients], strict=True):
        one, other = flatten(one), flatten(other)
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert per.metrics == cr.metrics


def test_alignment_draws_the_clients_features_together(uneven, task):
    def spread(beta):
        run = fit(
            FedCR(task, SGD(lr=0.1, steps=8, batch=8), beta=beta), uneven, rounds=5, setting=Setting(engine="loop")
        )
        features = []
        for k, client in enumerate(uneven.clients):
            x, y = client.train["x"], client.train["y"]
            mean, _, _ = run.algorithm.encode(run.server["model"] | run.clients[k]["head"], x, False)
            features.append(torch.stack([mean[y == c].mean(0) for c in range(3)]))
        return float(torch.stack(features).var(0).sum())

    assert spread(0.3) < 0.8 * spread(0.0)


def test_noise_is_standard_normal_and_does_not_depend_on_padding():
    draws = keys.normal_rows(keys.key(3), 20_000, 2).numpy()
    # five standard errors: 5/√40000 and 5 √2/√40000
    assert abs(draws.mean()) < 0.025
    assert abs(draws.var() - 1) < 0.036
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / 20_000**0.5


def test_heads_stay_and_bytes_are_those_of_encoder_and_experts(uneven, task):
    run = fit(FedCR(task, SGD(lr=0.1, steps=2, batch=5)), uneven, rounds=1, setting=Setting(engine="loop"))
    encoder, spread, experts, loss = 4 * 3 + 4, 4 * 4 + 4, 2 * 3 * 4, 1
    assert run.history[0]["uplink"] == 4 * 4 * (encoder + spread + experts + loss)


def test_what_does_not_fit_is_refused(uneven, task):
    local = SGD(steps=1)
    for settings, message in (
        ({"beta": -0.1}, r"FedCR's beta must be 0 or above and finite; given -0.1"),
        ({"encoder": "random"}, r"FedCR's encoder must be 'stochastic' or 'deterministic'; given 'random'"),
        ({"encoder": "deterministic", "beta": 0.1}, r"FedCR needs beta=0 with it; given beta=0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            FedCR(task, local, **settings)
    values = Federation.from_arrays([(torch.randn(9, 3), torch.randn(9))])
    with pytest.raises(ValueError, match="needs a classification, not a regression"):
        FedCR(regression(nn.Linear(3, 4), values), local)
