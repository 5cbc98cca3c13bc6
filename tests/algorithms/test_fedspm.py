"""FedSPM against brute force, a softmax regression written by hand, logistic regression, and its own theory."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from archipel import SGD, CrossEntropy, Federation, FedSPM, Network, Sample, Whole, classification, fit, regression
from archipel.core import keys
from archipel.core.examples import ClientData, Examples
from archipel.core.trees import PerClient, PerExample
from archipel.engines import Handle, Ledger, Loop
from archipel.engines.setting import Setting

STEP = SGD(lr=0.1, steps=1, batch=None)


def gaussian_islands(sizes=(30, 50, 20), d=2, seed=0):
    """Clients around different centres; the label's rule flips with a hidden component."""
    rng = np.random.default_rng(seed)
    arrays = []
    for i, n in enumerate(sizes):
        hidden = rng.random(n) < 0.5
        x = rng.normal(size=(n, d)) + 2 * i + np.where(hidden, 1.5, -1.5)[:, None]
        arrays.append((x.astype(np.float32), ((x[:, 0] > 2 * i) ^ hidden).astype(int)))
    return Federation.from_arrays(arrays, test=0.2)


def semiparametric(federation, components=2, **options):
    """The model with h(x) = g(x) = x normalised, so that everything can be written out."""
    identity = Network(torch.nn.Identity(), federation.inputs)
    options = {"local": STEP, "routing": STEP} | options
    return FedSPM(classification(torch.nn.Identity(), federation), identity, components, **options)


def opened(algorithm, federation, seed=0):
    """A handle on enrolled clients, and the server's first state."""
    loop = Loop(algorithm, federation)
    handle = Handle(loop, torch.arange(len(federation.clients)), federation.sizes, 0, 10, Ledger())
    key = keys.key(seed)
    with torch.no_grad():
        server = algorithm.init_server(handle, key)
    message = {"server": server, "index": PerClient(handle.ids)}
    list(loop.run(algorithm.enrol, message, handle.ids.tolist(), key, training=True))
    return handle, server, key


def randomised(server, client, seed):
    """Parameters away from their start, for checks that must hold anywhere."""
    rng = torch.Generator().manual_seed(seed)
    gamma = torch.randn(server["ratio"]["gamma"].shape, generator=rng)
    ratio = server["ratio"] | {"gamma": gamma}
    tau = 10 * torch.rand(server["tau"].shape, generator=rng) + 1
    pi = torch.softmax(torch.randn(client["pi"].shape, generator=rng), 0)
    return server | {"ratio": ratio, "tau": tau}, client | {"pi": pi}


def normalised(federation, client, split="train"):
    columns = getattr(federation.clients[client], split)
    return federation.inputs.normalise(columns["x"]).double().numpy(), columns["y"].numpy()


def densities_and_likelihoods(server, client, x, y, i):
    """exp(γ_ic + ξ_icᵀx) and P_ic(y|x) by the definitions, one example and component at a time."""
    gamma, xi = server["ratio"]["gamma"].double().numpy(), server["ratio"]["xi"].double().numpy()
    alpha = client["predictive"]["heads"]["bias"].double().numpy()
    beta = client["predictive"]["heads"]["weight"].double().numpy()
    C = gamma.shape[1]
    ratio = np.array([[np.exp(gamma[i, c] + xi[i, c] @ row) for c in range(C)] for row in x])
    likelihood = np.empty_like(ratio)
    for j, row in enumerate(x):
        for c in range(C):
            scores = np.exp([alpha[c, k] + beta[c, k] @ row for k in range(alpha.shape[1])])
            likelihood[j, c] = scores[y[j]] / scores.sum()
    return ratio, likelihood


def test_the_e_step_is_bayes_rule_by_brute_force():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    for i in range(3):
        server_i, client = randomised(server, handle.carrier.states[i], seed=i)
        data = ClientData(Examples.of(federation.clients[i].train))
        with torch.no_grad():
            state, tau = algorithm.expect(client, server_i, data, key)
        ratio, likelihood = densities_and_likelihoods(server_i, client, *normalised(federation, i), i=i)
        joint = client["pi"].double().numpy() * ratio * likelihood
        expected = joint / joint.sum(1, keepdims=True)
        # float32 against float64: relative rounding of a few hundred operations
        np.testing.assert_allclose(state["responsibilities"].values, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(tau, expected.sum(0), rtol=1e-4)


def test_equal_likelihoods_give_back_the_mixing_weights():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    client = handle.carrier.states[0]
    same = {name: t[:1].expand_as(t) for name, t in client["predictive"]["heads"].items()}
    client = client | {"predictive": {"heads": same}, "pi": torch.tensor([0.9, 0.1])}
    server = server | {"ratio": server["ratio"] | {"xi": torch.zeros_like(server["ratio"]["xi"])}}
    data = ClientData(Examples.of(federation.clients[0].train))
    state, _ = algorithm.expect(client, server, data, key)
    w = state["responsibilities"].values
    torch.testing.assert_close(w, torch.tensor([0.9, 0.1]).expand_as(w))


def test_opposite_examples_belong_to_opposite_components():
    x = np.array([[1.0], [-1.0]], dtype=np.float32)
    federation = Federation.from_arrays([(x, np.array([0, 1])), (x, np.array([1, 0]))], test=0.0)
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    client = handle.carrier.states[0]
    flat = {name: torch.zeros_like(t) for name, t in client["predictive"]["heads"].items()}
    # Likelihood ratios of e^±a: responsibilities σ(±a), .99 for a = log 99.
    a = float(np.log(99))
    scaled = federation.inputs.normalise(torch.tensor(x))[0, 0]
    tilt = torch.zeros(2, 2, 1)
    tilt[0, :, 0] = torch.tensor([a / 2, -a / 2]) / scaled
    ratio = server["ratio"] | {"gamma": torch.zeros(2, 2), "xi": tilt}
    state, _ = algorithm.expect(
        client | {"predictive": {"heads": flat}},
        server | {"ratio": ratio},
        ClientData(Examples.of(federation.clients[0].train)),
        key,
    )
    w = state["responsibilities"].values[federation.clients[0].train["x"][:, 0].argsort(descending=True)]
    torch.testing.assert_close(w, torch.tensor([[0.99, 0.01], [0.01, 0.99]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("client", [0, 2])
def test_the_surrogates_gradient_is_a_softmax_regressions(client):
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, _ = opened(algorithm, federation)
    server, _ = randomised(server, handle.carrier.states[client], seed=5)
    x, _ = normalised(federation, client)
    n, (m, C) = len(x), server["tau"].shape
    w = np.random.default_rng(0).dirichlet([1] * C, size=n)
    batch = {"x": federation.clients[client].train["x"], "w": torch.tensor(w, dtype=torch.float32)}
    leaves = {name: server["ratio"][name].clone().requires_grad_() for name in ("gamma", "xi")}
    losses, _ = algorithm.ratio_loss({"encoder": {}} | leaves, batch, server["tau"], torch.tensor(client))
    losses.mean().backward()
    # The same by hand: classes (i, c), logits log τ + γ + ξᵀx, soft targets w in the client's own C classes.
    tau, gamma, xi = (t.detach().double().numpy() for t in (server["tau"], leaves["gamma"], leaves["xi"]))
    logits = (np.log(tau) + gamma).reshape(-1) + x @ xi.reshape(m * C, -1).T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    target = np.zeros_like(p)
    target[:, client * C : (client + 1) * C] = w
    # float32 against float64
    np.testing.assert_allclose(losses.detach(), -(target * np.log(p)).sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(leaves["gamma"].grad.reshape(-1), (p - target).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(leaves["xi"].grad.reshape(m * C, -1), (p - target).T @ x / n, rtol=1e-4, atol=1e-6)


def test_one_full_batch_round_is_one_gradient_step_on_the_pooled_surrogate():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    with torch.no_grad():
        after, _ = algorithm.round(server, handle, key)
    xi = server["ratio"]["xi"].clone().requires_grad_()
    total, n = 0.0, int(federation.sizes.sum())
    for i, client in enumerate(federation.clients):
        w = handle.carrier.states[i]["responsibilities"].values
        ratio = server["ratio"] | {"xi": xi}
        losses, _ = algorithm.ratio_loss(ratio, client.train | {"w": w}, after["tau"], torch.tensor(i))
        total = total + losses.sum() / n
    (gradient,) = torch.autograd.grad(total, xi)
    # Weighted by examples, the mean of one-step ends is the step of the pooled mean loss; float32 rounding remains.
    torch.testing.assert_close(after["ratio"]["xi"], server["ratio"]["xi"] - 0.1 * gradient, rtol=1e-5, atol=1e-6)


def test_routing_and_prediction_by_brute_force():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, _ = opened(algorithm, federation)
    x_raw = torch.cat([client.test["x"] for client in federation.clients])
    x = federation.inputs.normalise(x_raw).double().numpy()
    server, _ = randomised(server, handle.carrier.states[0], seed=9)
    tau = server["tau"].double().numpy()
    posterior = np.empty((len(x), 3))
    for i in range(3):
        pi = tau[i] / tau[i].sum()
        ratio, _ = densities_and_likelihoods(server, handle.carrier.states[i], x, np.zeros(len(x), int), i)
        # π_ic = τ_ic/n_i holds up to the factor that makes the drawn τ_i sum to n_i, which ρ_i then carries.
        posterior[:, i] = tau[i].sum() * (pi * ratio).sum(1)
    posterior /= posterior.sum(1, keepdims=True)
    np.testing.assert_allclose(algorithm.route(server, x_raw).exp(), posterior, rtol=1e-4, atol=1e-6)
    for i in range(3):
        _, client = randomised(server, handle.carrier.states[i], seed=i)
        ratio, _ = densities_and_likelihoods(server, client, x, np.zeros(len(x), int), i)
        weights = client["pi"].double().numpy() * ratio
        weights /= weights.sum(1, keepdims=True)
        expected = np.zeros((len(x), 2))
        for k in range(2):
            _, likelihood = densities_and_likelihoods(server, client, x, np.full(len(x), k), i)
            expected[:, k] = (weights * likelihood).sum(1)
        np.testing.assert_allclose(algorithm.predict(server, client, x_raw).exp(), expected, rtol=1e-4, atol=1e-6)


def test_the_prior_is_put_on_exactly_once():
    x = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    y = np.arange(1000) % 2
    federation = Federation.from_arrays([(x[:900], y[:900]), (x[900:], y[900:])], test=0.0)
    algorithm = semiparametric(federation)
    _, server, _ = opened(algorithm, federation)
    # Equal densities under both clients: what remains is the sample fraction ρ.
    equal = server["ratio"] | {"xi": server["ratio"]["xi"][:1].expand(2, -1, -1)}
    posterior = algorithm.route(server | {"ratio": equal}, torch.tensor(x[:5])).exp()
    torch.testing.assert_close(posterior, torch.tensor([0.9, 0.1]).expand(5, 2), rtol=0, atol=1e-6)


def test_only_differences_of_tilts_matter():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    shifted = server["ratio"] | {
        "gamma": server["ratio"]["gamma"] + 0.7,
        "xi": server["ratio"]["xi"] + torch.tensor([0.3, -0.5]),
    }
    x = federation.clients[0].train["x"]
    w = torch.full((len(x), 2), 0.5)
    for ratio in (server["ratio"], shifted):
        losses, _ = algorithm.ratio_loss(ratio, {"x": x, "w": w}, server["tau"], torch.tensor(0))
        state, tau = algorithm.expect(
            handle.carrier.states[0],
            server | {"ratio": ratio},
            ClientData(Examples.of({"x": x, "y": x[:, 0].long() * 0})),
            key,
        )
        found = (losses, algorithm.route(server | {"ratio": ratio}, x), state["responsibilities"].values, tau)
        if ratio is not shifted:
            first = found
    for one, other in zip(first, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def free_energy(algorithm, federation, server, states):
    """Σ w [log s_ic(x) + log P_ic(y|x) − log w], s = softmax over all (i, c) of log τ + γ + ξᵀh."""
    total = 0.0
    for i, (client, state) in enumerate(zip(federation.clients, states, strict=True)):
        w = state["responsibilities"].values.double()
        ratio, _ = algorithm.ratio_loss(server["ratio"], client.train | {"w": w}, server["tau"], torch.tensor(i))
        params = {"encoder": {}, "heads": state["predictive"]["heads"]}
        predictive, _ = algorithm.experts.weighted_loss(params, client.train | {"w": w})
        total += float((-ratio.double() - predictive.double() - torch.special.xlogy(w, w).sum(1)).sum())
    return total


def test_the_free_energy_never_falls():
    federation = gaussian_islands()
    algorithm = semiparametric(federation, routing=SGD(lr=0.2, steps=1, batch=None))
    handle, server, key = opened(algorithm, federation)

    def states():
        return [handle.carrier.states[i] for i in range(3)]

    energies = [free_energy(algorithm, federation, server, states())]
    for _ in range(40):
        expected = handle.collect(algorithm.expect, server, key)
        tau = expected.value
        # γ takes up the change of τ, so that s is what it was: an exact E-step alone can then only gain.
        gamma = server["ratio"]["gamma"] + server["tau"].log() - tau.log()
        server = server | {"ratio": server["ratio"] | {"gamma": gamma}, "tau": tau}
        energies.append(free_energy(algorithm, federation, server, states()))
        lr = {"lr": torch.tensor(0.1), "routing_lr": torch.tensor(0.2)}
        mean = handle.mean(algorithm.maximise, server | lr, key)
        server = server | {"ratio": server["ratio"] | mean["ratio"]}
        energies.append(free_energy(algorithm, federation, server, states()))
    gains = np.diff(energies)
    # float32 parameters: the sums are exact to some 1e-6 of their size
    assert gains.min() > -2e-6 * abs(energies[0])
    assert energies[-1] > energies[0] + 1


def test_two_normals_give_their_density_ratio():
    rng = np.random.default_rng(0)
    means, n = (0.0, 1.0), 1000
    x = [rng.normal(mean, 1, size=(n, 1)).astype(np.float32) for mean in means]
    federation = Federation.from_arrays([(part, np.arange(n) % 2) for part in x], test=0.0)
    algorithm = semiparametric(
        federation,
        components=1,
        local=SGD(lr=0.0, steps=1, batch=None),
        routing=SGD(lr=2.0, steps=1, batch=None, momentum=0.8),
    )
    # keep_momentum makes the rounds one long run of gradient descent, which a convex problem lets converge.
    algorithm = dataclasses.replace(algorithm, routing=dataclasses.replace(algorithm.routing, keep_momentum=True))
    run = fit(algorithm, federation, rounds=120, setting=Setting(engine="loop"))
    std = federation.inputs.std[0]
    slope = float(run.server["ratio"]["xi"][1, 0, 0] - run.server["ratio"]["xi"][0, 0, 0]) / std
    witness = LogisticRegression(C=np.inf, tol=1e-10).fit(np.concatenate(x), np.repeat([0, 1], n))
    # The witness solves the same convex problem; float32 gradients end some 1e-4 from its solution.
    assert slope == pytest.approx(witness.coef_[0, 0], abs=1e-3)
    # The truth: ξ₁ − ξ₀ = μ₁ − μ₀ = 1, within four standard errors from the inverse Fisher information.
    design = np.concatenate([np.concatenate(x), np.ones((2 * n, 1))], axis=1)
    p = witness.predict_proba(np.concatenate(x))[:, 1]
    error = np.sqrt(np.linalg.inv(design.T @ (design * (p * (1 - p))[:, None]))[0, 0])
    assert abs(slope - (means[1] - means[0])) < 4 * error
    # At the surrogate's critical point every P_ic integrates to one: Σ_j s_i(x_j) = τ_i.
    pooled = torch.cat([client.train["x"] for client in federation.clients])
    torch.testing.assert_close(
        algorithm.route(run.server, pooled).exp().sum(0), run.server["tau"][:, 0], rtol=1e-3, atol=0
    )


@pytest.mark.parametrize(
    ("local", "routing", "both"),
    [((2, 8), (3, 8), 16), ((5, 4), (3, 8), 20), ((6, 7), (2, 9), 18), ((9, 8), (2, 8), 16), ((7, 8), (8, 8), 42)],
)
def test_an_incremental_e_step_is_exact_where_both_blocks_draw_and_silent_elsewhere(local, routing, both):
    federation = gaussian_islands(sizes=(52, 50, 40))
    blocks = [SGD(lr=0.1, steps=steps, batch=batch) for steps, batch in (local, routing)]
    exact = semiparametric(federation, local=blocks[0], routing=blocks[1])
    partial = dataclasses.replace(exact, expectation="incremental")
    handle, server, key = opened(partial, federation)
    server, client = randomised(server, handle.carrier.states[0], seed=3)
    data = ClientData(Examples.of(federation.clients[0].train))
    with torch.no_grad():
        full, _ = exact.expect(client, server, data, key)
        some, tau = partial.expect(client, server, data, key)
    drawn = [block.plan(data.train, key) for block in blocks]
    rows = torch.zeros(data.train.length, dtype=torch.bool)
    rows[list(set.intersection(*(set(d.index[d.mask].tolist()) for d in drawn)))] = True
    assert rows.sum() == both
    before, new = client["responsibilities"].values, some["responsibilities"].values
    # The same numbers in batches of another size: float32 rounding
    torch.testing.assert_close(new[rows], full["responsibilities"].values[rows], rtol=1e-5, atol=1e-6)
    assert torch.equal(new[~rows], before[~rows])
    torch.testing.assert_close(tau, new.sum(0))


def test_exact_and_incremental_agree_when_everything_is_drawn():
    federation = gaussian_islands()
    exact = semiparametric(federation)
    partial = dataclasses.replace(exact, expectation="incremental")
    one, other = fit(exact, federation, rounds=1), fit(partial, federation, rounds=1)
    for name in ("gamma", "xi"):
        assert torch.equal(one.server["ratio"][name], other.server["ratio"][name])


def test_who_was_not_asked_keeps_its_row_of_tau():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    first = fit(algorithm, federation, rounds=1).server["tau"]
    handle, server, key = opened(algorithm, federation)
    with torch.no_grad():
        after, _ = algorithm.round(server, handle.only(torch.tensor([1])), key)
    start = federation.sizes[:, None].float().expand(3, 2) / 2
    assert torch.equal(after["tau"][[0, 2]], start[[0, 2]])
    assert not torch.equal(after["tau"][1], start[1])
    torch.testing.assert_close(first.sum(1), federation.sizes.float())


def test_with_one_component_it_is_a_softmax_over_clients():
    federation = gaussian_islands()
    algorithm = semiparametric(federation, components=1)
    handle, server, key = opened(algorithm, federation)
    with torch.no_grad():
        after, _ = algorithm.round(server, handle, key)
    # FedDRM's model: every responsibility is 1, τ_i = n_i, and the client's head answers alone.
    assert torch.equal(after["tau"][:, 0], federation.sizes.float())
    client, x = handle.carrier.states[1], federation.clients[1].test["x"]
    assert torch.equal(client["responsibilities"].values, torch.ones(int(federation.sizes[1]), 1))
    heads = client["predictive"]["heads"]
    logits = federation.inputs.normalise(x) @ heads["weight"][0].T + heads["bias"][0]
    torch.testing.assert_close(algorithm.predict(after, client, x), torch.log_softmax(logits, -1))


def test_own_encoders_are_one_a_component_and_different():
    federation = gaussian_islands()
    network = torch.nn.Linear(2, 3)
    task = classification(network, federation)
    router = Network(torch.nn.Linear(2, 4), federation.inputs)
    _, shared, _ = opened(FedSPM(task, router, 3, STEP, STEP), federation)
    _, own, _ = opened(FedSPM(task, router, 3, STEP, STEP, encoders="own"), federation)
    assert shared["predictive"]["encoder"]["weight"].shape == (3, 2)
    assert own["ratio"]["xi"].shape == (3, 3, 4)
    weights = [own["predictive"]["encoder"][str(c)]["weight"] for c in range(3)]
    assert not torch.equal(weights[0], weights[1])


def test_a_dead_component_leaves_gradients_finite():
    federation = gaussian_islands()
    algorithm = semiparametric(federation)
    handle, server, key = opened(algorithm, federation)
    for i in range(3):
        client = handle.carrier.states[i]
        w = torch.zeros_like(client["responsibilities"].values)
        w[:, 0] = 1
        dead = client | {"responsibilities": PerExample(w), "pi": torch.tensor([1.0, 0.0])}
        handle.carrier.states.put(i, dead)
    tau = torch.stack([federation.sizes.float(), torch.zeros(3)], dim=1)
    lr = {"lr": torch.tensor(0.1), "routing_lr": torch.tensor(0.1)}
    with torch.no_grad():
        replies = handle.collect(algorithm.maximise, server | {"tau": tau} | lr, key)
        expected = handle.collect(algorithm.expect, server, key)
    assert replies.ids.tolist() == [0, 1, 2]
    torch.testing.assert_close(expected.value, tau)


def test_a_regression_answers_by_the_mixtures_mean():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    federation = Federation.from_arrays([(x, x[:, 0] * 3), (x + 5, -x[:, 0] * 3)], test=0.25)
    identity = Network(torch.nn.Identity(), federation.inputs)
    algorithm = FedSPM(regression(torch.nn.Identity(), federation), identity, 2, STEP, STEP)
    handle, server, _ = opened(algorithm, federation)
    server, client = randomised(server, handle.carrier.states[0], seed=1)
    raw = federation.clients[0].test["x"]
    z = federation.inputs.normalise(raw).double().numpy()
    ratio, _ = densities_and_likelihoods(server, client, z, np.zeros(len(z), int), 0)
    weights = client["pi"].double().numpy() * ratio
    weights /= weights.sum(1, keepdims=True)
    heads = client["predictive"]["heads"]
    means = np.stack([z @ heads["weight"][c, 0].double().numpy() + float(heads["bias"][c, 0]) for c in range(2)], 1)
    expected = (weights * means).sum(1)
    np.testing.assert_allclose(algorithm.predict(server, client, raw)[:, 0], expected, rtol=1e-4, atol=1e-5)
    run = fit(algorithm, federation, rounds=30)
    assert run.metrics["routing_accuracy"] == 1.0  # the clients are five standard deviations apart


def test_it_learns_what_an_average_cannot():
    """Two clients with opposite labels: one model for both is right half of the time, a routed one always."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    federation = Federation.from_arrays([(x + np.float32([0, 8]), y), (x - np.float32([0, 8]), 1 - y)], test=0.3)
    block = SGD(lr=0.5, steps=10, batch=32)
    run = fit(semiparametric(federation, local=block, routing=block), federation, rounds=20, cohort=Sample(count=2))
    assert run.metrics["routing_accuracy"] == 1.0
    assert run.metrics["system_accuracy"] > 0.9  # a linear rule, learnt up to the few examples near its border


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "components must be a whole number of at least 1; given 0"),
        ({"components": 1.5}, "components must be a whole number of at least 1; given 1.5"),
        ({"encoders": "both"}, "encoders must be 'shared' or 'own'"),
        ({"expectation": "partial"}, "'exact' or 'incremental'"),
        ({"batch_norm": "off"}, "batch_norm must be 'share', 'local' or 'recompute'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        semiparametric(gaussian_islands(), **options)


def test_parts_of_another_kind_are_refused(uneven):
    task, router = classification(nn.Linear(3, 4), uneven), Network(nn.Linear(3, 4), uneven.inputs)
    with pytest.raises(TypeError, match=r"task must be an encoder and a head, made by classification.*; given a Whole"):
        FedSPM(Whole(router, CrossEntropy()), router)
    with pytest.raises(TypeError, match=r"router must be a Network\(module, federation\.inputs\); given a Linear"):
        FedSPM(task, nn.Linear(3, 4))
