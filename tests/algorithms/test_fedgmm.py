"""FedGMM against Bayes' rule, scikit-learn's mixture of Gaussians, pooled moments, and its limits, FedAvg and EM."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mixtures import inputs_of, log_probabilities, opened, random_heads, rounds_from, tables
from quadratics import ENGINES
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture
from stepwise import Listening, rounds_of
from torch import nn

from archipel import SGD, CrossEntropy, FedAvg, Federation, FedGMM, Network, Whole, classification, fit, regression
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import flatten
from archipel.engines.setting import Setting
from archipel.learning.batch_norm import POLICIES
from archipel.learning.gaussians import drawn, log_normal, moments_of, refitted

STILL = SGD(lr=0.0, steps=1, batch=None)
PI = torch.tensor([[0.4, 0.1], [0.2, 0.1], [0.1, 0.1]])


def plain(federation, **options):
    """Three Gaussians on the normalised inputs themselves, two softmax regressions: everything can be written out."""
    options = {"local": STILL, "components": 2, "encoders": "shared"} | options
    return FedGMM(
        classification(nn.Identity(), federation), router=Network(nn.Identity(), federation.inputs), **options
    )


def gaussians(count=3, d=2, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(count, d, d))
    covariance = roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(d)
    return {"mean": torch.tensor(rng.normal(size=(count, d))), "covariance": torch.tensor(covariance)}


def densities(normals, z):
    pairs = zip(normals["mean"].numpy(), normals["covariance"].numpy(), strict=True)
    return np.stack([multivariate_normal(mean, covariance).pdf(z) for mean, covariance in pairs], axis=1)


def posterior(pi, density, likelihood):
    """Bayes' rule over (a, b), one example and one pair at a time."""
    joint = np.empty((len(density), *pi.shape))
    for j in range(len(density)):
        for a, b in np.ndindex(*pi.shape):
            joint[j, a, b] = pi[a, b] * density[j, a] * likelihood[j, b]
    return joint / joint.sum((1, 2), keepdims=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_is_em_by_brute_force_whoever_takes_part(engine):
    federation = tables()
    algorithm, heads, normals = (
        plain(federation, local=SGD(lr=0.5, steps=1, batch=None)),
        random_heads(2, 2, 2),
        gaussians(),
    )
    handle, server = opened(
        algorithm, federation, ENGINES[engine], model={"encoder": {}, "heads": heads}, gaussians=normals
    )
    asked = [0, 2]
    shares = federation.sizes[asked].double().numpy()
    gammas, embedded, weight = [], [], 0.0
    for i, share in zip(asked, shares / shares.sum(), strict=True):
        z, y = inputs_of(federation, i)
        log_p = log_probabilities(heads, z)
        gamma = posterior(np.full((3, 2), 1 / 6), densities(normals, z), np.exp(log_p[np.arange(len(y)), :, y]))
        residual = gamma.sum(1)[:, :, None] * (np.exp(log_p) - np.eye(2)[y][:, None])
        weight += share * (heads["weight"].double().numpy() - 0.5 * np.einsum("nck,nd->ckd", residual, z) / len(y))
        gammas.append(gamma)
        embedded.append(z)
    after, clients = rounds_from(algorithm, handle.only(torch.tensor(asked)), server)
    # float32 responsibilities, a few hundred operations
    np.testing.assert_allclose(after["model"]["heads"]["weight"], weight, rtol=1e-4, atol=1e-5)
    for i, gamma in zip(asked, gammas, strict=True):
        np.testing.assert_allclose(clients[i]["pi"], gamma.mean(0), rtol=1e-4)
        np.testing.assert_allclose(after["tau"][i], gamma.sum((0, 2)), rtol=1e-4)
    assert torch.equal(after["tau"][1], server["tau"][1])
    r, z = np.concatenate(gammas).sum(2), np.concatenate(embedded)
    scale = z.var(0).mean()
    for a in range(3):
        mean = np.average(z, axis=0, weights=r[:, a])
        covariance = np.cov(z.T, aweights=r[:, a], bias=True) + algorithm.ridge * scale * np.eye(2)
        np.testing.assert_allclose(after["gaussians"]["mean"][a], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(after["gaussians"]["covariance"][a], covariance, rtol=1e-4, atol=1e-6)


def expectation(algorithm, server, pi, examples):
    """γ of the E-step."""
    data = ClientData(Examples.of(examples))
    client = algorithm.init_client({"server": server}, data, keys.key(0)) | {"pi": pi}
    message = {"model": server["model"], "gaussians": server["gaussians"]}
    client, _ = algorithm.expect(client, message, data, keys.key(0))
    return client["gamma"].values


def test_equal_densities_and_likelihoods_give_back_the_mixing_weights():
    federation = tables()
    algorithm = plain(federation)
    same = {name: t[:1].expand(2, *t.shape[1:]) for name, t in random_heads(1, 2, 2).items()}
    one = {name: t[:1].expand(3, *t.shape[1:]) for name, t in gaussians().items()}
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": same}, gaussians=one)
    gamma = expectation(algorithm, server, PI, federation.clients[0].train)
    torch.testing.assert_close(gamma, PI.expand(len(gamma), 3, 2))


def test_opposite_examples_belong_to_opposite_cells():
    x = np.array([[1.0], [-1.0]], dtype=np.float32)
    federation = Federation.from_arrays([(x, np.array([0, 1])), (x, np.array([0, 1]))], test=0.0)
    algorithm = plain(federation, gaussians=2)
    z = float(federation.inputs.normalise(torch.tensor(x))[0, 0])
    # N(±m, 1) at ±z differ by the factor e^{2mz}; experts say either class with probability .99. Both odds are 99.
    a = float(np.log(99))
    mean = torch.tensor([[a / (2 * z)], [-a / (2 * z)]], dtype=torch.float64)
    normals = {"mean": mean, "covariance": torch.ones(2, 1, 1, dtype=torch.float64)}
    heads = {"weight": torch.zeros(2, 2, 1), "bias": torch.tensor([[0.0, a], [a, 0.0]])}
    _, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads}, gaussians=normals)
    examples = {"x": torch.tensor(x), "y": torch.tensor([1, 0])}
    gamma = expectation(algorithm, server, torch.full((2, 2), 0.25), examples)
    likely = torch.outer(torch.tensor([0.99, 0.01]), torch.tensor([0.99, 0.01]))
    torch.testing.assert_close(gamma, torch.stack([likely, likely.flip(0, 1)]), rtol=0, atol=1e-6)


def test_the_servers_covariance_holds_the_scatter_between_clients():
    rng = np.random.default_rng(0)
    x = [(rng.normal(size=(n, 2)) + mean).astype(np.float32) for n, mean in ((60, -10), (30, 10))]
    federation = Federation.from_arrays([(part, np.arange(len(part)) % 2) for part in x], test=0.0)
    algorithm = plain(federation, gaussians=1, components=1, ridge=1e-6)
    server, _ = rounds_from(algorithm, *opened(algorithm, federation))
    z = np.concatenate([inputs_of(federation, i)[0] for i in range(2)])
    pooled = np.cov(z.T, bias=True)
    # float64 sums of the same float32 inputs, and the ridge
    np.testing.assert_allclose(server["gaussians"]["mean"][0], z.mean(0), atol=1e-9)
    np.testing.assert_allclose(server["gaussians"]["covariance"][0], pooled, rtol=1e-5)
    within = np.mean([np.cov(inputs_of(federation, i)[0].T, bias=True) for i in range(2)], axis=0)
    assert pooled[0, 0] > 20 * within[0, 0]


@pytest.mark.parametrize(("sizes", "rounds"), [((30, 50, 20), 1), ((100,), 6)])
def test_gaussians_are_scikit_learns(sizes, rounds):
    """With predictions that say nothing: one iteration on any division, since all start from equal mixing weights, and
    as many as you like of a single client.
    """
    federation = tables(sizes)
    algorithm, normals = plain(federation, components=1), gaussians(seed=3)
    z = np.concatenate([inputs_of(federation, i)[0] for i in range(len(sizes))])
    witness = GaussianMixture(
        3,
        weights_init=np.full(3, 1 / 3),
        means_init=normals["mean"].numpy(),
        precisions_init=np.linalg.inv(normals["covariance"].numpy()),
        max_iter=rounds,
        tol=0,
        reg_covar=algorithm.ridge * z.var(0).mean(),
    )
    with pytest.warns(UserWarning, match="did not converge"):
        witness.fit(z)
    server, clients = rounds_from(algorithm, *opened(algorithm, federation, gaussians=normals), rounds=rounds)
    # Responsibilities are kept in float32.
    np.testing.assert_allclose(server["gaussians"]["mean"], witness.means_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server["gaussians"]["covariance"], witness.covariances_, rtol=1e-4, atol=1e-5)
    pi = torch.stack([client["pi"][:, 0] for client in clients])
    rho = federation.sizes / federation.sizes.sum()
    np.testing.assert_allclose(rho @ pi, witness.weights_, rtol=1e-4)


def log_likelihood(algorithm, federation, server, clients):
    total = 0.0
    for i, client in enumerate(clients):
        z, y = inputs_of(federation, i)
        log_p = log_probabilities(server["model"]["heads"], z)[np.arange(len(y)), :, y]
        with np.errstate(divide="ignore"):
            log_joint = np.log(client["pi"].double().numpy()) + np.log(densities(server["gaussians"], z))[:, :, None]
        total += logsumexp(log_joint + log_p[:, None], axis=(1, 2)).sum()
    return total


def test_the_likelihood_never_falls():
    federation = tables()
    # One small full-batch step of the experts makes their part of Q larger.
    algorithm = plain(federation, local=SGD(lr=0.2, steps=1, batch=None), ridge=1e-9)
    handle, server = opened(algorithm, federation)
    found = []
    for _ in range(20):
        server, clients = rounds_from(algorithm, handle, server)
        found.append(log_likelihood(algorithm, federation, server, clients))
    # float32 responsibilities: sums are exact to some 1e-6 of their size
    assert np.diff(found).min() > -2e-6 * abs(found[0])
    assert found[-1] > found[0] + 5


def test_routing_and_prediction_by_brute_force():
    federation = tables()
    algorithm, heads, normals = plain(federation), random_heads(2, 2, 2, seed=5), gaussians(seed=7)
    handle, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads}, gaussians=normals)
    tau = 10 * torch.rand(3, 3, generator=torch.Generator().manual_seed(0)) + 1
    x = torch.cat([client.test["x"] for client in federation.clients])
    z = np.concatenate([inputs_of(federation, i, "test")[0] for i in range(3)])
    density = densities(normals, z)
    expected = density @ tau.double().numpy().T
    found = algorithm.route(server | {"tau": tau}, x).exp()
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), rtol=1e-4, atol=1e-7)
    weights = density @ PI.double().numpy()
    weights /= weights.sum(1, keepdims=True)
    answer = np.einsum("nb,nbk->nk", weights, np.exp(log_probabilities(heads, z)))
    found = algorithm.predict(server, handle.carrier.states[0] | {"pi": PI}, x).exp()
    np.testing.assert_allclose(found, answer, rtol=1e-4, atol=1e-7)


def test_the_prior_is_put_on_exactly_once():
    x = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    y = np.arange(1000) % 2
    federation = Federation.from_arrays([(x[:900], y[:900]), (x[900:], y[900:])], test=0.0)
    algorithm = plain(federation, gaussians=1)
    server, _ = rounds_from(algorithm, *opened(algorithm, federation))
    # One Gaussian for both clients: what remains is the sample fraction ρ.
    found = algorithm.route(server, torch.tensor(x[:5])).exp()
    torch.testing.assert_close(found, torch.tensor([0.9, 0.1]).expand(5, 2), rtol=0, atol=1e-6)


def test_one_gaussian_and_one_expert_predict_as_fedavg(uneven):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), uneven)
    local = SGD(lr=0.1, epochs=2, batch=4, momentum=0.9, keep_momentum=True)
    avg = FedAvg(task, local)
    gmm = FedGMM(
        task, local, router=Network(nn.Identity(), uneven.inputs), components=1, gaussians=1, encoders="shared"
    )
    handle, server = opened(avg, uneven)
    theta, head = server["model"]["encoder"], server["model"]["head"]
    start = {"encoder": theta, "heads": {name: t[None] for name, t in head.items()}}
    server, _ = rounds_from(avg, handle, server, 3)
    other, clients = rounds_from(gmm, *opened(gmm, uneven, model=start), rounds=3)
    x = torch.cat([client.test["x"] for client in uneven.clients])
    for client in clients:
        # float32, some thirty steps whose sums are taken in another order
        torch.testing.assert_close(gmm.predict(other, client, x), avg.predict_global(server, x), rtol=1e-4, atol=1e-5)


def test_a_learned_embedding_is_fedavgs_classifier_and_gaussians_keep_up_with_it(uneven):
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    router, solver = Network(module, uneven.inputs), SGD(lr=0.3, epochs=2, batch=4, momentum=0.9)
    task = classification(nn.Linear(3, 4), uneven)
    gmm = FedGMM(
        task, replace(solver, batch=5), router=router, routing=solver, gaussians=1, embedding="learned", ridge=1e-9
    )
    avg = FedAvg(classification(module, uneven), solver)
    handle, server = opened(gmm, uneven)
    other_handle, other = opened(avg, uneven, model=server["embedding"])
    server, _ = rounds_from(gmm, handle, server, 3)
    other, _ = rounds_from(avg, other_handle, other, 3)
    found, expected = flatten(server["embedding"]), flatten(other["model"])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    x = torch.cat([client.train["x"] for client in uneven.clients])
    e = router(server["embedding"]["encoder"], {}, x)[0].double().numpy()
    np.testing.assert_allclose(server["gaussians"]["mean"][0], e.mean(0), rtol=1e-6)
    np.testing.assert_allclose(server["gaussians"]["covariance"][0], np.cov(e.T, bias=True), rtol=1e-6)


def test_a_gaussian_without_examples_stays_as_it_was():
    federation = tables()
    algorithm, normals = plain(federation), gaussians()
    normals["mean"][2] = 1e4
    handle, server = opened(algorithm, federation, gaussians=normals)
    after, clients = rounds_from(algorithm, handle, server, 3)
    for name in ("mean", "covariance"):
        assert torch.equal(after["gaussians"][name][2], normals[name][2])
        assert not torch.equal(after["gaussians"][name][0], normals[name][0])
    x = federation.clients[0].test["x"]
    assert bool(algorithm.predict(after, clients[0], x).isfinite().all())
    posterior = algorithm.route(after, 1e4 * x).exp()
    torch.testing.assert_close(posterior.sum(1), torch.ones(len(x)))


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_an_embedding_that_tells_nothing_routes_by_sizes(value):
    federation = tables()
    module = nn.Linear(2, 3)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, value)
    router = Network(module, federation.inputs, initial="given")
    algorithm = FedGMM(classification(nn.Identity(), federation), SGD(lr=0.1, steps=2), router=router)
    server, clients = rounds_from(algorithm, *opened(algorithm, federation), rounds=2)
    x = federation.clients[0].test["x"]
    rho = federation.sizes / federation.sizes.sum()
    torch.testing.assert_close(algorithm.route(server, x).exp(), rho.expand(len(x), 3), rtol=1e-5, atol=0)
    assert bool(algorithm.predict(server, clients[0], x).isfinite().all())


def test_the_start_is_drawn_from_the_pooled_moments():
    federation = tables()
    z = np.concatenate([inputs_of(federation, i)[0] for i in range(3)])
    algorithm = plain(federation, ridge=1e-9)
    _, server = opened(algorithm, federation)
    pooled = np.cov(z.T, bias=True)
    np.testing.assert_allclose(server["gaussians"]["covariance"], np.stack([pooled] * 3), rtol=1e-6)
    assert server["gaussians"]["mean"].unique(dim=0).shape == (3, 2)
    many = drawn(moments_of(torch.tensor(z), torch.ones(len(z), 1), torch.tensor(len(z))), 10_000, 1e-9, keys.key(1))
    # Four standard errors of a mean and of a covariance of 10 000 draws
    error = 4 * np.sqrt(pooled.diagonal() / 10_000)
    assert np.all(np.abs(many["mean"].mean(0).numpy() - z.mean(0)) < error)
    spread = np.sqrt(np.outer(pooled.diagonal(), pooled.diagonal()) + pooled**2)
    assert np.all(np.abs(np.cov(many["mean"].numpy().T) - pooled) < 4 * spread / 100)


def test_moments_of_parts_are_those_of_the_whole_and_padding_has_none():
    rng = torch.Generator().manual_seed(0)
    e = torch.randn(20, 3, generator=rng) + 1000  # far from 0, where float32 moments would be lost
    gamma = torch.softmax(torch.randn(20, 2, generator=rng), 1) * (torch.arange(20) < 15)[:, None]
    whole = moments_of(e[:15], gamma[:15], torch.tensor(15))
    padded = moments_of(e, gamma, torch.tensor(15))
    parts = [moments_of(e[:5], gamma[:5], torch.tensor(5)), moments_of(e[5:15], gamma[5:15], torch.tensor(10))]
    old = gaussians(2, 3)
    for name in whole:
        torch.testing.assert_close(padded[name], whole[name])
        torch.testing.assert_close((5 * parts[0][name] + 10 * parts[1][name]) / 15, whole[name])
    normals = refitted(old, whole, 1e-9)
    expected = np.cov(e[:15].double().numpy().T, aweights=gamma[:15, 1].double().numpy(), bias=True)
    np.testing.assert_allclose(normals["covariance"][1], expected, rtol=1e-6, atol=1e-7)


def test_densities_are_scipys():
    normals = gaussians(4, 3, seed=2)
    z = np.random.default_rng(1).normal(size=(10, 3))
    np.testing.assert_allclose(log_normal(torch.tensor(z), normals).exp(), densities(normals, z), rtol=1e-10)


def test_what_leaves_a_client(uneven):
    router = Network(nn.Linear(3, 2), uneven.inputs)
    algorithm = FedGMM(classification(nn.Linear(3, 4), uneven), SGD(lr=0.1, epochs=1, batch=4), router=router)
    listening = Listening(algorithm, uneven)
    for _ in rounds_of(algorithm, uneven, 2, carrier=listening):
        pass
    heard = [reply for reply in listening.heard if flatten(reply)]
    names = {name.split("/")[0] for reply in heard for name in flatten(reply)}
    # Totals of Gaussians (a bare tensor), experts, moments: neither π(a, b) nor anything of one example.
    assert names == {"", "model", "loss", "embedding", "weight", "sum", "square"}
    assert not [name for message in listening.sent[6:] for name in flatten(message) if "embedding" in name]
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))
    experts, totals, moments = 3 * (3 * 4 + 4 + 4 * 3 + 3), 3, 3 * (1 + 2 + 4)
    assert run.history[1]["uplink"] == 4 * (4 * (experts + totals + 1) + 8 * moments)


def test_it_tells_clients_apart_that_gaussians_tell_apart():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    federation = Federation.from_arrays([(x + np.float32([0, 8]), y), (x - np.float32([0, 8]), 1 - y)], test=0.3)
    local = SGD(lr=0.5, steps=10, batch=32)
    run = fit(plain(federation, local=local, gaussians=2), federation, rounds=15)
    assert run.metrics["routing_accuracy"] == 1.0
    assert run.metrics["system_accuracy"] > 0.9  # experts follow the Gaussians: a rule for each


def test_a_regression_answers_by_the_mixtures_mean():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    federation = Federation.from_arrays([(x, x[:, 0] * 3), (x + 5, -x[:, 0] * 3)], test=0.25)
    router = Network(nn.Identity(), federation.inputs)
    task = regression(nn.Identity(), federation)
    algorithm, heads, normals = (
        FedGMM(task, STILL, router=router, encoders="shared", components=2),
        random_heads(2, 1, 2),
        gaussians(),
    )
    handle, server = opened(algorithm, federation, model={"encoder": {}, "heads": heads}, gaussians=normals)
    z, _ = inputs_of(federation, 0, "test")
    weights = densities(normals, z) @ PI.double().numpy()
    values = np.einsum("nd,bkd->nbk", z, heads["weight"].double().numpy()) + heads["bias"].double().numpy()
    expected = (weights[:, :, None] * values).sum(1) / weights.sum(1, keepdims=True)
    found = algorithm.predict(server, handle.carrier.states[0] | {"pi": PI}, federation.clients[0].test["x"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    run = fit(replace(algorithm, local=SGD(lr=0.1, steps=3, batch=None)), federation, rounds=3)
    assert np.isfinite(run.metrics["system_rmse"])


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_norm_policies_are_the_experts(uneven, policy):
    """A layer on the inputs themselves, whose pooled mean is 0 by the federation's normalisation."""
    task = classification(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), uneven)
    router = Network(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), uneven.inputs)
    local = SGD(lr=0.1, epochs=2, batch=None)
    algorithm = FedGMM(task, local, router=router, routing=local, embedding="learned", batch_norm=policy)
    run = fit(algorithm, uneven, rounds=2, setting=Setting(engine="loop"))
    means = [run.server["model"]["buffers"][c]["0"]["running_mean"] for c in ("0", "1", "2")]
    if policy == "recompute":
        torch.testing.assert_close(means, [torch.zeros(3)] * 3, rtol=0, atol=1e-5)  # float32
    assert (max(mean.abs().max() for mean in means) > 0) == (policy != "local")
    assert all(("buffers" in client) == (policy == "local") for client in run.clients)
    assert float(run.server["embedding"]["buffers"]["1"]["running_mean"].abs().max()) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "components must be a whole number of at least 1; given 0"),
        ({"gaussians": 2.0}, "gaussians must be a whole number"),
        ({"encoders": "both"}, "encoders must be 'shared' or 'own'"),
        ({"embedding": "random"}, "embedding must be 'fixed' or 'learned'; given 'random'"),
        ({"ridge": 0}, "ridge must be above 0 and finite; given 0"),
        ({"ridge": "1e-3"}, "ridge must be a number"),
        ({"ridge": True}, "ridge must be a number"),
        ({"batch_norm": "off"}, "batch_norm must be 'share', 'local' or 'recompute'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plain(tables(), **options)


def test_parts_of_another_kind_are_refused(uneven):
    task, router = classification(nn.Linear(3, 4), uneven), Network(nn.Linear(3, 4), uneven.inputs)
    with pytest.raises(TypeError, match=r"task must be an encoder and a head, made by classification.*; given a Whole"):
        FedGMM(Whole(router, CrossEntropy()), router=router)
    with pytest.raises(TypeError, match=r"router must be a Network\(module, federation\.inputs\); given a Linear"):
        FedGMM(task, router=nn.Linear(3, 4))
    with pytest.raises(
        ValueError, match=r"Linear can't process the federation's examples, float32 of shape \(n, \*\(3,\)\)"
    ):
        fit(FedGMM(task, router=Network(nn.Linear(4, 2), uneven.inputs)), uneven, rounds=1)
