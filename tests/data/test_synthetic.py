"""Federations from known distributions: the laws they claim, and oracles worked out by hand and by scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from archipel.data.federation import Federation
from archipel.data.gaussian_clients import GaussianClients
from archipel.data.synthetic import synthetic


def test_synthetic_has_the_moments_of_its_law():
    m, alpha, beta = 400, 0.5, 2.0
    federation = synthetic(alpha, beta, clients=m, features=5, classes=3, sizes=[20] * m)
    truth = federation.truth
    # A sample variance of n normals has sd σ²√(2/n). Five of them.
    for name, values, variance in [
        ("u", truth["u"], alpha),
        ("B", truth["B"], beta),
        ("W", truth["W"] - truth["u"][:, None, None], 1.0),
        ("b", truth["b"] - truth["u"][:, None], 1.0),
        ("v", truth["v"] - truth["B"][:, None], 1.0),
    ]:
        assert values.var().item() == pytest.approx(variance, abs=5 * variance * math.sqrt(2 / values.numel())), name
    gap = torch.cat([c.train["x"] - v for c, v in zip(federation.clients, truth["v"], strict=True)])
    sigma = torch.arange(1.0, 6.0, dtype=torch.float64) ** -1.2
    assert torch.equal(truth["shared"]["sigma"], sigma)
    assert gap.var(0).numpy() == pytest.approx(sigma.numpy(), rel=5 * math.sqrt(2 / len(gap)))
    for client, W, b in zip(federation.clients, truth["W"], truth["b"], strict=True):
        logits = client.train["x"].double() @ W.T + b
        # Labels are of the features before they were rounded to float32; ties closer than that don't occur here.
        assert torch.equal(logits.softmax(1).argmax(1), client.train["y"])


def test_synthetic_iid_has_one_law_and_sizes_are_the_papers():
    federation = synthetic(iid=True, clients=12)
    assert federation.truth["W"].std(0).max() == 0
    assert not federation.truth["v"].any()
    total = [sum(len(columns["y"]) for columns in client.splits.values()) for client in federation.clients]
    assert min(total) >= 50
    assert len(set(total)) > 6
    assert (
        synthetic(clients=3).fingerprint == synthetic(clients=3).fingerprint != synthetic(clients=3, seed=1).fingerprint
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"alpha": -1.0}, "alpha is -1.0"), ({"sizes": [9]}, "sizes has 1 entries"), ({"classes": 1}, "1 classes")],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        synthetic(**{"clients": 3, **options})


def two(rho=(0.5, 0.5), gap=2.0, std=1.0):
    means = torch.tensor([0.0, gap]).reshape(2, 1, 1, 1)
    return GaussianClients(torch.tensor(rho), torch.ones(2, 1), torch.ones(2, 1, 1), means, std)


def rich(seed=0, m=3, C=2, K=3, d=2):
    rng = np.random.default_rng(seed)
    return GaussianClients(
        torch.tensor(rng.dirichlet(np.ones(m))),
        torch.tensor(rng.dirichlet(np.ones(C), m)),
        torch.tensor(rng.dirichlet(np.ones(K), (m, C))),
        torch.tensor(rng.normal(0, 2, (m, C, K, d))),
        0.8,
    )


def test_density_ratios_of_two_normals_are_the_tilt_of_the_book():
    # log N(x; μ₁, 1) − log N(x; μ₂, 1) = (μ₁ − μ₂) x + (μ₂² − μ₁²)/2.
    x = torch.linspace(-3, 5, 9, dtype=torch.float64)[:, None]
    log_p = two().log_density(x)
    assert torch.allclose(log_p[:, 0] - log_p[:, 1], -2 * x[:, 0] + 2, atol=1e-12)


def test_routing_corrects_the_prior_once():
    same = two(rho=(0.9, 0.1), gap=0.0)
    assert torch.allclose(same.route(torch.tensor([[0.3]])).exp(), torch.tensor([[0.9, 0.1]]).double(), atol=1e-7)


def test_everything_is_bayes_rule_written_out():
    world = rich()
    x = torch.tensor([[0.3, -1.0], [2.0, 0.5]], dtype=torch.float64)
    m, C, K, d = world.means.shape
    joint = np.zeros((2, m, C, K))
    for n in range(2):
        for i, c, k in np.ndindex(m, C, K):
            normal = np.prod([norm.pdf(x[n, j], world.means[i, c, k, j], world.std) for j in range(d)])
            joint[n, i, c, k] = world.rho[i] * world.weights[i, c] * world.priors[i, c, k] * normal
    total = joint.sum((1, 2, 3))
    client = joint.sum((2, 3))
    assert world.route(x).exp().numpy() == pytest.approx(client / total[:, None], rel=1e-9)
    assert world.log_density(x).exp().numpy() == pytest.approx(client / world.rho.numpy(), rel=1e-9)
    assert world.classify(x).exp().numpy() == pytest.approx(joint.sum(2) / client[..., None], rel=1e-9)
    assert world.classify_pooled(x).exp().numpy() == pytest.approx(joint.sum((1, 2)) / total[:, None], rel=1e-9)
    assert world.responsibilities(x).numpy() == pytest.approx(joint.sum(3) / client[..., None], rel=1e-9)
    y = torch.tensor([2, 0])
    known = np.stack([joint[0, :, :, 2], joint[1, :, :, 0]])
    assert world.responsibilities(x, y).numpy() == pytest.approx(known / known.sum(2, keepdims=True), rel=1e-9)


def test_densities_integrate_to_one():
    line = torch.linspace(-15, 15, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    # The trapezoid rule is exact to rounding for Gaussians on a grid of steps below σ/2.
    assert (rich().log_density(grid).exp().sum(0) * 0.1**2).numpy() == pytest.approx(np.ones(3), abs=1e-9)


def test_the_bayes_router_is_as_good_as_theory_says():
    # Two normals a distance 2 apart are told apart with probability Φ(1).
    world, n = two(), 20_000
    federation = world.sample([n, n], test=0.5)
    hits = torch.cat([world.route(c.test["x"]).argmax(1) == i for i, c in enumerate(federation.clients)])
    right = norm.cdf(1)
    assert hits.double().mean().item() == pytest.approx(right, abs=5 * math.sqrt(right * (1 - right) / len(hits)))


def test_samples_follow_the_mixture_and_carry_their_truth(tmp_path):
    world = rich()
    federation = world.sample([4000, 3000, 5000], test=0.0)
    for i, client in enumerate(federation.clients):
        c, y = client.truth["train"]["component"], client.train["y"]
        cells = torch.bincount(c * 3 + y, minlength=6).view(2, 3) / len(y)
        p = world.weights[i][:, None] * world.priors[i]
        assert ((cells - p).abs() < 5 * (p * (1 - p) / len(y)).sqrt() + 1e-12).all()
        for a, b in np.ndindex(2, 3):
            x = client.train["x"][(c == a) & (y == b)].double()
            if len(x) > 10:
                assert (x.mean(0) - world.means[i, a, b]).abs().max() < 5 * world.std / math.sqrt(len(x))
    federation.save(tmp_path / "mixture")
    again = GaussianClients.of(Federation.load(tmp_path / "mixture"))
    x = federation.clients[0].train["x"][:5]
    assert torch.allclose(again.route(x), world.route(x), atol=1e-12)  # ρ is normalised again
    newcomers = GaussianClients.of(federation.hold_out(["client-2", "client-0"])[1])
    assert torch.equal(newcomers.log_density(x), world.log_density(x)[:, [0, 2]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": torch.tensor([0.5, 0.4])}, "rho isn't a distribution"),
        ({"weights": torch.ones(2, 2)}, "have the shapes"),
        ({"std": 0.0}, "std is 0.0"),
    ],
)
def test_what_is_no_mixture_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GaussianClients(**{**vars(two()), **change})
    with pytest.raises(ValueError, match="wasn't sampled from a Gaussian mixture"):
        GaussianClients.of(synthetic(clients=2))
